"""The cluster as this node sees it, and its verbs: which nodes and queues there are, where clients go, drain, serve again, move, forget.

in: rows of nodes, as they were read last; questions and orders of administrators. out: answers for management, metrics and
connection.open-ok; orders in the engine, which the node that they are for obeys (draining.py).

Any thread: what is asked of the engine is answered on its thread, by `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq import __version__
from flintmq.cluster.draining import Draining
from flintmq.cluster.moving import Mover
from flintmq.cluster.placement import Placement
from flintmq.cluster.room import Room
from flintmq.endpoint import endpoint
from flintmq.engines.engine import EngineError
from flintmq.errors import PeerError, ReplyCode
from flintmq.shared import node_verbs
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_facts import UP, NodeFacts, facts_of, is_address, is_name

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.cluster.entries import Entry
    from flintmq.cluster.shared_queues import SharedQueues

Done = Callable[[Any, Exception | None], object]
# bytes of the hosts that connection.open-ok names
_KNOWN_HOSTS_BYTES = 255


class ClusterView:
    """Args: shared: of this node; host: by which others reach it; cancel: ends a consumer (Attachments.cancel).

    Raises: ValueError: no node has such a name, or host: others would not read what this one says of itself; or the engine is this node's
    alone.
    """

    def __init__(self, shared: SharedQueues, host: str, cancel: Callable[[Any], object]) -> None:
        name = shared.me.name
        if shared.others is None:
            raise ValueError("it needs an engine that several nodes open: etcd://HOST:PORT,HOST:PORT,...")
        if not is_name(name):
            raise ValueError(f"--node-name {name!r} is no name of a node: 1 to 128 letters, digits and . _ @ -")
        if not is_address(endpoint(host, 1)):
            raise ValueError(f"{host!r} is no host that other machines could be told: give --advertise-host a name or an address")
        self.name = name
        self._shared = shared
        self._node = shared.state
        self._limits = shared.limits
        self._others = shared.others
        self._membership = shared.others.membership
        self._nodes = self._membership.nodes
        self._since_ms = shared.state.clock.wall_ms()
        mover = Mover(shared.state, shared.ownership, shared.others.vhost, cancel)
        self.draining = Draining(shared.state, shared.thread.engine, shared.ownership, self._membership, mover, shared.me, self._is_client)
        self.placement = Placement(shared.state, shared.ownership, shared.others, mover)
        self.room = Room(shared.thread.engine, shared.limits)
        self.where: Callable[[], Mapping[str, str]] = shared.where
        self._membership.on_beat = self._update
        self._tasks: list[asyncio.Task[None]] = []

    def _is_client(self, client: Client) -> bool:
        return client.vhost is not self._others.vhost

    def start(self) -> None:
        """On the engine's thread: orders are obeyed from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self.draining.follow(), self.room.watch(), self.placement.watch())]

    def stop(self) -> None:
        """On the engine's thread, which ends."""
        self.draining.stop()
        for task in self._tasks:
            task.cancel()

    # --- this node ------------------------------------------------------------------------------------------------------

    def _facts(self) -> NodeFacts:
        draining = self.draining
        addresses = {service: address for service, address in self.where().items() if is_address(address)}
        queues = len(self._shared.ownership.serving.all())
        return NodeFacts(draining.state, __version__, addresses, self._since_ms, draining.left, queues)

    def _update(self) -> None:
        self._nodes.facts = self._facts().pack()

    @property
    def state(self) -> str:
        return self.draining.state

    @property
    def why_not(self) -> str:
        """The reason why this node is no member; "": it is."""
        return self._membership.why_not

    def drain(self) -> None:
        """Begins to drain this node. Idempotent."""
        self._shared.thread.call(self.draining.begin)

    def leave(self, timeout_s: float) -> bool:
        """The node stops: it is drained as far as the time allows. Whether all is done. Waits; idempotent."""
        return self._shared.thread.call(self.draining.begin_stop) and self.draining.wait(timeout_s)

    # --- the nodes ------------------------------------------------------------------------------------------------------

    @property
    def age_s(self) -> float | None:
        """Seconds since the engine was read; None: never."""
        return self._nodes.age_s

    @property
    def refused(self) -> int:
        """Rows of nodes that can't be read."""
        return self._nodes.unreadable + sum(facts_of(node) is None for node in self._nodes.known.values())

    def members(self) -> list[dict[str, object]]:
        """All nodes as they were when the engine was read last, this one first. O(nodes)."""
        rows = [node_verbs.shown(self._nodes, self.name, self._facts(), True)]
        living = self._nodes.living
        for name, node in sorted(self._nodes.known.items()):
            facts = facts_of(node)
            if name != self.name and facts is not None:
                rows.append(node_verbs.shown(self._nodes, name, facts, name in living))
        return rows

    def addresses(self, service: str) -> list[str]:
        """Where clients that lose this node can go: nodes that are up and not drained, the others first."""
        addresses = []
        for name, node in sorted(self._nodes.living.items()):
            facts = facts_of(node)
            if name != self.name and facts is not None and facts.state == UP:
                addresses.append(facts.addresses.get(service, ""))
        if self.state == UP:
            addresses.append(self.where().get(service, ""))
        return [address for address in addresses if address]

    def known_hosts(self, secure: bool) -> bytes:
        """The same as connection.open-ok can say it, for a client with or without TLS: as many as fit, with commas."""
        hosts = b""
        for address in self.addresses("amqps" if secure else "amqp"):
            longer = hosts + (b"," if hosts else b"") + address.encode("ascii")
            if len(longer) > _KNOWN_HOSTS_BYTES:
                break
            hosts = longer
        return hosts

    # --- the engine and the queues --------------------------------------------------------------------------------------

    def engine(self) -> dict[str, object]:
        """The engine as this node has it: how long a sign of life takes, and how much room there is."""
        usage, beat_s = self.room.usage, self._membership.beat_s
        return {
            "name": self._shared.thread.engine.name,
            "latency_ms": None if beat_s is None else round(beat_s * 1000, 3),
            "bytes": None if usage is None else usage.bytes,
            "bytes_max": None if usage is None else usage.bytes_max,
            "full": self.room.is_low,
        }

    def queues(self, done: Done) -> None:
        """[{vhost, name, owner, epoch, messages}] of the shared queues that this node knows, by name; messages are None where the owner
        did not say, or above cluster_counts_max queues. O(queues). Errors: PeerError 541."""
        self._ask(self._queues, done)

    async def _queues(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        entries = sorted(self._shared.ownership.by_row.values(), key=lambda entry: (entry.vhost, entry.name))
        most = self._shared.thread.engine.limits.commit_rows
        for begin in range(0, len(entries), most):
            some = entries[begin : begin + most]
            values = await self._shared.thread.engine.get([owner_key(entry.row.id) for entry in some if entry.row is not None])
            for entry, value in zip(some, values, strict=True):
                owner = None if value is None else Owner.unpack(value)
                name, epoch = (None, 0) if owner is None else (owner.node, owner.epoch)
                rows.append({"vhost": entry.vhost, "name": entry.name, "owner": name, "epoch": epoch, "messages": None})
        counts = await asyncio.gather(*(self._count(entry) for entry in entries[: self._limits.cluster_counts_max]))
        for row, count in zip(rows, counts, strict=False):
            row["messages"] = count
        return rows

    async def _count(self, entry: Entry) -> int | None:
        served = entry.served
        if served is not None:
            return served.core.ready_count() + served.core.unacked_count()
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def answered(counts: Any, error: Exception | None) -> None:
            if not answer.done():
                answer.set_result(None if counts is None else counts[0])

        assert entry.row is not None
        self._others.remote.counts(entry.row.id, answered)
        return await answer

    # --- orders ---------------------------------------------------------------------------------------------------------

    def order(self, name: str, done: Done) -> None:
        """Asks a node to be drained. `done` on any thread; errors: PeerError: 404 no such node, 406 it is down, 541."""
        self._ask(partial(self._order, name, True), done)

    def call_off(self, name: str, done: Done) -> None:
        """Asks a node that is drained to serve again. As `order`."""
        self._ask(partial(self._order, name, False), done)

    async def _order(self, name: str, drained: bool) -> None:
        await node_verbs.order(self._shared.thread.engine, self._nodes, name, drained)

    def remove(self, name: str, done: Done) -> None:
        """Forgets a node that is down. `done` on any thread; errors: PeerError: 404 no such node, 406 it is up, 541."""
        self._ask(partial(self._remove, name), done)

    async def _remove(self, name: str) -> None:
        await node_verbs.remove(self._shared.thread.engine, self._nodes, name)
        self._membership.hurry()

    def move(self, vhost: str, name: str, to: str, done: Done) -> None:
        """Asks the owner of a queue to give it to the node `to`. `done` on any thread; errors: PeerError: 404 no such queue or node, 406
        that node is down or drained, or nobody owns the queue now, 541."""
        self._ask(partial(self._move, vhost, name, to), done)

    async def _move(self, vhost: str, name: str, to: str) -> None:
        text = node_verbs.described(vhost, name)
        entry = next((one for one in self._shared.ownership.by_row.values() if (one.vhost, one.name) == (vhost, name)), None)
        if entry is None or entry.row is None:
            raise PeerError(ReplyCode.NOT_FOUND, f"no shared {text}")
        await node_verbs.move(self._shared.thread.engine, self._nodes, entry.row.id, text, to)

    def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done) -> None:
        def answered(result: Any, error: Exception | None) -> None:
            if isinstance(error, EngineError):
                error = PeerError(ReplyCode.INTERNAL_ERROR, "the engine of shared queues does not answer")
            done(result, error)

        self._shared.thread.run(work, answered, self._limits.shared_patience_ms / 1000)
