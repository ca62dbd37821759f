"""In-memory twin of the queues of transactions: queues as plain dictionaries, and the reference of the contract.

in: calls of the port, and what a broker would do besides (add, acquire, consume). out: queues that can be looked at.

I1  Every remover acquires first: an entry that a transaction holds is nobody else's.
I2  A position is handed out once, whether it is published or not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flintmq.ports import POSITION_INDEX_BITS
from flintmq.transactions.bulk import INLINE, ROW, Octets
from flintmq.transactions.ports import Session
from tests.support.stored import StoredContent

# Owner of an entry that a transaction holds; no session equals it.
HELD = object()


@dataclass(slots=True)
class MemoryEntry:
    """`message_id`: 0 for a message that is not logged; `owner`: None = AVAILABLE."""

    message_id: int
    content: StoredContent | None
    owner: Session | None = None
    redelivered: bool = False


@dataclass(frozen=True, slots=True)
class MemoryCore:
    """A queue as a stage knows it."""

    effects: MemoryQueueEffects
    queue_id: int

    def next(self, priority: int | None) -> int:
        """The next position for a message of this priority."""
        return self.effects.reserve_next(self.queue_id, priority)


class MemoryRun:
    """See Run in effects.py."""

    def __init__(self, effects: MemoryQueueEffects, queue_id: int) -> None:
        self._effects = effects
        self.queue_id = queue_id
        self.entries: list[tuple[int, MemoryEntry]] = []

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def bytes(self) -> int:
        return sum(_body_len(entry) for _, entry in self.entries)

    @property
    def range_count(self) -> int:
        return len(self.ranges())

    def ranges(self) -> list[tuple[int, int]]:
        """(first position, count) of runs of neighbouring positions."""
        found: list[tuple[int, int]] = []
        for position, _ in self.entries:
            if found and sum(found[-1]) == position:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((position, 1))
        return found

    def positions(self) -> list[int]:
        return [position for position, _ in self.entries]

    def hold(
        self, cursor: int, messages_max: int, bytes_max: int, upto: int, alone: bool, ranges_max: int, pieces: int
    ) -> tuple[int, int, bool, int]:
        count = size = 0
        for position, entry in sorted(self._effects.queues.get(self.queue_id, {}).items()):
            if entry.owner is not None or position < cursor:
                continue
            fits = size + _body_len(entry) <= bytes_max or (alone and not count)
            if (upto and position > upto) or count == messages_max or not fits:
                break
            new_range = not self.entries or self.entries[-1][0] + 1 != position
            if new_range and self.range_count == ranges_max:
                break
            entry.owner = HELD
            self.entries.append((position, entry))
            count, size = count + 1, size + _body_len(entry)
        return count, size, False, 0

    def adopt(self, ranges: Sequence[tuple[int, int]], acquired_us: int) -> None:
        for first, count in ranges:
            for position, entry in sorted(self._effects.queues[self.queue_id].items()):
                if first <= position < first + count and entry.owner is None:
                    entry.owner = HELD
                    self.entries.append((position, entry))

    def position(self, number: int) -> int:
        return self.entries[number][0]

    def release(self) -> None:
        self._effects.release(self.queue_id, [position for position, _ in self.entries])

    def settle(self) -> None:
        """Its entries go."""
        self._effects.settle(self.queue_id, [position for position, _ in self.entries])

    def rows(self, first: int, count: int) -> tuple[Octets, list[Octets]]:
        """See HeldRun: all contents inline."""
        rows, contents = [], []
        for position, entry in self.entries[first : first + count]:
            content = entry.content
            if content is None:
                raise KeyError(position)
            rows.append(ROW.pack(position, entry.message_id, 0, len(content.body), 0, int(entry.redelivered), 0))
            route = b"".join(bytes([len(part)]) + part for part in (content.exchange, content.routing_key))
            run = route + content.header + content.body
            contents.append(INLINE.pack(len(run), len(content.header), 0) + run)
        return b"".join(rows), contents


def _body_len(entry: MemoryEntry) -> int:
    return 0 if entry.content is None else len(entry.content.body)


class MemoryQueueEffects:
    """Queues for TwinEnrolment. `levels`: priority levels of all queues (1 = none); level 0 is served first."""

    def __init__(self, levels: int = 1) -> None:
        self._lock = threading.Lock()
        self._levels = levels
        self.queues: dict[int, dict[int, MemoryEntry]] = {}
        self.ttls: dict[int, int] = {}  # queue -> milliseconds
        self._used: dict[tuple[int, int], int] = {}  # (queue, level) -> highest index handed out

    # --- what a broker does besides ---------------------------------------------------------------------------------------

    def declare(self, queue_id: int) -> None:
        """Makes an empty queue."""
        self.queues.setdefault(queue_id, {})

    def delete(self, queue_id: int) -> None:
        """The queue is gone with all its entries."""
        del self.queues[queue_id]

    def add(self, queue_id: int, content: StoredContent | None, *, message_id: int = 0, position: int = 0) -> int:
        """An entry outside any transaction, at `position` (a restart) or the next one (0). Returns its position."""
        with self._lock:
            if not position:
                position = self._next(queue_id, None)
            else:
                level, index = position >> POSITION_INDEX_BITS, position & (1 << POSITION_INDEX_BITS) - 1
                self._used[queue_id, level] = max(self._used.get((queue_id, level), 0), index)
            self.queues[queue_id][position] = MemoryEntry(message_id, content)
            return position

    def acquire(self, queue_id: int, position: int, session: Session) -> bool:
        """A consumer of the session takes the entry. False when it is not available."""
        with self._lock:
            entry = self.queues[queue_id].get(position)
            if entry is None or entry.owner is not None:
                return False
            entry.owner = session
            return True

    def available(self, queue_id: int) -> list[int]:
        """Positions of available entries, in order."""
        return [position for position, entry in sorted(self.queues[queue_id].items()) if entry.owner is None]

    # --- the port ---------------------------------------------------------------------------------------------------------

    def run(self, queue_id: int) -> MemoryRun | None:
        return MemoryRun(self, queue_id) if queue_id in self.queues else None

    def core(self, queue_id: int) -> MemoryCore | None:
        return MemoryCore(self, queue_id) if queue_id in self.queues else None

    def publish_stage(self, queue_id: int, stage: Any) -> None:
        with self._lock:
            queue = self.queues.get(queue_id)
            if queue is not None:
                for position, message_id, content in stage.placed(queue_id):
                    queue[position] = MemoryEntry(message_id, content)

    def reserve_next(self, queue_id: int, priority: int | None) -> int:
        """One position, above all that were ever used in its level."""
        with self._lock:
            return self._next(queue_id, priority)

    def ttl_ms(self, queue_id: int) -> int:
        return self.ttls.get(queue_id, -1)

    def release(self, queue_id: int, positions: Sequence[int]) -> None:
        """Of a run: AVAILABLE again."""
        with self._lock:
            for position in positions:
                entry = self.queues.get(queue_id, {}).get(position)
                if entry is not None:
                    entry.owner, entry.redelivered = None, True

    def settle(self, queue_id: int, positions: Sequence[int]) -> None:
        """Of a run: they go."""
        with self._lock:
            for position in positions:
                if queue_id in self.queues:
                    del self.queues[queue_id][position]

    def _next(self, queue_id: int, priority: int | None) -> int:
        level = self._levels - 1 - min(priority or 0, self._levels - 1)
        index = self._used[queue_id, level] = self._used.get((queue_id, level), 0) + 1
        return level << POSITION_INDEX_BITS | index
