"""The cluster as its engine has it, for a program that is no node of it: nodes and queues, and the verbs on them.

in: rows of the engine. out: the same answers as a node gives (cluster/view.py), when no node answers.

A1  Whoever only looks knows of no node whether it lives, until its row changes or was the same for a lease (nodes.N2): the first question
    waits for that, for one lease at most.
A2  An engine that takes no puts takes no signs of life either: no node counts as down there.
"""

from __future__ import annotations

import asyncio
import contextlib

from flintmq.config import Limits
from flintmq.engines.engine import Engine, Full
from flintmq.errors import PeerError, ReplyCode
from flintmq.shared import node_verbs, queue_rows
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_facts import facts_of
from flintmq.shared.nodes import Nodes

# looks at the nodes in one lease: a sign of life, of which a node gives four, is seen within half its pause
_LOOKS = 16


class EngineView:
    """One event loop. Every call raises EngineError. Args: engine: of the caller, who closes it; limits: as the nodes have them."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._lease_s = limits.shared_node_lease_ms / 1000
        self._nodes = Nodes(engine, "", {}, limits)
        self._began_s: float | None = None  # the first look

    async def _look(self) -> None:
        """A1. Cost: up to a lease the first time; then one commit and one read."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(Full):  # A2
                await self._nodes.prove()
            await self._nodes.look()
            if self._began_s is None:
                self._began_s = loop.time()
            waited_s = loop.time() - self._began_s
            # a row that was read first and never changed is as old as this view
            unsure = any((self._nodes.silent_s(name) or 0) >= waited_s for name in self._nodes.living)
            if not unsure or waited_s > self._lease_s * (1 + 2 / _LOOKS):
                return
            await asyncio.sleep(self._lease_s / _LOOKS)

    async def nodes(self) -> list[dict[str, object]]:
        """All nodes by name, but those whose rows can't be read. O(nodes)."""
        await self._look()
        rows = []
        for name, node in sorted(self._nodes.known.items()):
            facts = facts_of(node)
            if facts is not None:
                rows.append(node_verbs.shown(self._nodes, name, facts, name in self._nodes.living))
        return rows

    async def queues(self) -> list[dict[str, object]]:
        """[{vhost, name, owner, epoch, messages}] by virtual host and name; messages are None: an owner knows them. O(queues).

        Raises: ValueError: a row can't be read."""
        begin, end = queue_rows.all_queues()
        size = min(self._limits.shared_definitions_page, self._engine.limits.commit_rows)
        rows: list[dict[str, object]] = []
        while page := await self._engine.scan(begin, end, size, self._limits.shared_definitions_page_bytes):
            keys = [owner_key(queue_rows.QueueRow.unpack(value).id) for _, value in page]
            for (key, _), value in zip(page, await self._engine.get(keys), strict=True):
                vhost, name = queue_rows.names_of(key)
                owner = None if value is None else Owner.unpack(value)
                node, epoch = (None, 0) if owner is None else (owner.node, owner.epoch)
                rows.append({"vhost": vhost, "name": name, "owner": node, "epoch": epoch, "messages": None})
            begin = page[-1][0] + b"\0"
        return sorted(rows, key=lambda row: (str(row["vhost"]), str(row["name"])))

    async def order(self, name: str, drained: bool) -> None:
        """See node_verbs.order."""
        await self._look()
        await node_verbs.order(self._engine, self._nodes, name, drained)

    async def remove(self, name: str) -> None:
        """See node_verbs.remove."""
        await self._look()
        await node_verbs.remove(self._engine, self._nodes, name)

    async def move(self, vhost: str, queue: str, to: str) -> None:
        """See node_verbs.move. Raises: PeerError 404, too: no such queue."""
        text = node_verbs.described(vhost, queue)
        row = await queue_rows.read(self._engine, vhost, queue)
        if row is None:
            raise PeerError(ReplyCode.NOT_FOUND, f"no shared {text}")
        await self._look()
        await node_verbs.move(self._engine, self._nodes, row.id, text, to)
