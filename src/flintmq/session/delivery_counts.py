"""Delivery counts over a restart: how often entries came back to queues that count that (x-delivery-limit, x-queue-type quorum).

in: counts of logged entries, as they come back. out: notes in the store's log; after a restart, counts for the entries that are there.

A note is written without waiting for the disk: a crash may lose the counts of its last moments, never more. Positions are never used again,
so a note that outlives its entry means nothing; `prune` removes such notes, some in each housekeeping pass.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

# kind of the store's notes (docs/FORMAT.md, record 42)
NOTE_DELIVERIES = 16
# notes that one housekeeping pass looks at: a microsecond each
PRUNE_MOST = 1_000

_KEY = struct.Struct(">QQ")
_VALUE = struct.Struct(">H")


class DeliveryCounts:
    """Any thread. Args: store: with `note` and `notes` (LogStore)."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._noted: set[tuple[int, int]] = set()
        self._order: deque[tuple[int, int]] = deque()  # the same, in the order in which `prune` looks at them

    def __len__(self) -> int:
        return len(self._noted)

    def restore(self, queues: Mapping[int, Any]) -> int:
        """Gives the entries that came back after a restart their counts. Returns how many. Once, before anybody consumes."""
        found = 0
        for key, value in self._store.notes(NOTE_DELIVERIES).items():
            queue_id, position = _KEY.unpack(key)
            queue = queues.get(queue_id)
            if queue is not None and queue.core.set_count(position, _VALUE.unpack(value)[0]):
                found += 1
            self._add(queue_id, position)  # `prune` removes it when nothing stands there
        return found

    def note(self, queue_id: int, position: int, count: int) -> None:
        """An entry of the log has come back `count` times. Raises: StoreError."""
        self._store.note(NOTE_DELIVERIES, _KEY.pack(queue_id, position), _VALUE.pack(min(count, 0xFFFF)))
        self._add(queue_id, position)

    def prune(self, queues: Mapping[int, Any]) -> None:
        """Removes notes whose entry ended: PRUNE_MOST are looked at, the next ones in the next pass. Raises: StoreError."""
        for _ in range(min(PRUNE_MOST, len(self._order))):
            with self._lock:
                at = self._order.popleft()
            queue = queues.get(at[0])
            if queue is not None and queue.core.entry_facts(at[1]) is not None:
                with self._lock:
                    self._order.append(at)
                continue
            self._store.note(NOTE_DELIVERIES, _KEY.pack(*at), b"")
            with self._lock:
                self._noted.discard(at)

    def _add(self, queue_id: int, position: int) -> None:
        with self._lock:
            if (queue_id, position) not in self._noted:
                self._noted.add((queue_id, position))
                self._order.append((queue_id, position))
