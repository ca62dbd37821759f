"""Rows in memory: the reference that other engines are compared with, and an engine for programs that need no durability.

in: commits of any number of clients of one store. out: as the port says; nothing survives the process.
Faults are not in here: tests/twins/faulty_engine.py puts them around any engine.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Sequence

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineLimits, Row, Unavailable, Usage, check
from flintmq.engines.feed import Feeds


class MemoryStore:
    """Rows in the order of their keys. One event loop. Args: keys_max: keys that a watch keeps for its reader."""

    def __init__(self, keys_max: int) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []  # sorted
        self.size = 0  # bytes of keys and values
        self.feeds = Feeds(keys_max)

    def slice(self, begin: bytes, end: bytes) -> tuple[int, int]:
        """Indices of the keys of a range."""
        first = bisect_left(self.keys, begin)
        return first, max(first, bisect_left(self.keys, end))

    def apply(self, commit: Commit) -> bool:
        """Judges and makes a commit. Cost: O(rows of the store) for a new key, as a list moves."""
        if any(self.rows.get(key) != value for key, value in commit.conditions):
            return False
        changed = [*commit.puts, *(key for key in commit.deletes if key in self.rows)]
        for begin, end in commit.clears:
            first, last = self.slice(begin, end)
            changed += self.keys[first:last]
            for key in self.keys[first:last]:
                self._remove(key)
        for key in commit.deletes:
            self._remove(key)
        for key, value in commit.puts.items():
            self._remove(key)
            insort(self.keys, key)
            self.rows[key] = value
            self.size += len(key) + len(value)
        self.feeds.tell(changed)
        return True

    def _remove(self, key: bytes) -> None:
        value = self.rows.pop(key, None)
        if value is not None:
            del self.keys[bisect_left(self.keys, key)]
            self.size -= len(key) + len(value)


class MemoryEngine:
    """One client of a store. Args: store; limits: of the node; alone: nobody else opens the store."""

    def __init__(self, store: MemoryStore, limits: Limits, alone: bool = False) -> None:
        self.limits = EngineLimits(
            key_bytes=limits.engine_key_bytes_max,
            value_bytes=limits.engine_value_bytes_max,
            commit_bytes=limits.engine_commit_bytes_max,
            commit_rows=limits.engine_commit_rows_max,
            alone=alone,
        )
        self.name = "memory:"
        self._store = store
        self._is_closed = False

    async def _turn(self) -> None:
        await asyncio.sleep(0)  # others run before the moment of each call, as on a server
        if self._is_closed:
            raise Unavailable("the engine is closed")

    async def connect(self) -> None:
        await self._turn()

    async def commit(self, commit: Commit) -> bool:
        check(commit, self.limits)
        await self._turn()
        return self._store.apply(commit)

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._turn()
        return [self._store.rows.get(key) for key in keys]

    async def scan(self, begin: bytes, end: bytes, rows: int, size: int, reverse: bool = False) -> list[Row]:
        await self._turn()
        first, last = self._store.slice(begin, end)
        page: list[Row] = []
        for index in reversed(range(first, last)) if reverse else range(first, last):
            if len(page) >= rows or size <= 0:
                break
            key = self._store.keys[index]
            page.append((key, self._store.rows[key]))
            size -= len(key) + len(page[-1][1])
        return page

    def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        return self._store.feeds.watch(begin, end)

    async def usage(self) -> Usage:
        await self._turn()
        return Usage(self._store.size, 0, full=False)

    async def tidy(self) -> None:
        await self._turn()

    async def close(self) -> None:
        self._is_closed = True


def open_url(url: str, limits: Limits, prefix: bytes) -> Engine:
    """`memory:`: a store of its own. Raises: ValueError: it has a name."""
    if url != "memory:":
        raise ValueError(f"{url!r}: an engine in memory has no name: memory:")
    return MemoryEngine(MemoryStore(limits.engine_watch_keys_max), limits, alone=True)
