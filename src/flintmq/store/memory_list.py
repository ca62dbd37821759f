"""In-memory twins of the EntryList and Cursor ports: the model that the compiled lists and the stream readers are tested against.

in: message ids with priorities. out: entries in the order in which they are served. Plain and slow on purpose.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from flintmq.ports import POSITION_INDEX_BITS, EntryList, EntryState

LevelRule = Callable[[int | None, int], int]


def rabbitmq_level(priority: int | None, levels: int) -> int:
    """x-max-priority m (levels = m + 1): min(p, m), absent = 0; the highest is served first, so it is level 0."""
    return levels - 1 - min(priority or 0, levels - 1)


def qpid_level(priority: int | None, levels: int) -> int:
    """AMQP 0-10 (x-qpid-priorities n): clamp(p - max(0, 5 - ceil(n / 2)), 0, n - 1), absent = 4; the highest is level 0."""
    wanted = (4 if priority is None else priority) - max(0, 5 - (levels + 1) // 2)
    return levels - 1 - min(max(wanted, 0), levels - 1)


class MemoryEntry:
    """See ports.Entry. `state` is free to be set: the list only looks at DEQUEUED and DELETED."""

    __slots__ = ("message_id", "position", "state")

    def __init__(self, position: int, message_id: int) -> None:
        self.position = position
        self.message_id = message_id
        self.state = EntryState.AVAILABLE

    def __repr__(self) -> str:
        return f"MemoryEntry({self.position}, message {self.message_id}, {self.state.name})"


def _position(entry: MemoryEntry) -> int:
    return entry.position


class MemoryEntryList:
    """See ports.EntryList: standard with one level, a priority list with more."""

    def __init__(self, queue_id: int, levels: int = 1, level_rule: LevelRule = rabbitmq_level) -> None:
        if not 1 <= levels <= 256:
            raise ValueError("1..256 levels")
        self._queue_id = queue_id
        self._rule = level_rule
        self._entries: list[list[MemoryEntry]] = [[] for _ in range(levels)]  # per level, ascending
        self._last_index = [0] * levels

    @property
    def queue_id(self) -> int:
        return self._queue_id

    @property
    def priorities(self) -> int:
        return len(self._entries)

    def add(self, message_id: int, priority: int | None = None) -> MemoryEntry:
        level = self._rule(priority, len(self._entries))
        self._last_index[level] += 1
        entry = MemoryEntry(level << POSITION_INDEX_BITS | self._last_index[level], message_id)
        self._entries[level].append(entry)
        return entry

    def next(self, entry: MemoryEntry) -> MemoryEntry | None:
        return next(self.iterator(entry.position), None)

    def head(self) -> MemoryEntry | None:
        return next(self.iterator(), None)

    def iterator(self, after: int = 0) -> Iterator[MemoryEntry]:
        for level in range(after >> POSITION_INDEX_BITS, len(self._entries)):
            last = after
            while True:  # looks anew each time: the list may change between two steps
                entries = self._entries[level]
                at = bisect_right(entries, last, key=_position)
                if at == len(entries):
                    break
                last = entries[at].position
                yield entries[at]

    def compare(self, left: MemoryEntry, right: MemoryEntry) -> int:
        return (left.position > right.position) - (left.position < right.position)

    def remove(self, entry: MemoryEntry) -> None:
        if entry.state is not EntryState.DEQUEUED:
            raise ValueError(f"only a dequeued entry is removed, not {entry!r}")
        entries = self._entries[entry.position >> POSITION_INDEX_BITS]
        at = bisect_left(entries, entry.position, key=_position)
        del entries[at]
        entry.state = EntryState.DELETED


class MemoryCursor:
    """See ports.Cursor. Args: entries: a list with one level (a position says "everything before was read" only there)."""

    def __init__(self, entries: EntryList, group: str, committed: int = 0) -> None:
        if entries.priorities != 1:
            raise ValueError("a cursor needs a list without priorities")
        self._entries = entries
        self._group = group
        self._position = committed
        self._committed = committed

    @property
    def group(self) -> str:
        return self._group

    @property
    def position(self) -> int:
        return self._position

    @property
    def committed(self) -> int:
        return self._committed

    def next(self, count: int) -> Sequence[MemoryEntry]:
        if count < 1:
            raise ValueError("at least one entry is asked for")
        found: list[MemoryEntry] = []
        for entry in self._entries.iterator(self._position):
            found.append(entry)  # type: ignore[arg-type]
            if len(found) == count:
                break
        if found:
            self._position = found[-1].position
        return found

    def seek(self, position: int) -> None:
        if position < 0:
            raise ValueError("positions start at 1; 0 is the start")
        self._position = position
        self._committed = min(self._committed, position)

    def commit(self, position: int | None = None) -> None:
        wanted = self._position if position is None else position
        if wanted > self._position:
            raise ValueError(f"{wanted} was not read yet")
        self._committed = max(self._committed, wanted)
