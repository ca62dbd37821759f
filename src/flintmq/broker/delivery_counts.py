"""Delivery counts over a restart: how often entries came back to queues that count that (x-delivery-limit, x-queue-type quorum).

in: counts that recovery read. out: counts for the entries that are there, and for the store (store/count_notes.py), which writes a note
for each return; in the housekeeping, looks at notes whose entries may have ended.

N1  A note that outlives its entry means nothing, and goes: each new note looks at some, the housekeeping at some more, and goes on as long
    as most of them have ended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.guard import guarded

# notes that one housekeeping pass looks at, and one slice of it: less than a microsecond each
PRUNE_MOST = 512
PRUNE_AT_ONCE = 32

_KEY = struct.Struct(">QQ")
_VALUE = struct.Struct(">H")


class DeliveryCounts:
    """Any thread. Args: store: with `take_counts` and `counts` (LogStore)."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._pruning = False
        self._left = 0

    def __len__(self) -> int:
        """Notes that are not known to have ended, or are not ended yet."""
        return len(self._store.counts)

    def restore(self, queues: Mapping[int, Any]) -> int:
        """Gives the entries that came back after a restart their counts. Returns how many. Once, before anybody consumes.
        Raises: StoreError; MemoryError."""
        restored = 0
        ended = False
        for key, lsn, value in self._store.take_counts():
            queue_id, position = _KEY.unpack(key)
            (count,) = _VALUE.unpack(value)
            queue = queues.get(queue_id)
            if queue is not None and queue.core.set_count(position, count):
                self._store.counts.adopt(queue.core, position, count, lsn)
                restored += 1
            else:
                self._store.counts.drop(lsn)
                ended = True
        if ended:
            self._store.counts.end()
        return restored

    def tick(self, in_slices: Callable[[Callable[[], bool], Callable[[bool], object]], object]) -> None:
        """The housekeeping: a look at some notes. Args: in_slices: Broker.in_slices."""
        if len(self) and not self._pruning:
            self._pruning = True
            self._left = PRUNE_MOST
            in_slices(self._some, self._pruned)

    def _pruned(self, done: bool) -> None:
        self._pruning = False

    def _some(self) -> bool:
        """A slice. True: that was all for now."""
        over: list[bool] = []
        guarded("delivery counts", "notes of entries that ended", lambda: over.append(self._prune()))
        return over != [False]

    def _prune(self) -> bool:
        counts = self._store.counts
        most = min(PRUNE_AT_ONCE, len(counts))
        ended = counts.look(most)
        if 2 * ended < most or not most:
            self._left -= PRUNE_AT_ONCE
        over = self._left <= 0 or not len(counts)
        if over:
            counts.end()
        return over
