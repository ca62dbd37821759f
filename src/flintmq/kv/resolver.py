"""Optimistic concurrency for engines whose commits pass one place: what was written lately, and which reads that makes out of date.

in: decided transactions. out: whether a further one may be decided.

R1  A write is forgotten only when no transaction that may still commit read a version before it; older ones are refused as too old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from flintmq.kv.engine import Conflict, TooOld
from flintmq.kv.writes import Request

Ranges = list[tuple[bytes, bytes]]


class Resolver:
    """Not thread-safe: commits pass one by one.

    Args: writes_max: rows written that are remembered; a transaction that read before them is too old.
    """

    def __init__(self, writes_max: int) -> None:
        self._writes_max = writes_max
        self._newest: dict[bytes, int] = {}  # key -> version that wrote it last
        self._recent: deque[tuple[int, Collection[bytes], Ranges]] = deque()
        self._count = 0
        self._floor = 0  # reads below it can't be judged any more

    def forget_all(self, version: int) -> None:
        """A noted commit did not happen, or is not known: reads before `version` can't be judged any more."""
        self._newest.clear()
        self._recent.clear()
        self._count = 0
        self._floor = version

    def check(self, request: Request) -> None:
        """Raises: Conflict when a declared read is out of date, TooOld when that is not known any more."""
        if not request.points and not request.ranges:
            return
        version = request.read_version
        if version < self._floor:
            raise TooOld("the transaction is too old")
        if not self._recent or self._recent[-1][0] <= version:
            return
        for key in request.points:
            if self._newest.get(key, 0) > version:
                raise Conflict("a key that was read has changed")
        for written, keys, cleared in reversed(self._recent):
            if written <= version:
                return
            for begin, end in cleared:
                if any(begin <= key < end for key in request.points) or any(b < end and begin < e for b, e in request.ranges):
                    raise Conflict("what was read has been cleared")
            for begin, end in request.ranges:
                if any(begin <= key < end for key in keys):
                    raise Conflict("a range that was read has changed")

    def changed_since(self, key: bytes, version: int) -> bool:
        """Whether the key was written after `version`; True when that is not known any more."""
        if version < self._floor or self._newest.get(key, 0) > version:
            return True
        for written, _, cleared in reversed(self._recent):
            if written <= version:
                return False
            if any(begin <= key < end for begin, end in cleared):
                return True
        return False

    def note(self, version: int, keys: Collection[bytes], cleared: Ranges) -> None:
        """A transaction was decided."""
        for key in keys:
            self._newest[key] = version
        self._recent.append((version, keys, cleared))
        self._count += len(keys) + len(cleared)
        while self._count > self._writes_max and len(self._recent) > 1:
            oldest, gone, ranges = self._recent.popleft()
            self._count -= len(gone) + len(ranges)
            self._floor = oldest
            for key in gone:
                if self._newest.get(key) == oldest:
                    del self._newest[key]
