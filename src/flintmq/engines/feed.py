"""What one watch still has to say (E5 of the port).

in: keys that changed, or that something may have changed unseen. out: the events of one watch, for a reader at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable


class Feed:
    """Keys between an engine and one reader of a watch. One event loop.

    Args: begin, end: the range; keys_max: keys that wait at most; above it the reader is told None instead of them.
    """

    def __init__(self, begin: bytes, end: bytes, keys_max: int) -> None:
        self.begin = begin
        self.end = end
        self._keys_max = keys_max
        self._keys: set[bytes] = set()
        self._is_lost = False
        self._wake = asyncio.Event()

    def tell(self, keys: Iterable[bytes]) -> None:
        """These keys changed; those outside of the range are left out."""
        if self._is_lost:
            return  # the reader reads everything anew, and has not begun to
        self._keys.update(key for key in keys if self.begin <= key < self.end)
        if len(self._keys) > self._keys_max:
            self.lose()
        elif self._keys:
            self._wake.set()

    def lose(self) -> None:
        """Anything may have changed."""
        self._keys.clear()
        self._is_lost = True
        self._wake.set()

    async def next(self) -> frozenset[bytes] | None:
        """Waits for the next event."""
        await self._wake.wait()
        self._wake.clear()
        if self._is_lost:
            self._is_lost = False
            return None
        keys, self._keys = frozenset(self._keys), set()
        return keys


class Feeds:
    """The watches of an engine that sees every commit itself."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._feeds: list[Feed] = []

    def tell(self, keys: Iterable[bytes]) -> None:
        """Tells every watch. Cost: keys x watches."""
        if self._feeds:
            keys = tuple(keys)
        for feed in self._feeds:
            feed.tell(keys)

    async def watch(self, begin: bytes, end: bytes) -> AsyncGenerator[frozenset[bytes] | None, None]:
        """See Engine.watch. It counts from its first event on."""
        feed = Feed(begin, end, self._keys_max)
        feed.lose()
        self._feeds.append(feed)
        try:
            while True:
                yield await feed.next()
        finally:
            self._feeds.remove(feed)
