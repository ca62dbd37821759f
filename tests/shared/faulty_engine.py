"""An engine in memory whose commits fail on demand: tests of a queue's log."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Sequence

from flintmq.engines.engine import Commit, EngineLimits, Full, Row, Unavailable, UnknownOutcome, Usage, check


class Store:
    """The rows, shared by the engines of several nodes."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.late: list[Commit] = []
        self.commits = 0

    def apply(self, commit: Commit) -> bool:
        if any(self.rows.get(key) != value for key, value in commit.conditions):
            return False
        self.commits += 1
        for begin, end in commit.clears:
            for key in [key for key in self.keys if begin <= key < end]:
                self._delete(key)
        for key in commit.deletes:
            self._delete(key)
        for key, value in commit.puts.items():
            if key not in self.rows:
                insort(self.keys, key)
            self.rows[key] = value
        return True

    def _delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            self.keys.remove(key)


class FaultyEngine:
    """faults: share of commits that go wrong; `full`: puts are refused."""

    def __init__(self, store: Store, seed: int, faults: float = 0.0, value_bytes: int = 1 << 20) -> None:
        self.store = store
        self.faults = faults
        self.full = False
        self.limits = EngineLimits(1024, value_bytes, 8 << 20, 1_000)
        self.name = "memory"
        self._random = random.Random(seed)

    async def connect(self) -> None: ...

    async def _pass_time(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        await self._pass_time()
        if self.store.late and self._random.random() < 0.3:
            self.store.apply(self.store.late.pop(0))
        if self.full and commit.puts:
            raise Full("no room")
        if self._random.random() < self.faults:
            kind = self._random.randrange(4)
            if kind == 0:
                raise Unavailable("not now")
            if kind == 1:
                self.store.apply(commit)
            if kind == 2:
                self.store.late.append(commit)
            raise UnknownOutcome("no answer")
        done = self.store.apply(commit)
        await self._pass_time()
        return done

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._pass_time()
        return [self.store.rows.get(key) for key in keys]

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        await self._pass_time()
        assert not reverse
        page: list[Row] = []
        for key in self.store.keys[bisect_left(self.store.keys, begin) :]:
            if key >= end or len(page) == rows or sum(len(one) + len(value) for one, value in page) >= size:
                break
            page.append((key, self.store.rows[key]))
        return page

    def watch(self, begin: bytes, end: bytes) -> AsyncIterator[frozenset[bytes] | None]:
        raise NotImplementedError

    async def usage(self) -> Usage:
        return Usage(0, 0, self.full)

    async def tidy(self) -> None: ...

    async def close(self) -> None: ...
