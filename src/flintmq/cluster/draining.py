"""This node is drained, and serves again; orders to it, and what it does about them.

in: rows of orders to this node (shared/orders.py); a stop. out: a node that serves nobody and owns nothing, and says so; queues that move.

K1  A drain goes one way until it is called off: no new connections of clients, then the open ones in slices, each after what it had not
    acked went back; then each owned queue goes to a node that is up. Nothing is claimed meanwhile. Connections of other nodes stay: they
    bring the publishes of queues that are still here.
K2  It survives nothing: a node that was drained serves again after a restart.
K3  Without another node that is up, queues stay where they are, and the node is not drained before there is one.

All of it is of the engine's thread, but where it says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from flintmq.broker.closing import close_connections
from flintmq.engines.engine import Engine, EngineError
from flintmq.guard import caught
from flintmq.shared.node_facts import DRAINED, DRAINING, UP
from flintmq.shared.node_secret import NodeId
from flintmq.shared.orders import orders_of, take_orders

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState
    from flintmq.cluster.membership import Membership
    from flintmq.cluster.moving import Mover
    from flintmq.cluster.ownership import Ownership

log = logging.getLogger("flintmq.cluster")

_TEXT = "node is drained: connect to another one"


class Draining:
    """Args: me: this node; is_client: whether a connection is a client's."""

    def __init__(
        self,
        state: NodeState,
        engine: Engine,
        ownership: Ownership,
        membership: Membership,
        mover: Mover,
        me: NodeId,
        is_client: Callable[[Client], bool],
    ) -> None:
        self._node = state
        self._limits = state.limits
        self._engine = engine
        self._ownership = ownership
        self._membership = membership
        self._mover = mover
        self._me = me
        self._is_client = is_client
        self.state = UP
        self.left = 0  # connections of clients and queues that a drain waits for
        self._is_stop = False
        self._is_ordered = False  # as the last look at the orders had it
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[bool]] = set()

    # --- begins and ends ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Idempotent."""
        if self.state != UP:
            return
        log.warning("this node is drained: no new connections, the open ones are closed, and its shared queues go to other nodes")
        self._node.draining = self._ownership.draining = True
        self._say(DRAINING)
        self._task = asyncio.get_running_loop().create_task(self._drain())

    def call_off(self) -> None:
        """The node serves again. Idempotent; nothing while it stops."""
        if self.state == UP or self._is_stop:
            return
        log.warning("this node serves again")
        if self._task is not None:
            self._task.cancel()
        self._node.draining = self._ownership.draining = False
        self.left = 0
        self._say(UP)
        self._ownership.look_at_all(served=False)

    def _say(self, state: str) -> None:
        self.state = state
        self._membership.hurry()

    def begin_stop(self) -> None:
        """The node stops: it is drained as far as there is anybody to take its queues."""
        self._is_stop = True
        if self._others_up():
            self.begin()
        else:
            self._over.set()

    def wait(self, timeout_s: float) -> bool:
        """After `begin_stop`, on another thread: until the node is drained, or nobody is there for it. False: it takes longer."""
        return self._over.wait(timeout_s)

    def _others_up(self) -> bool:
        return self._ownership.heir(b"") is not None

    # --- the drain ------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        while True:
            try:
                await self._drain_some()
            except Exception as error:
                caught("a drain", f"node {self._me.name!r}", error)
            if self._is_stop and (self.state == DRAINED or not (self._clients() or self._others_up())):
                self._over.set()
            quick = self._limits.cluster_move_look_ms if self._is_stop else self._limits.shared_poll_ms
            await asyncio.sleep(min(quick, self._limits.shared_poll_ms) / 1000)

    async def _drain_some(self) -> None:
        """The next connections; behind the last one the queues."""
        clients = self._clients()
        chosen = set(clients[: self._limits.cluster_drain_connections])
        if chosen:
            close_connections(self._node, chosen.__contains__, _TEXT)
        else:
            await self._move_some()
        self.left = len(self._clients()) + len(self._ownership.serving.all())
        state = DRAINING if self.left else DRAINED
        if state != self.state:
            log.warning("this node is %s", "drained: it can be stopped" if state == DRAINED else "drained further: something came")
            self._say(state)

    def _clients(self) -> list[Client]:
        return [client for client in list(self._node.connections.values()) if client.is_open and self._is_client(client)]

    async def _move_some(self) -> None:
        ownership = self._ownership
        moves = []
        for served in ownership.serving.all():
            entry, heir = ownership.by_row.get(served.queue), ownership.heir(served.queue)
            if entry is not None and heir is not None and not entry.moving:
                moves.append((entry, heir))
        for begin in range(0, len(moves), self._limits.cluster_moves_max):
            some = moves[begin : begin + self._limits.cluster_moves_max]
            await asyncio.gather(*(self._mover.move(entry, heir) for entry, heir in some))

    # --- orders ---------------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Orders to this node are obeyed, until it is cancelled."""
        pause_s = self._limits.shared_pause_ms_max / 1000
        while True:
            try:
                async for _ in self._engine.watch(*orders_of(self._me.name)):
                    await self._look()
            except EngineError as error:
                log.debug("orders to this node were not read: %s", error)
            except Exception as error:
                caught("the cluster", "orders to this node", error)
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        orders = await take_orders(self._engine, self._me.name, self._me.life)
        before, self._is_ordered = self._is_ordered, orders.is_drained
        if orders.is_drained and not before:
            self.begin()
        elif before and not orders.is_drained:
            self.call_off()
        for queue, to in orders.moves:
            self._begin_move(queue, to)

    def _begin_move(self, queue: bytes, to: str) -> None:
        entry, node = self._ownership.by_row.get(queue), self._membership.nodes.living.get(to)
        if entry is None or node is None or to == self._me.name:
            log.warning("shared queue %s is not moved to node %r: one of them is gone", queue.decode("ascii", "replace"), to)
            return
        task = asyncio.get_running_loop().create_task(self._mover.move(entry, NodeId(to, node.life)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """The engine's thread ends."""
        for task in [*self._tasks, *([] if self._task is None else [self._task])]:
            task.cancel()
