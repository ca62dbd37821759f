"""A node's broker: its state, and the services that all its connections share.

in: handlers of all connections, the node, the control plane. out: changes that concern more than one of them: what follows when a queue, an
exchange, a policy or a connection comes or goes.

Control-plane code runs under the GIL on a loop's thread; with several loops `lock` serialises what changes several structures.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.access.audit import Audit, LineBound
from flintmq.broker import cores, sweeps
from flintmq.broker.attachments import Attachments
from flintmq.broker.branch_queues import BranchQueues
from flintmq.broker.dead_letters import DeadLetters
from flintmq.broker.delivery_counts import DeliveryCounts
from flintmq.broker.events import Events
from flintmq.broker.expiry import Expiry
from flintmq.broker.flow import Flow
from flintmq.broker.letters import Letters
from flintmq.broker.log_exchange import LogExchange
from flintmq.broker.loops import STEP_NS
from flintmq.broker.pausing import Pauses
from flintmq.broker.pending import Pending
from flintmq.broker.queue_limits import QueueLimits
from flintmq.broker.records import ReplyQueue
from flintmq.broker.schedules import Schedules
from flintmq.broker.spans import Spans, traced_bits
from flintmq.broker.state import NodeState
from flintmq.broker.timeouts import ConsumerTimeouts
from flintmq.broker.trace import Tracer
from flintmq.channel.quotas import Quotas
from flintmq.clock import Clock
from flintmq.config import Config
from flintmq.digests import token
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.death import queue_hash
from flintmq.queue.control import QueueHandle
from flintmq.queue.retries import Retries
from flintmq.routing.route_cache import DEST_LIMITED, bury
from flintmq.transactions import TransactionCoordinator, TransactionStore
from flintmq.vhost.names import SCHEDULE, describe
from flintmq.vhost.policy import DEFAULT_POLICY
from flintmq.vhost.queue import Queue, QueueSpec
from flintmq.vhost.virtual_host import VirtualHost
from flintmq.vhost.weights import Allowance

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.stream_service import StreamService


def _swept(sweep: object) -> None:
    """The end of a deleted queue's entries has no answer."""


class Broker(NodeState):
    """The state of one node, and its services.

    Args: definitions: the Definitions port; users, permissions: flintmq.access; cluster_name: told to clients; memory_limit: bytes of which
    definitions may take a share, None: any amount.
    """

    streams: StreamService | None
    shared: Any

    def __init__(
        self,
        config: Config,
        clock: Clock,
        definitions: Any,
        users: Any,
        permissions: Any,
        cluster_name: str,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(config, clock)
        # what connection.start offers, in the order of preference
        self.mechanisms = " ".join(config.auth_mechanisms)
        self.definitions = definitions
        self.users = users
        self.permissions = permissions
        self.cluster_name = cluster_name
        self.memory_limit = memory_limit
        self.listen_name = ""
        self.connection_ids = itertools.count(1)
        self._reply_ids = itertools.count(2**63)
        self._expiring = False  # queues that nobody uses (x-expires) are looked for
        # connections that have not opened a virtual host yet
        self.pending = Pending()
        self._make_parts()
        self._make_services()

    def _make_parts(self) -> None:
        """What only some nodes have: None until the node makes it."""
        # makes the service of shared queues with the embedded engine, for the first shared queue
        self.make_shared: Callable[[], Any] | None = None
        # this node as a member of a cluster
        self.cluster: Any = None
        # the way in for other nodes of the cluster (cluster.node_door.NodeDoor)
        self.door: Any = None
        # logins by token (token_logins.TokenLogins)
        self.tokens: Any = None
        # distributed and local transactions for callers of this process and other protocols, and counts of deliveries over a restart: of a
        # durable store
        self.transactions: TransactionCoordinator | None = None
        self.branch_queues: BranchQueues | None = None
        self.delivery_counts: DeliveryCounts | None = None
        # keeps memory in bounds (memory_keeper)
        self.memory: Any = None
        # spans of messages (OpenTelemetry); set before the first connection
        self.spans: Spans | None = None
        # called at the end of each housekeeping pass with its time (monotonic, milliseconds): quick, and never waiting
        self.on_housekeeping: list[Callable[[int], None]] = []
        # called when a user or a permission changed, beside connections: any thread, and it must not wait
        self.on_rights_changed: list[Callable[[], object]] = [self._look_at_users]

    def _make_services(self) -> None:
        """Each gets the state, and of other services those that it needs."""
        limits, clock = self.limits, self.clock
        self.quotas = Quotas(limits, self.definitions.load_limits(), lambda: len(self.users))
        self.allowance: Allowance | None = None
        if self.memory_limit is not None:
            one, everybody = limits.definitions_vhost_share, limits.definitions_share
            self.allowance = Allowance(int(self.memory_limit * one), int(self.memory_limit * everybody))
        self.audit = Audit(clock, limits)
        self.lines = LineBound(clock, limits.peer_lines, limits.audit_users_max)
        self.permissions.on_refused = self.audit.refused
        self.dead_letters = DeadLetters(self)
        self.letters = Letters(self, self.dead_letters)
        self.retries = Retries(clock)
        self.queue_limits = QueueLimits(self, self.dead_letters, self.letters, self.retries)
        self.flow = Flow(self, lambda at_ms: self.expiry.index.arm(at_ms))
        self.expiry = Expiry(self, self.dead_letters, self.queue_limits, self.letters, self.retries, self.flow)
        self.retries.use(self.expiry.index)
        self.timeouts = ConsumerTimeouts(self)
        self.schedules = Schedules(self, self.dead_letters, self.queue_limits, self.quotas)
        put = self.queue_limits.put
        self.tracer = Tracer(self, put, lambda tracing: traced_bits(tracing, self.spans))
        self.events = Events(self, put)
        # None: lines of the log are no messages
        self.log_exchange = LogExchange(self, put) if self.config.log_exchange else None
        if self.log_exchange is not None:
            self.events.followers.append(self.log_exchange.follow)
        self.attachments = Attachments(self, self.events)
        self.pauses = Pauses(self, self.attachments, self.events)

    # --- virtual hosts ----------------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VirtualHost:
        """Creates a virtual host with the predeclared exchanges."""
        quotas = self.quotas.of_vhost(name)
        vhost = VirtualHost(name, self.definitions, self._new_core, self.limits, self.clock, self.allowance, quotas)
        vhost.kept.alone = self.quotas.alone
        vhost.home_call = self.loops.call_home
        vhost.use_slices(self.loops.in_slices)
        vhost.on_routes_changed = lambda exchange: self.routes.exchange_changed(vhost, exchange.name)
        vhost.on_default_route_changed = partial(self.routes.queue_changed, name)
        vhost.on_queue_created = self._queue_created
        vhost.on_queue_deleted = self._queue_deleted
        vhost.on_policy_changed = self._policy_changed
        vhost.on_exchange_deleted = lambda exchange: self._exchange_deleted(name, exchange.name)
        if self.log_exchange is not None:
            self.log_exchange.watch(vhost)
        self.events.watch(vhost)
        self.vhosts[name] = vhost
        return vhost

    def _look_at_users(self) -> None:
        """Whether there is one user only decides what one user may have remembered."""
        for vhost in list(self.vhosts.values()):
            vhost.kept.look_again()

    def _exchange_deleted(self, vhost_name: str, exchange_name: str) -> None:
        self.events.exchange_deleted(vhost_name, exchange_name)
        self.routes.exchange_deleted(vhost_name, exchange_name)

    # --- queues -----------------------------------------------------------------------------------------------------

    def _new_core(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        """Makes the core of a declared queue. Raises: PeerError when it is of a kind that this node can't have."""
        policy = spec.policy
        if spec.name == SCHEDULE:
            return self.schedules.new_core(queue_id, spec.durable)
        if policy is DEFAULT_POLICY:
            core = cores.plain(queue_id, spec.durable, self.log)
        elif policy.is_stream:
            return self._new_stream(queue_id, spec)
        elif policy.is_shared:
            return self._new_shared(queue_id, spec)
        else:
            core = cores.ordinary(queue_id, spec, self.log, self.limits, restored=not self.loops)
        core.watch(self.expiry.index)
        core.name_hash = queue_hash(spec.name.encode("utf-8", "surrogateescape"))
        return core

    def _new_stream(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        if self.streams is None:
            text = f"{describe('queue', spec.name, spec.vhost)} can't be a stream: this broker keeps nothing on disk"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        core = cores.plain(queue_id, True, None)
        cores.configure(core, spec.policy)
        self.streams.adopt(queue_id, spec, core)
        return core

    def _new_shared(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        shared = self.shared_service()
        if shared is None:
            text = f"{describe('queue', spec.name, spec.vhost)} can't be shared: this broker keeps nothing on disk"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        core: QueueHandle = shared.new_core(queue_id, spec, anew=bool(self.loops))
        return core

    def shared_service(self) -> Any:
        """Of the embedded engine with the first shared queue: the modules of an engine are a twentieth of a start."""
        with self.lock:
            if self.shared is None and self.make_shared is not None:
                self.shared = self.make_shared()
            return self.shared

    def _queue_created(self, queue: Queue) -> None:
        queue.core.owner = queue
        self.queues[queue.queue_id] = queue
        if self.loops:  # before: restored
            self.counters.queues_created += 1
        self.events.queue(queue, True)
        plain = queue.policy is DEFAULT_POLICY
        if not plain and queue.policy.is_shared and self.shared is not None:
            self.shared.created(queue)
        if queue.durable and self.log is not None and (plain or not queue.policy.is_elsewhere):
            self.log.attach(queue.core, queue.queue_id)
        if not plain:
            self._follow(queue)

    def _follow(self, queue: Queue) -> None:
        """A queue with arguments or a policy came, or its policy changed: services that serve some queues only learn whether it is one."""
        queue.followed = True
        if queue.core.destination_flags & DEST_LIMITED:
            self.limited_queues.add(queue)
        else:
            self.limited_queues.discard(queue)
        self.timeouts.follow(queue)

    def _policy_changed(self, queue: Queue) -> None:
        """The policy of a queue in use changed. Under its virtual host's lock; the caller has the routes forgotten afterwards."""
        if queue.policy.is_stream:
            if self.streams is not None:
                self.streams.follow_policy(queue)
            return
        window = self.is_window(queue)
        cores.configure(queue.core, queue.policy, window)
        if queue.policy.is_shared and self.shared is not None:
            self.shared.follow_policy(queue)
        if not window:
            self._follow(queue)
            self.letters.queue_changed(queue)
        self.attachments.follow_policy(queue)

    def _queue_deleted(self, queue: Queue) -> None:
        """The control plane deleted a queue: its consumers are cancelled, its entries are swept in slices."""
        queue_id = queue.queue_id
        self.events.queue(queue, False)
        self.counters.queue_leaves(self.queues, queue)
        self.counters.queues_deleted += 1
        if queue.name == SCHEDULE:
            self.schedules.purged(queue.vhost)
        self.expiry.forget(queue_id)
        self.letters.queue_changed(queue)
        if queue_id in self.paused or queue_id in self.resting:
            self.pauses.forget(queue)
        if queue_id in self.consumers:
            self.attachments.cancel_all(queue)
        if queue.policy is not DEFAULT_POLICY and queue.policy.is_elsewhere:
            self._elsewhere_deleted(queue)
            return
        drop = None
        if self.log is not None and (queue.durable or (self.branch_queues is not None and self.branch_queues.take_logged(queue_id))):
            drop = partial(self.log.drop_queue, queue_id)
        if self.transactions is not None:
            self.transactions.queue_deleted(queue_id, drop)
        elif drop is not None:
            drop()
        queue.core.owner = None
        if queue.followed:
            self._forget(queue)
        sweeps.run(self, queue.core, True, _swept)

    def _forget(self, queue: Queue) -> None:
        """A queue that was followed is deleted: what waits for it ends in slices."""
        self.limited_queues.discard(queue)
        self.timeouts.forget(queue)
        for ending in (self.retries.forget(queue.core), self.letters.forget(queue)):
            if ending is not None:
                self.loops.in_slices(ending)

    def _elsewhere_deleted(self, queue: Queue) -> None:
        """The messages of a stream, or of a shared queue, end where they are."""
        queue_id = queue.queue_id
        if queue.policy.is_shared:
            if self.shared is not None:
                self.shared.delete(queue_id)
            queue.core.owner = None
            if queue.followed:
                self._forget(queue)
            sweeps.run(self, queue.core, True, _swept)
            return
        if self.streams is not None:
            self.streams.delete(queue_id)
        if self.branch_queues is not None and self.branch_queues.take_logged(queue_id):
            assert self.transactions is not None and self.log is not None
            self.transactions.queue_deleted(queue_id, partial(self.log.drop_queue, queue_id))
        queue.core.owner = None

    def open_reply_queue(self, vhost: Any) -> ReplyQueue:
        """The hidden queue of a channel that consumes from the pseudo-queue of direct reply-to."""
        name = f"amq.rabbitmq.reply-to.{token(24)}"
        core = QueueHandle(next(self._reply_ids))
        core.set_name(name.encode())
        queue = ReplyQueue(name, vhost.name, core)
        core.owner = queue
        self.reply_queues[(vhost.name, name)] = queue
        return queue

    def drop_reply_queue(self, queue: ReplyQueue) -> None:
        """Its channel ended, or cancelled its consumer."""
        self.reply_queues.pop((queue.vhost, queue.name), None)
        self.routes.queue_changed(queue.vhost, queue.name)
        queue.core.mark_deleted()
        sweeps.run(self, queue.core, True, _swept)

    # --- connections ------------------------------------------------------------------------------------------------

    def connection_opened(self, client: Client) -> None:
        """A client has opened a virtual host."""
        self.counters.connections_opened += 1
        self.pending.discard(client)
        self.connections[client.connection_id] = client
        if client.vhost.tracing or self.spans is not None:
            self.tracer.follow(client)
        self.events.connection_opened(client)

    def connection_ended(self, client: Client, reason: str) -> None:
        """A client is gone, with all that it held."""
        if self.transactions is not None:
            self.transactions.session_closed(client)
        self.timeouts.connection_ended(client)
        self.flow.connection_ended(client)
        if self.connections.pop(client.connection_id, None) is None:
            self.pending.discard(client)
        else:
            self.counters.connections_closed += 1
            self.events.connection_closed(client, reason)
            self.quotas.close_connection(client.user, client.vhost.name)

    # --- the durable store ------------------------------------------------------------------------------------------

    def open_transactions(self, store: TransactionStore) -> None:
        """From now on `transactions` takes commands. `store`: the durable store, whose queues are those of this broker."""
        self.branch_queues = BranchQueues(self.queues)
        self.transactions = TransactionCoordinator(store, self.branch_queues, self.clock, self.limits)

    def restore_entries(self, store: Any) -> None:
        """After the entries of all queues came back, before a client uses them. `store`: LogStore."""
        self.delivery_counts = DeliveryCounts(store)
        self.delivery_counts.restore(self.queues)
        for queue in self.queues.values():
            # of a shared queue they come with its owner
            if queue.policy is not DEFAULT_POLICY and not queue.policy.is_shared:
                cores.restore_kind(queue.name, queue.policy, queue.core)
        self.letters.restore(store)

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def housekeeping(self, now_ms: int) -> None:
        """Expiry, limits, upkeep, queue expiry (x-expires), transactions whose time is over: only where something is to be done.
        `now_ms`: monotonic."""
        self.expiry.tick()
        self.timeouts.tick()
        self.schedules.tick()
        self.letters.tick()
        if not bury():
            self.loops.in_slices(bury)
        if self.delivery_counts is not None:
            self.delivery_counts.tick(self.loops.in_slices)
        if not self._expiring:
            self._expiring = True
            step = partial(self._expire_queues, collections.deque(self.vhosts.values()), self.clock.monotonic_ns())
            self.loops.in_slices(step, self._queues_expired)
        if self.transactions is not None:
            guarded("housekeeping of transactions", "their time-out", self.transactions.tick)
        for follow in self.on_housekeeping:
            guarded("housekeeping of parts", follow, follow, now_ms)

    def _expire_queues(self, vhosts: collections.deque[VirtualHost], now: int) -> bool:
        """A slice of the ends of queues that nobody has used for their x-expires. True: all virtual hosts were looked at."""
        until_ns = self.clock.monotonic_ns() + STEP_NS
        while vhosts:
            vhost = vhosts.popleft()
            whole = guarded("housekeeping of virtual hosts", f"vhost {vhost.name!r}", vhost.expire_queues, now, until_ns)
            if whole and vhost.unused.soonest_ns <= now:
                vhosts.append(vhost)
            if self.clock.monotonic_ns() >= until_ns:
                break
        return not vhosts

    def _queues_expired(self, done: bool) -> None:
        self._expiring = False
