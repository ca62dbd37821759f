"""Who serves each shared queue that this node knows: this node, by the core and its mirror, or the owner, through a window.

in: the engine's owner rows; nodes that come and go; queues that were declared or deleted here. out: cores of queues, which change with the
owner; consumers whose queue moved, closed.

O1  A queue that is not served here has a core that takes no message: a window of the owner's, or, on an engine without other nodes, one
    that refuses publishes.
O2  The node that declared a queue claims it. One without an owner, or whose owner is gone, goes to the first of its candidates, to the
    next ones when that one does not take it.
O3  One queue that can't be served keeps none of the others.
O4  A queue that nothing happens to costs nothing: looks begin with a change of its owner row, of the nodes, or of the queue itself.

All of it is of the engine's thread, but where it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.closing import close_connections
from flintmq.broker.cores import configure, ordinary, restore_kind
from flintmq.broker.pausing import LEASE, QUIET
from flintmq.cluster.entries import Entry
from flintmq.cluster.link import NodeAddress
from flintmq.cluster.slices import Slices
from flintmq.engines.engine import Engine, EngineError, Unavailable
from flintmq.guard import caught, guarded
from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.protocol.v0_9_1.death import queue_hash
from flintmq.queue.control import QueueHandle
from flintmq.shared import queue_rows
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_facts import UP
from flintmq.shared.node_secret import NodeId
from flintmq.shared.nodes import Node, candidates, node_key
from flintmq.shared.serving import Condition, Served, Serving
from flintmq.shared.taking_over import Taken

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.pausing import Pauses
    from flintmq.broker.state import NodeState
    from flintmq.cluster.membership import Membership
    from flintmq.cluster.remote_queue import RemoteQueues
    from flintmq.queue.due_index import DueIndex

log = logging.getLogger("flintmq.shared")

# takes-over under way at once, at a start with many queues
_AT_ONCE = 16
# owner rows that one request reads after the lease was in doubt
_LEASES_AT_ONCE = 50
_OWNERS = (b"o/", b"o0")


class Others(Protocol):
    """The other nodes of the engine."""

    @property
    def membership(self) -> Membership: ...
    @property
    def remote(self) -> RemoteQueues: ...


class Holder(Protocol):
    """Of queues that are served here, whoever has messages before consumers get any: transactions, sets of subscriptions."""

    async def begin(self, served: Served) -> None:
        """Nobody consumes yet. The caller looks afterwards whether the queue was lost meanwhile."""
        ...

    def lost(self, queue: bytes) -> None: ...


class Ownership:
    """Args: port: of the mirrors; me: this node. Attributes: others: None: no other node opens the engine; secure: None: other nodes are
    reached without TLS."""

    def __init__(self, state: NodeState, pauses: Pauses, engine: Engine, index: DueIndex, port: MirrorPort, me: NodeId) -> None:
        self._state = state
        self._limits = state.limits
        self._pauses = pauses
        self._engine = engine
        self._index = index
        self._port = port
        self._me = me
        self.others: Others | None = None
        self.secure: ssl.SSLContext | None = None
        self.holders: list[Holder] = []  # in their order
        self.serving = Serving(engine, me.name, me.life, port, self, state.limits)
        self.by_row: dict[bytes, Entry] = {}
        self.ready = asyncio.Event()  # queues may be claimed
        self.stopping = False
        self.draining = False  # nothing is claimed
        self.on_served: Callable[[Entry], object] = lambda entry: None
        self.on_lost: Callable[[Entry], object] = lambda entry: None
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- cores: any thread ----------------------------------------------------------------------------------------------

    def _core(self, entry: Entry) -> QueueHandle:
        core = ordinary(entry.queue_id, entry.spec, None, self._limits, restored=True)
        core.watch(self._index)
        core.name_hash = queue_hash(entry.name.encode("utf-8", "surrogateescape"))
        return core

    def away(self, entry: Entry) -> QueueHandle:
        """A core that refuses publishes, and has nothing to deliver (O1)."""
        core = self._core(entry)
        Mirror(core, self._port, entry.vhost).lose()
        return core

    # --- looks ----------------------------------------------------------------------------------------------------------

    def look(self, entry: Entry) -> None:
        """Something of a queue may have changed."""
        entry.news = True
        if not entry.looking and not entry.ended and not self.stopping:
            entry.looking = True
            self._keep(self._look(entry))

    def look_at_all(self, served: bool) -> None:
        """The living nodes are others, or (served: at those that are served here, too) owner rows may have changed unseen."""

        def look(entry: Entry) -> None:
            if not entry.looking and (served or entry.served is None):
                self.look(entry)

        self._in_slices(look)

    def _in_slices(self, work: Callable[[Entry], object]) -> None:
        """Begins `work` of all queues."""

        async def each() -> None:
            slices = Slices()
            for entry in list(self.by_row.values()):
                work(entry)
                await slices.step()

        self._keep(each())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, entry: Entry) -> None:
        pause_s = self._limits.shared_pause_ms_max / 1000
        try:
            while entry.news and not entry.ended and not self.stopping:
                entry.news = False
                try:
                    await self.ready.wait()
                    async with self._turns:
                        await self._settle(entry)
                    continue
                except Taken:
                    entry.news = True
                    await asyncio.sleep(self._limits.shared_pause_ms / 1000)
                    continue
                except EngineError as error:
                    log.debug("shared queue %r in vhost %r is not served yet: %s", entry.name, entry.vhost, error)
                except Exception as error:
                    caught("shared queues", f"queue {entry.name!r} in vhost {entry.vhost!r}", error)
                entry.news = True
                await asyncio.sleep(pause_s)
        finally:
            entry.looking = False

    async def _settle(self, entry: Entry) -> None:
        """Serves a queue, or aims its window at the owner. Raises: Taken, EngineError, ValueError: to be tried again."""
        if entry.row is None and not await self._define(entry):
            return
        assert entry.row is not None
        self.by_row[entry.row.id] = entry
        (value,) = await self._engine.get([owner_key(entry.row.id)])
        owner = None if value is None else Owner.unpack(value)
        if entry.moving:
            return  # whoever moves it looks again
        if entry.served is not None:
            if not self._is_mine(owner):
                self.serving.give_up(entry.row.id)  # `lost` looks again
            return
        if owner is None and await self._is_gone(entry):
            return
        if owner is not None and self._lives(owner):
            self._forward(entry, owner)
        elif self._is_turn(entry, owner):
            await self._serve(entry)

    def _is_mine(self, owner: Owner | None) -> bool:
        """An epoch that this node raises itself is no other owner."""
        return owner is not None and (owner.node, owner.life) == (self._me.name, self._me.life)

    async def _define(self, entry: Entry) -> bool:
        """Finds the row of a queue that was restored, or declared by another node. False: it is deleted there, and soon here."""
        if self.others is None:
            entry.row, _ = await queue_rows.declare(self._engine, entry.vhost, entry.name, entry.spec.arguments)
        else:
            entry.row = await queue_rows.read(self._engine, entry.vhost, entry.name)
        return entry.row is not None

    async def _is_gone(self, entry: Entry) -> bool:
        """Whether another node has deleted the queue: it ends here, too."""
        assert entry.row is not None
        row = await queue_rows.read(self._engine, entry.vhost, entry.name)
        if row is not None and row.id == entry.row.id:
            return False
        entry.ended = True
        vhost, queue = self._state.vhosts.get(entry.vhost), entry.queue
        if vhost is not None:
            log.info("shared queue %r in vhost %r was deleted on another node", entry.name, entry.vhost)
            self._state.loops.call_home(lambda: vhost.remove_by_itself(queue, lambda: True))
        return True

    def _lives(self, owner: Owner) -> bool:
        """Whether another node serves the queue."""
        if self.others is None or owner.node == self._me.name:
            return False
        return not self.others.membership.nodes.is_gone(owner.node, owner.life)

    def _is_turn(self, entry: Entry, owner: Owner | None) -> bool:
        """Whether this node is to take the queue now (O2). If not, it looks again when it would be."""
        if self.others is None or self._is_mine(owner):
            return True
        if self.draining:
            return False  # it looks again when it serves again
        if (owner is not None and owner.node == self._me.name) or (owner is None and entry.is_declared_here):
            return True
        assert entry.row is not None
        loop, lease_s = asyncio.get_running_loop(), self._limits.shared_node_lease_ms / 1000
        living = self.others.membership.nodes.living
        names = candidates(entry.row.id, {*(name for name in living if _is_up(living[name])), self._me.name})
        since_s = entry.ownerless_s = entry.ownerless_s or loop.time()
        # Whoever declared it comes first; it may be gone.
        turn = names.index(self._me.name) + (owner is None)
        due_s = since_s + turn * lease_s / 5
        if loop.time() >= due_s:
            return True
        loop.call_at(due_s, self.look, entry)
        return False

    def _judge(self, owner: Owner) -> Condition | None:
        if self.others is None or owner.node == self._me.name:
            return node_key(owner.node), None if self.others is None else self.others.membership.nodes.judged(owner.node)[1]
        return None if self._lives(owner) else self.others.membership.nodes.judged(owner.node)

    async def _serve(self, entry: Entry) -> None:
        assert entry.row is not None
        served = await self.serving.serve(entry.row.id, entry.vhost, self._judge)
        await self._hold(served)
        restore_kind(entry.name, entry.spec.policy, served.core)
        clients = self._clients(entry)  # of the core before
        if entry.ended or not self._change(entry, served.core, ours=True):
            self.serving.give_up(served.queue)
            return
        entry.served, entry.ownerless_s = served, 0.0
        if entry.forwards and self.others is not None:
            entry.forwards = False
            self.others.remote.close(entry.row.id)
        if self.others is not None and self.others.membership.in_doubt:
            self._pauses.rest(entry.queue, LEASE, True)
        if self.others is not None and served.log.owner.epoch > 1:
            log.info("shared queue %r in vhost %r is served here, with %d messages", entry.name, entry.vhost, served.taken.messages)
        guarded("shared queues", f"queue {entry.name!r}", self.on_served, entry)
        entry.tell_waiting(None)
        self._close(entry, clients)

    async def _hold(self, served: Served) -> None:
        """Messages that transactions end, or sets of subscriptions have, are nobody else's. Raises: Unavailable: it was lost meanwhile."""
        for holder in self.holders:
            await holder.begin(served)
        if self.serving.get(served.queue) is not served:
            self._forget_holders(served.queue)
            raise Unavailable("the queue was lost when it was taken over")

    def _forget_holders(self, queue: bytes) -> None:
        for holder in self.holders:
            holder.lost(queue)

    def _change(self, entry: Entry, core: QueueHandle, window: bool = False, ours: bool = False) -> bool:
        """Another core from now on. Args: ours: this node serves it. False: the queue is deleted."""

        def change() -> None:
            configure(core, entry.queue.policy, window)
            entry.queue.owned_elsewhere = not ours
            core.owner = entry.queue
            self._pauses.rest(entry.queue, QUIET, not window)
            self._pauses.rest(entry.queue, LEASE, False)  # it was of the core before
            entry.queue.core = core

        vhost = self._state.vhosts.get(entry.vhost)
        if vhost is None or not vhost.alter(entry.queue, change):
            return False
        vhost.touch(entry.queue)  # x-expires: whatever used it elsewhere
        return True

    # --- windows --------------------------------------------------------------------------------------------------------

    def _forward(self, entry: Entry, owner: Owner) -> None:
        others = self.others
        assert others is not None and entry.row is not None
        address = self.address(owner)
        if not entry.forwards and not self.open_window(entry):
            return
        entry.ownerless_s = 0.0
        others.remote.aim(entry.row.id, address)
        if address is not None:
            entry.tell_waiting(None)

    def open_window(self, entry: Entry) -> bool:
        """The queue's core is a window from now on; publishes wait until an owner is known. False: the queue is deleted."""
        assert self.others is not None and entry.row is not None
        core = QueueHandle(entry.queue_id)
        core.watch(self._index)
        self.others.remote.open(entry.row.id, core, entry.vhost)
        if not self._change(entry, core, window=True):
            self.others.remote.close(entry.row.id)
            return False
        entry.forwards = True
        return True

    def address(self, owner: Owner) -> NodeAddress | None:
        """Where the node is that owns a queue; None: it is none of the living ones."""
        assert self.others is not None
        node = self.others.membership.nodes.living.get(owner.node)
        service = "amqp" if self.secure is None else "amqps"
        host, _, port = str((node.facts if node is not None else {}).get(service, "")).rpartition(":")
        if node is None or node.life != owner.life or not port.isdigit():
            return None
        return NodeAddress(NodeId(owner.node, owner.life), host.strip("[]"), int(port), self.secure)

    def window_lost(self, queue: bytes, reason: str) -> None:
        """The owner of a window does not serve the queue, or is not reached (RemoteQueues.on_lost)."""
        entry = self.by_row.get(queue)
        if entry is not None:
            log.debug("the owner of shared queue %r in vhost %r is lost: %s", entry.name, entry.vhost, reason)
            asyncio.get_running_loop().call_later(self._limits.shared_pause_ms / 1000, self.look, entry)

    # --- Host of Serving ------------------------------------------------------------------------------------------------

    def new_mirrored(self, queue: bytes) -> QueueHandle:
        return self._core(self.by_row[queue])

    def settled(self, queue: bytes) -> None:
        self.by_row[queue].tell()

    def lost(self, queue: bytes, reason: BaseException) -> None:
        """This node serves a queue no more. Its messages, and what consumers of it hold, are others' now."""
        self._forget_holders(queue)
        entry = self.by_row[queue]
        served, entry.served = entry.served, None
        if served is None:
            return
        entry.tell(served.mirror)
        guarded("shared queues", f"queue {entry.name!r}", self.on_lost, entry)
        if entry.ended or self.stopping:
            return
        log.warning("shared queue %r in vhost %r is not served here any more: %s", entry.name, entry.vhost, reason)
        if self.others is not None:
            changed = self.open_window(entry)
        else:
            changed = self._change(entry, self.away(entry))
        if changed:
            self._close(entry, self._clients(entry))
            self.look(entry)

    def _clients(self, entry: Entry) -> set[Client]:
        """Those that consume from a queue here."""
        with self._state.lock:
            return {consumer.client for consumer in self._state.consumers.get(entry.queue_id, ())}

    def _close(self, entry: Entry, clients: set[Client]) -> None:
        """Clients find the queue's owner by connecting again."""
        if clients:
            close_connections(self._state, clients.__contains__, f"shared queue '{entry.name}' in vhost '{entry.vhost}' moved")

    # --- the lease (R11) ------------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Others may take this node's queues: it delivers nothing until it knows better."""
        assert self.others is not None
        membership = self.others.membership

        def rest(entry: Entry) -> None:
            if entry.served is not None and membership.in_doubt:
                self._pauses.rest(entry.queue, LEASE, True)

        self._in_slices(rest)

    async def sure(self) -> None:
        """The engine takes signs of life again: queues that are this node's still go on. Raises: EngineError."""
        most = min(_LEASES_AT_ONCE, self._engine.limits.commit_rows)
        lost: set[int] = set()
        while resting := [entry for entry in self.by_row.values() if self._rests(entry) and entry.queue_id not in lost]:
            for begin in range(0, len(resting), most):
                served = [(entry, entry.served) for entry in resting[begin : begin + most]]
                values = iter(await self._engine.get([owner_key(one.queue) for _, one in served if one is not None]))
                for entry, one in served:
                    value = None if one is None else next(values)
                    if one is not None and entry.served is one and not self._is_mine(None if value is None else Owner.unpack(value)):
                        lost.add(entry.queue_id)
                        self.look(entry)  # it rests until it is given up
                    else:
                        self._pauses.rest(entry.queue, LEASE, False)

    def _rests(self, entry: Entry) -> bool:
        return bool(self._state.resting.get(entry.queue_id, 0) & LEASE)

    # --- following ------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Owner rows that change, until it is cancelled."""
        async with contextlib.aclosing(self._engine.watch(*_OWNERS)) as events:
            async for keys in events:
                if keys is None:
                    self.look_at_all(served=True)
                    continue
                for key in keys:
                    entry = self.by_row.get(key[2:])
                    if entry is not None:
                        self.look(entry)

    # --- ends -----------------------------------------------------------------------------------------------------------

    def forget(self, entry: Entry) -> None:
        """A queue is deleted."""
        if entry.row is not None:
            if entry.forwards and self.others is not None:
                self.others.remote.close(entry.row.id)
            self.serving.give_up(entry.row.id)
            self.by_row.pop(entry.row.id, None)
        entry.tell_waiting(None)

    async def leave(self) -> None:
        """This node stops, and nobody publishes or consumes here any more: its queues go to others, or are left as they are."""
        self.stopping = True
        for task in list(self._tasks):
            task.cancel()
        try:
            served = self.serving.all()
            for begin in range(0, len(served), _AT_ONCE):
                await asyncio.gather(*(self._leave_one(one) for one in served[begin : begin + _AT_ONCE]), return_exceptions=True)
        finally:
            self.serving.close()

    async def _leave_one(self, served: Served) -> None:
        await served.log.drain()
        heir = self.heir(served.queue)
        if heir is not None:
            await self.serving.hand_over(served.queue, heir.name, heir.life)
        elif not served.log.is_quiet:
            await self.serving.hand_over(served.queue, self._me.name, "")

    def heir(self, queue: bytes) -> NodeId | None:
        """The node that is to have a queue after this one; None: no other one is up."""
        living = {} if self.others is None else dict(self.others.membership.nodes.living)
        living.pop(self._me.name, None)
        for name in candidates(queue, living):
            if _is_up(living[name]):
                return NodeId(name, living[name].life)
        return None


def _is_up(node: Node) -> bool:
    """Whether a node takes queues: it is not drained."""
    return bool(node.facts.get("state", UP) == UP)
