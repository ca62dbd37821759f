"""One shared queue moves to another node that is up, while clients use it (docs/adr/0015, Placement).

in: a queue that is served here, and the node that is to own it. out: its owner row with that node, after all that came is in the engine.

V1  The core becomes a window first: what clients of this node publish from then on waits, in order, for the new owner.
V2  Consumers end: connections of clients are closed with 320, consumers at other nodes are cancelled, and their node does the same. What
    they had not settled goes back, so the mark says exactly what was delivered.
V3  A node that is drained closes the connections of other nodes after cluster_move_calm_ms, so that all they hold goes back. Whoever holds
    messages longer than cluster_move_ms_max keeps the queue no longer: it goes without its quiet row, and the new owner flags
    all that is there (R6).
V4  A move that fails leaves the queue to whoever the owner row names, this node by the core that it had.

All of it is of the engine's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.closing import close_connections
from flintmq.engines.engine import EngineError
from flintmq.shared.queue_log import Lost

if TYPE_CHECKING:
    from flintmq.broker.records import Consumer
    from flintmq.broker.state import NodeState
    from flintmq.cluster.entries import Entry
    from flintmq.cluster.node_vhost import NodeVhost
    from flintmq.cluster.ownership import Ownership
    from flintmq.shared.node_secret import NodeId
    from flintmq.shared.serving import Served

log = logging.getLogger("flintmq.cluster")


class Mover:
    """Args: vhost: of the connections of other nodes; cancel: ends a consumer, which is told (any thread)."""

    def __init__(self, state: NodeState, ownership: Ownership, vhost: NodeVhost, cancel: Callable[[Consumer], object]) -> None:
        self._state = state
        self._limits = state.limits
        self._ownership = ownership
        self._vhost = vhost
        self._cancel = cancel

    async def move(self, entry: Entry, to: NodeId) -> bool:
        """Hands a queue over, which takes cluster_move_ms_max at most, and then what the engine takes. Whether it has another owner now."""
        served, ownership = entry.served, self._ownership
        if served is None or entry.moving or entry.ended:
            return False
        entry.moving = True
        try:
            return await self._move(entry, served, to)
        except (Lost, EngineError, TimeoutError) as error:
            log.warning("shared queue %r in vhost %r was not moved to %s: %s", entry.name, entry.vhost, to.name, error)
            return False
        finally:
            entry.moving = False
            ownership.look(entry)

    async def _move(self, entry: Entry, served: Served, to: NodeId) -> bool:
        if not self._ownership.open_window(entry):
            return False
        entry.served = None
        self._vhost.forget(served.queue.decode())
        await self._emptied(entry, served.core)
        patience_s = self._limits.shared_waiting_ms_max / 1000
        async with asyncio.timeout(patience_s):
            await self._ownership.serving.hand_over(served.queue, to.name, to.life, partial(_is_free, served.core))
        entry.tell(served.mirror)
        log.info("shared queue %r in vhost %r is handed over to node %s", entry.name, entry.vhost, to.name)
        return True

    async def _emptied(self, entry: Entry, core: Any) -> None:
        """V2, V3."""
        loop = asyncio.get_running_loop()
        calm_s = loop.time() + self._limits.cluster_move_calm_ms / 1000
        until_s = loop.time() + self._limits.cluster_move_ms_max / 1000
        text = f"shared queue '{entry.name}' in vhost '{entry.vhost}' moved"
        ended: set[Consumer] = set()
        while True:
            # One that was on its way to the core comes later than the others.
            with self._state.lock:
                consumers = [one for one in self._state.consumers.get(entry.queue_id, ()) if one.remote is None and one not in ended]
            ended.update(consumers)
            for consumer in consumers:
                if consumer.client.vhost is self._vhost:
                    self._cancel(consumer)
            clients = {consumer.client for consumer in consumers if consumer.client.vhost is not self._vhost}
            if clients:
                close_connections(self._state, clients.__contains__, text)
            if _is_free(core) or loop.time() >= until_s:
                return
            if self._ownership.draining and loop.time() >= calm_s:
                calm_s = until_s
                close_connections(self._state, lambda client: client.vhost is self._vhost, text)
            await asyncio.sleep(self._limits.cluster_move_look_ms / 1000)


def _is_free(core: Any) -> bool:
    """Nobody holds a message, or may be given one."""
    return not core.unacked_count() and not core.consumer_count()
