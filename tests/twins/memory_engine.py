"""The engine port in memory: the reference, with faults at will.

Every commit copies the whole state, and conflicts are found by comparing what was read with what is there: slow, and with nothing that the
real engines' bookkeeping could get wrong in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from flintmq.kv.engine import STAMP_BYTES, Conflict, EngineLimits, Unavailable, UnknownOutcome
from flintmq.kv.watches import KeyWatch, Watches
from flintmq.kv.writes import Request, Rows, Writes

State = dict[bytes, tuple[bytes, int]]


class Fault(Enum):
    """What happens to a commit."""

    NONE = "none"
    CONFLICT = "conflict"
    UNKNOWN_BEFORE = "unknown, and it did not happen"
    UNKNOWN_AFTER = "unknown, and it happened"
    UNAVAILABLE = "unavailable"


class MemoryEngine:
    """Args: faults: asked before each commit that writes; limits: of a transaction."""

    def __init__(self, faults: Callable[[], Fault] = lambda: Fault.NONE, limits: EngineLimits | None = None) -> None:
        self.limits = limits or EngineLimits(2048, 1 << 20, 8 << 20, 20_000, 5_000, False)
        self.name = "memory"
        self.faults = faults
        self.lock = threading.Lock()
        self.state: State = {}
        self.version = 0
        self.watches = Watches()
        self.commits = 0
        self.closed = False

    def begin(self) -> MemoryTransaction:
        if self.closed:
            raise Unavailable("closed")
        return MemoryTransaction(self, self.state)

    def close(self) -> None:
        self.closed = True

    def decide(self, request: Request, seen: State, watches: list[KeyWatch]) -> int:
        fault = Fault.NONE if request.is_empty else self.faults()
        if fault is Fault.CONFLICT:
            raise Conflict("injected")
        if fault is Fault.UNAVAILABLE:
            raise Unavailable("injected")
        if fault is Fault.UNKNOWN_BEFORE:
            raise UnknownOutcome("injected")
        with self.lock:
            if not request.is_empty:
                self._judge(request, seen)
                self.version += 1
                self.commits += 1
                state = {k: v for k, v in self.state.items() if not any(b <= k < e for b, e in request.cleared)}
                for key, value in request.writes.items():
                    if value is None:
                        state.pop(key, None)
                    else:
                        state[key] = (value, self.version)
                stamped = request.keys_of(self.version.to_bytes(STAMP_BYTES, "big"))
                state.update({key: (value, self.version) for key, value in stamped})
                changed = [key for key in {*state, *self.state} if state.get(key) != self.state.get(key)]
                self.state = state
            version = self.version if not request.is_empty else 0
            late = [watch for watch in watches if self.state.get(watch.key) != seen.get(watch.key)]
            for watch in watches:
                if watch not in late:
                    self.watches.add(watch)
        if not request.is_empty:
            self.watches.tell(changed, [])
        for watch in late:
            watch.on_change()
        if fault is Fault.UNKNOWN_AFTER:
            raise UnknownOutcome("injected")
        return version

    def _judge(self, request: Request, seen: State) -> None:
        for key in request.points:
            if seen.get(key) != self.state.get(key):
                raise Conflict(f"{key!r} changed")
        for begin, end in request.ranges:
            before = {key: value for key, value in seen.items() if begin <= key < end}
            if before != {key: value for key, value in self.state.items() if begin <= key < end}:
                raise Conflict(f"{begin!r} to {end!r} changed")


class MemoryTransaction:
    """See flintmq.kv.engine.Transaction."""

    def __init__(self, engine: MemoryEngine, seen: State) -> None:
        self._engine = engine
        self._seen = seen
        self._writes = Writes(engine.limits)
        self._watches: list[KeyWatch] = []

    def get(self, key: bytes, snapshot: bool = False) -> bytes | None:
        if not snapshot:
            self._writes.request.points.add(key)
        decided, value = self._writes.own(key)
        if decided:
            return value
        found = self._seen.get(key)
        return None if found is None else found[0]

    def range(self, begin: bytes, end: bytes, limit: int, reverse: bool = False, snapshot: bool = False) -> Rows:
        rows = self._writes.merge(self._fetch, begin, end, limit, reverse)
        if not snapshot:
            self._writes.declare_range(begin, end, rows, limit, reverse)
        return rows

    def _fetch(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        rows = sorted((key, value) for key, (value, _) in self._seen.items() if begin <= key < end)
        return (rows[::-1] if reverse else rows)[:limit]

    def set(self, key: bytes, value: bytes) -> None:
        self._writes.set(key, value)

    def clear(self, key: bytes) -> None:
        self._writes.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._writes.clear_range(begin, end)

    def require(self, key: bytes) -> None:
        self._writes.request.points.add(key)

    def require_range(self, begin: bytes, end: bytes) -> None:
        self._writes.request.ranges.append((begin, end))

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self._writes.set_stamped(prefix, suffix, value)

    def watch(self, key: bytes, told: Callable[[], None]) -> KeyWatch:
        watch = KeyWatch(self._engine.watches, key, told)
        self._watches.append(watch)
        return watch

    def commit(self) -> int:
        return self._engine.decide(self._writes.request, self._seen, self._watches)

    def close(self) -> None:
        pass
