"""What a node has of the others of its engine: its membership, its links to them, and the door by which they come in.

in: the engine's secret and rows of nodes. out: queues of other nodes as windows; connections of other nodes as clients of queues here.

All of it is of the engine's thread, but where it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flintmq import __version__
from flintmq.cluster.links import Links
from flintmq.cluster.membership import Membership
from flintmq.cluster.node_door import NodeDoor
from flintmq.cluster.node_vhost import NodeVhost
from flintmq.cluster.remote_queue import RemoteQueues
from flintmq.engines.engine import Engine, EngineError
from flintmq.guard import caught
from flintmq.shared.node_secret import NodeId, engine_identity, node_secret
from flintmq.shared.nodes import Nodes

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState
    from flintmq.cluster.ownership import Ownership


class OtherNodes:
    """Args: logs: whose loops send confirms; resolve: id -> the queue, if it is served here (any thread)."""

    def __init__(self, state: NodeState, engine: Engine, nodes: Nodes, logs: Any, resolve: Callable[[bytes], Any]) -> None:
        limits = state.limits
        self._state = state
        self._engine = engine
        self._me = NodeId(nodes.name, nodes.life)
        self._ownership: Ownership | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.identity = ""  # of the engine: nodes with the same one serve the same queues; "": it was not heard of yet
        self.membership = Membership(nodes, limits, self._changed, self._doubted, self._sure)
        self.links = Links(self._me, b"", limits)
        self.remote = RemoteQueues(self.links, logs, limits, self._window_lost)
        self.vhost = NodeVhost(resolve, state.vhosts, lambda: list(state.connections.values()), limits.user_routes_max)

    def start(self, ownership: Ownership, facts: Mapping[str, Any]) -> None:
        """Joins, and lets queues be claimed after that. facts: what others are told of this node."""
        self._ownership = ownership
        self.membership.nodes.facts = {**facts, "version": __version__}
        self.remote.follow()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._join()), loop.create_task(self._watch())]

    async def _join(self) -> None:
        while True:
            try:
                secret = await node_secret(self._engine)
                break
            except (EngineError, ValueError) as error:
                caught("shared queues", "the secret of the nodes", error)
                await asyncio.sleep(self._state.limits.shared_pause_ms_max / 1000)
        self.links.secret = secret
        self.identity = engine_identity(secret)
        state: Any = self._state
        state.door = NodeDoor(self._me, secret, self.vhost, self._state.limits.cluster_channels_max)
        self._tasks.append(asyncio.get_running_loop().create_task(self._joined()))
        await self.membership.run()

    async def _joined(self) -> None:
        await self.membership.joined.wait()
        assert self._ownership is not None
        self._ownership.ready.set()

    async def _watch(self) -> None:
        assert self._ownership is not None
        while True:
            try:
                await self._ownership.watch()
            except Exception as error:
                caught("shared queues", "the watch of owners", error)
            await asyncio.sleep(self._state.limits.shared_pause_ms_max / 1000)

    def _changed(self) -> None:
        if self._ownership is not None:
            self._ownership.look_at_all(served=False)

    def _doubted(self) -> None:
        if self._ownership is not None:
            self._ownership.doubt()

    async def _sure(self) -> None:
        if self._ownership is not None:
            await self._ownership.sure()

    def _window_lost(self, queue: bytes, reason: str) -> None:
        if self._ownership is not None:
            self._ownership.window_lost(queue, reason)

    async def stop(self) -> None:
        """Links close, and this node's row goes: the others need not wait for its lease."""
        self.membership.stop()
        for task in self._tasks:
            task.cancel()
        await self.remote.stop()
        await self.membership.nodes.leave()
