"""Delivery counts over a restart: how often entries came back to queues that count that (x-delivery-limit, x-queue-type quorum).

in: counts of logged entries, as they come back. out: notes in the store's log; after a restart, counts for the entries that are there.

N1  A note is written without waiting for the disk: a crash may lose the counts of its last moments, never more.
N2  Positions are never used again, so a note that outlives its entry means nothing. Each new note is paid for with a look at LOOKS old
    ones, the one that was not looked at for longest first: notes of entries that have ended are about as many as the others, at most.
    The housekeeping looks at some more, and goes on as long as most of them have ended.
N3  What a note takes is in the account of memory. Its end takes no record of its own in the log (LogStore.end_notes).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.broker.message_line import Line
from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.ports import NOTE_DELIVERIES

# old notes that a new one looks at
LOOKS = 2
# notes that one housekeeping pass looks at, and one slice of it: a microsecond each
PRUNE_MOST = 512
PRUNE_AT_ONCE = 32
# notes that end together
ENDS_AT_ONCE = 256
# bytes of a note in memory: its key and value here and in the store's table
NOTE_BYTES = 400

_KEY = struct.Struct(">QQ")
_VALUE = struct.Struct(">H")


class DeliveryCounts:
    """Any thread. Args: store: with `note_entry`, `notes` and `end_notes` (LogStore)."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._queues: Mapping[int, Any] = {}
        self._lock = threading.Lock()
        self._line = Line()  # of positions and queue ids, in the order in which they are looked at
        self._ended: list[bytes] = []
        self._account = MemoryShare("entries")
        self._pruning = False
        self._left = 0

    def __len__(self) -> int:
        """Notes that are not known to have ended, or are not ended yet."""
        return len(self._line) + len(self._ended)

    def restore(self, queues: Mapping[int, Any]) -> int:
        """Gives the entries that came back after a restart their counts. Returns how many. Once, before anybody consumes."""
        self._queues = queues
        found = 0
        for key, value in self._store.notes(NOTE_DELIVERIES).items():
            queue_id, position = _KEY.unpack(key)
            queue = queues.get(queue_id)
            if queue is not None and queue.core.set_count(position, _VALUE.unpack(value)[0]):
                found += 1
            self._add(queue_id, position)  # `look` finds out when nothing stands there
        return found

    def note(self, queue_id: int, position: int, count: int) -> None:
        """An entry of the log has come back `count` times. Raises: StoreError."""
        if self._store.note_entry(NOTE_DELIVERIES, _KEY.pack(queue_id, position), _VALUE.pack(min(count, 0xFFFF))):
            self._add(queue_id, position)
        self.look(LOOKS)

    def _add(self, queue_id: int, position: int) -> None:
        with self._lock:
            self._line.add(position, queue_id)
            self._account.add(NOTE_BYTES)

    def look(self, most: int) -> int:
        """Looks at so many notes; those whose entry has ended go. Returns how many did. Raises: StoreError."""
        ended: list[bytes] = []
        with self._lock:
            for _ in range(min(most, len(self._line))):
                position, queue_id = self._line.take()
                queue = self._queues.get(queue_id)
                if queue is not None and queue.core.entry_facts(position) is not None:
                    self._line.add(position, queue_id)
                else:
                    ended.append(_KEY.pack(queue_id, position))
            self._ended += ended
            whole = len(self._ended) >= ENDS_AT_ONCE
        if whole:
            self._end()
        return len(ended)

    def _end(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        try:
            self._store.end_notes(NOTE_DELIVERIES, ended)
        except BaseException:
            with self._lock:
                self._ended += ended
            raise
        self._account.add(-NOTE_BYTES * len(ended))

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
        most = min(PRUNE_AT_ONCE, len(self._line))
        ended = self.look(most)
        if 2 * ended < most or not most:
            self._left -= PRUNE_AT_ONCE
        over = self._left <= 0 or not len(self._line)
        if over and self._ended:
            self._end()
        return over
