"""An empty queue goes to where its consumers are (docs/adr/0015, Placement).

in: consumers of the queues that are served here. out: moves, rarely.

A1  A queue moves when it was empty and idle, and all its consumers were clients of one other node, at cluster_placement_looks looks in a
    row; one queue in a look. The new owner looks as long before it moves the queue on, so a queue does not go back and forth.

All of it is of the engine's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flintmq.cluster.slices import Slices
from flintmq.guard import caught
from flintmq.shared.node_secret import NodeId

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState
    from flintmq.cluster.entries import Entry
    from flintmq.cluster.moving import Mover
    from flintmq.cluster.others import OtherNodes
    from flintmq.cluster.ownership import Ownership

_NODE = "node:"


class Placement:
    """Of the queues that this node serves."""

    def __init__(self, state: NodeState, ownership: Ownership, others: OtherNodes, mover: Mover) -> None:
        self._state = state
        self._limits = state.limits
        self._ownership = ownership
        self._others = others
        self._mover = mover
        self._seen: dict[bytes, tuple[str, int, int]] = {}  # id -> (node, messages that ever came, looks in a row)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._limits.cluster_placement_ms / 1000)
            try:
                await self.look()
            except Exception as error:
                caught("the cluster", "places of queues", error)

    async def look(self) -> None:
        """Once, and one move at most. O(queues and consumers here)."""
        before, self._seen = self._seen, {}
        due: tuple[Entry, str] | None = None
        slices = Slices()
        for served in self._ownership.serving.all():
            await slices.step()
            entry = self._ownership.by_row.get(served.queue)
            node = None if entry is None or self._ownership.draining else self._home(entry)
            if entry is None or node is None:
                continue
            came = served.core.enqueued_total()
            last = before.get(served.queue)
            looks = 1 + (last[2] if last is not None and last[:2] == (node, came) else 0)
            self._seen[served.queue] = node, came, looks
            if looks >= self._limits.cluster_placement_looks and due is None:
                due = entry, node
        if due is not None:
            entry, name = due
            node_row = self._others.membership.nodes.living.get(name)
            if node_row is not None and node_row.facts.get("state", "up") == "up":
                await self._mover.move(entry, NodeId(name, node_row.life))

    def _home(self, entry: Entry) -> str | None:
        """The one other node that has all consumers of an empty queue."""
        served = entry.served
        if served is None or entry.moving or served.core.ready_count() or served.core.unacked_count():
            return None
        with self._state.lock:
            clients = {consumer.client for consumer in self._state.consumers.get(entry.queue_id, ())}
        if not all(client.vhost is self._others.vhost for client in clients):
            return None
        names = {str(client.user).removeprefix(_NODE) for client in clients}
        return names.pop() if len(names) == 1 else None
