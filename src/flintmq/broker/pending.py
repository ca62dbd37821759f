"""Connections that have not opened a virtual host yet: who goes first when there are too many.

in: connections as they come. out: the one to cut off for the next.

I1  Who takes the most places loses one: the source (access.checks.source_of) with the most pending connections, of those its oldest; among
    sources with equally many the one that has been there longest. A flood from one address costs that address alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cython import cclass

from flintmq.access.checks import source_of

if TYPE_CHECKING:
    from flintmq.broker.client import Client


@cclass
class Pending:
    """The pending connections of a node. Threads: loops, under the GIL; each call is one step of it."""

    def __init__(self) -> None:
        self._sources = {}
        self._source_of = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._source_of))

    def __contains__(self, client: object) -> bool:
        return client in self._source_of

    def add(self, client: Client) -> None:
        source = source_of(client.peer_host)
        self._source_of[client] = source
        self._sources.setdefault(source, {})[client] = None

    def discard(self, client: Client) -> None:
        source = self._source_of.pop(client, None)
        if source is None:
            return
        known: dict = self._sources[source]
        del known[client]
        if not known:
            del self._sources[source]

    def evict(self) -> Client | None:
        """Takes out the connection that makes room for another (I1). O(sources). None: there is none."""
        largest = max(self._sources.values(), key=len, default=None)
        if largest is None:
            return None
        client = next(iter(largest))
        self.discard(client)
        return client
