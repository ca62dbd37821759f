"""The connections of this node to others: made when they are wanted, closed when nobody uses them.

in: addresses of nodes. out: open links, one for each purpose. A node that is low on memory reads no publishers, and one that works for a
purge or a deletion reads no further on its connection: settlements must reach it all the same.

All of it is of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flintmq.cluster.link import Link, LinkLost, NodeAddress
from flintmq.config import Limits
from flintmq.guard import guarded
from flintmq.shared.node_secret import NodeId

PUBLISHES, CONSUMERS, REQUESTS = "publishes", "consumers", "requests"
# seconds for the other nodes to be told
_STOP_S = 1.0
Then = Callable[[Link | None, LinkLost | None], object]
_Key = tuple[NodeAddress, str]


class Links:
    """Args: me: this node; secret: of the engine's nodes."""

    def __init__(self, me: NodeId, secret: bytes, limits: Limits) -> None:
        self._me = me
        self.secret = secret
        self._limits = limits
        self._open: dict[_Key, Link] = {}
        self._waiting: dict[_Key, list[Then]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def want(self, to: NodeAddress, purpose: str, then: Then) -> None:
        """Calls `then` with an open link: at once when there is one; or with the reason why there is none."""
        key = to, purpose
        link = self._open.get(key)
        if link is not None:
            then(link, None)
        elif self._stopped:
            then(None, LinkLost("this node stops"))
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            self._waiting[key] = [then]
            task = asyncio.get_running_loop().create_task(self._dial(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _dial(self, key: _Key) -> None:
        to, purpose = key
        link: Link | None = Link(self._me, to, self.secret, purpose, self._limits, lambda reason: self._ended(key))
        failure: LinkLost | None = None
        try:
            assert link is not None
            await link.open()
            self._open[key] = link
        except LinkLost as error:
            link, failure = None, error
        except asyncio.CancelledError:
            link, failure = None, LinkLost("this node stops")
        for then in self._waiting.pop(key):
            guarded("links between nodes", purpose, then, link, failure)

    def _ended(self, key: _Key) -> None:
        self._open.pop(key, None)

    def close_idle(self) -> None:
        """Closes links that nobody has used for cluster_idle_ms. O(links)."""
        before_s = asyncio.get_running_loop().time() - self._limits.cluster_idle_ms / 1000
        for link in list(self._open.values()):
            if link.is_idle and link.used_s < before_s:
                link.close()

    def close(self) -> None:
        """Closes all; users of their channels are told. A later `want` makes a new one."""
        for link in list(self._open.values()):
            link.close()

    async def stop(self) -> None:
        """Closes all for good, as far as a second allows."""
        self._stopped = True
        ends: list[asyncio.Future[None]] = [link.gone for link in self._open.values()]
        for task in self._tasks:
            task.cancel()
        ends += self._tasks
        self.close()
        if ends:
            await asyncio.wait(ends, timeout=_STOP_S)
