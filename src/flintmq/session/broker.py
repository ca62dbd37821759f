"""Services that all connections of a node share: virtual hosts, users, route caches, consumers, reply queues, housekeeping.

in: handlers of all connections. out: changes that concern more than one of them (a deleted queue cancels its consumers).
Control-plane code runs under the GIL on a loop's thread; with several loops `lock` serialises what changes several structures.
"""

from __future__ import annotations

import collections
import itertools
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.access.audit import Audit, LineBound
from flintmq.clock import Clock
from flintmq.config import Config
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.queue import kinds
from flintmq.queue.control import QueueHandle
from flintmq.queue.group_kinds import new_grouped, restore_groups
from flintmq.queue.last_value import new_last_value, restore_last_values
from flintmq.queue.list_kinds import LEVEL_QPID, LEVEL_RABBITMQ, LIST_PRIORITY, LIST_STANDARD
from flintmq.queue.outside import new_outside
from flintmq.routing.route_cache import DEST_LIMITED, DEST_SHARED, DEST_STREAM, RouteCache
from flintmq.session import operator_changes, sweeps
from flintmq.session.branch_queues import BranchQueues
from flintmq.session.delivery_counts import DeliveryCounts
from flintmq.session.events import Events
from flintmq.session.expiry import STEP_NS, Expiry
from flintmq.session.flow import Flow
from flintmq.session.letters import Letters
from flintmq.session.log_exchange import LogExchange
from flintmq.session.pausing import Pauses
from flintmq.session.pending import Pending
from flintmq.session.quotas import Quotas
from flintmq.session.records import Consumer
from flintmq.session.retries import Retries
from flintmq.session.schedules import Schedules
from flintmq.session.spans import Spans, traced_bits
from flintmq.session.stream_service import StreamService
from flintmq.session.timeouts import ConsumerTimeouts
from flintmq.session.trace import Tracer
from flintmq.transactions import TransactionCoordinator, TransactionStore
from flintmq.vhost.names import SCHEDULE, describe
from flintmq.vhost.policy import DEFAULT_POLICY
from flintmq.vhost.queue import Queue, QueueSpec
from flintmq.vhost.virtual_host import VirtualHost
from flintmq.vhost.weights import Allowance

if TYPE_CHECKING:
    from flintmq.session.handlers import ConnectionHandler
    from flintmq.session.loop_port import LoopPort
    from flintmq.session.shared_service import SharedService

log = logging.getLogger("flintmq.broker")


# consumers of a deleted queue that are cancelled before others of the loop have their turn
CANCELS_AT_ONCE = 32
# length of a routing key -> what stands before it in a route by the default exchange: that exchange's empty name, and the length
_DEFAULT_ROUTES = tuple(bytes((0, size)) for size in range(256))


class ReplyQueue:
    """The hidden queue behind direct reply-to: not listed, not declared, gone with its channel."""

    __slots__ = ("core", "name", "vhost")

    def __init__(self, name: str, vhost: str, core: QueueHandle) -> None:
        self.name = name
        self.vhost = vhost
        self.core = core


def _swept(sweep: object) -> None:
    """Nobody waits for the end of a deleted queue's entries."""


class Broker:
    """Shared services of one node.

    Args: definitions: the Definitions port; users, permissions: flintmq.access; cluster_name: told to clients; memory_limit: bytes of which
    definitions may take a share, None: any amount.
    """

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
        self.config = config
        # what connection.start offers, in the order of preference
        self.mechanisms = " ".join(config.auth_mechanisms)
        self.limits = config.limits
        self.clock = clock
        self.definitions = definitions
        self.users = users
        self.permissions = permissions
        self.cluster_name = cluster_name
        self.node_name = "flintmq@localhost"
        self.quotas = Quotas(self.limits, definitions.load_limits(), lambda: len(users))
        # logins by token (session.token_logins.TokenLogins); None: they are off
        self.tokens: Any = None
        self.memory_limit = memory_limit
        self.allowance: Allowance | None = None
        if memory_limit is not None:
            one, everybody = self.limits.definitions_vhost_share, self.limits.definitions_share
            self.allowance = Allowance(int(memory_limit * one), int(memory_limit * everybody))
        self.listen_name = ""
        # runs a function soon on a loop of the node: what the database has deleted that nobody waits for
        self.home_call: Callable[[Callable[[], object]], object] = lambda function: function()
        # the log of the durable store (queue.log_port.LogPort); None: nothing is logged, confirms wait for nothing
        self.log: Any = None
        # distributed and local transactions for callers of this process and other protocols; None: there is no durable store
        self.transactions: TransactionCoordinator | None = None
        self.branch_queues: BranchQueues | None = None
        # counts of deliveries over a restart; None: there is no durable store
        self.delivery_counts: DeliveryCounts | None = None
        # None: there is no durable store, and so no stream
        self.streams: StreamService | None = None
        # None: there is no shared queue (yet), and no engine was named
        self.shared: SharedService | None = None
        # makes it with the embedded engine, for the first shared queue; None: there is no durable store, and so no shared queue
        self.make_shared: Callable[[], SharedService] | None = None
        # `consumers` and who is active among them; taken inside a virtual host's lock, never the other way round
        self.lock = threading.RLock()
        # one at a time brings a queue back under its limit, or two loops would each drop a message for the same excess; taken before
        # a virtual host's lock
        self.limit_lock = threading.RLock()
        # a new object with every change of routes: who computed a route can tell whether it is still true (find_route)
        self.routes_version = object()
        self.vhosts: dict[str, VirtualHost] = {}
        # queue id -> Queue of the control plane
        self.queues: dict[int, Any] = {}
        # the I/O loops, when they are there
        self.loops: Sequence[LoopPort] = []
        # (vhost, exchange) -> routes
        self.route_caches: dict[tuple[str, str], RouteCache] = {}
        # queues that are brought back under their limits in slices, and whether a job does that now (session.publishing)
        self.over_limits: collections.OrderedDict[Any, None] = collections.OrderedDict()
        self.enforcing = False
        self._expiring = False  # queues that nobody uses (x-expires) are looked for
        # queue id -> the active one of its consumers (x-single-active-consumer); under `lock`
        self.active: dict[int, Consumer] = {}
        # queue id -> its consumers, in the order they came; ordered, as a dict walks over all who left before its first one
        self.consumers: dict[int, collections.OrderedDict[Consumer, None]] = {}
        # this node is drained (session.cluster): who opens a connection is sent to another one
        self.draining = False
        self.reply_queues: dict[tuple[str, str], ReplyQueue] = {}
        self.connections: dict[int, ConnectionHandler] = {}
        # connections that have not opened a virtual host yet
        self.pending = Pending()
        # queues with a length limit that drop their head: the housekeeping looks at what came back to them some other way than by a publish
        self.limited_queues: set[Any] = set()
        # messages end at their time, and queues that worked get their upkeep
        self.expiry = Expiry(self)
        # messages that wait before they are delivered again, and deliveries that a consumer takes too long for
        self.retries = Retries(clock, self.queues, lambda at_ms: self.expiry.index.arm(at_ms))
        self.timeouts = ConsumerTimeouts(self)
        self.pauses = Pauses(self)
        self.audit = Audit(clock, config.limits)
        self.lines = LineBound(clock, config.limits.peer_lines, config.limits.audit_users_max)
        permissions.on_refused = self.audit.refused
        # messages that are routed at a time of their own
        self.schedules = Schedules(self)
        self.letters = Letters(self)
        self.flow = Flow(self)
        self.drops: Counter[str] = Counter()
        # messages that went to a dead-letter exchange, by reason
        self.dead_lettered: Counter[str] = Counter()
        # keeps memory in bounds (session.memory_keeper); None: a broker without a node
        self.memory: Any = None
        self.connection_ids = itertools.count(1)
        self.reply_queue_ids = itertools.count(2**63)
        # called at the end of each housekeeping pass with its time (monotonic, milliseconds): quick, and never waiting
        self.on_housekeeping: list[Callable[[int], None]] = []
        self.tracer = Tracer(self)
        # spans of messages (OpenTelemetry); None: nobody wants any. Set before the first connection
        self.spans: Spans | None = None
        self.events = Events(self)
        # None: lines of the log are no messages
        self.log_exchange = LogExchange(self) if config.log_exchange else None
        if self.log_exchange is not None:
            self.events.followers.append(self.log_exchange.follow)
        self.connections_opened = 0
        # another object since each round over the connections that closes some: who opens one meanwhile asks again whether it may
        self.closings = object()
        # told when a user or a permission changed, beside connections: any thread, and it must not wait
        self.on_rights_changed: list[Callable[[], object]] = []
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.gets_empty = 0  # basic.get that found nothing

    # --- virtual hosts ----------------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VirtualHost:
        """Creates a virtual host with the predeclared exchanges."""
        quotas = self.quotas.of_vhost(name)
        vhost = VirtualHost(name, self.definitions, self._new_core, self.limits, self.clock, self.allowance, quotas)
        vhost.kept.alone = self.quotas.alone
        vhost.home_call = lambda function: self.home_call(function)
        vhost.use_slices(self.in_slices)
        vhost.on_routes_changed = lambda exchange: self._routes_changed(vhost, exchange.name)
        vhost.on_default_route_changed = partial(self._default_route_changed, name)
        vhost.on_queue_created = self._queue_created
        vhost.on_queue_deleted = self._queue_deleted
        vhost.on_policy_changed = partial(operator_changes.follow_policy, self)
        vhost.on_exchange_deleted = lambda exchange: self._exchange_deleted(name, exchange.name)
        if self.log_exchange is not None:
            self.log_exchange.watch(vhost)
        self.events.watch(vhost)
        self.vhosts[name] = vhost
        return vhost

    def _new_core(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        """Makes the core of a declared queue, with the facts that routes copy. Raises: PeerError when it is a stream that can't be."""
        policy = spec.policy
        if spec.name == SCHEDULE:
            return self.schedules.new_core(queue_id, spec.durable)
        if policy is DEFAULT_POLICY:
            core = QueueHandle(queue_id, LIST_STANDARD, 1, LEVEL_RABBITMQ)
            core.set_durable(spec.durable)
            if self.log is not None:
                core.attach_log(self.log)
            core.watch(self.expiry.index)
            return core
        if policy.is_stream:
            return self._new_stream(queue_id, spec)
        if policy.is_shared:
            return self._new_shared(queue_id, spec)
        core = self._new_ordinary(queue_id, spec)
        operator_changes.configure(core, policy)
        return core

    def _new_ordinary(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        policy = spec.policy
        kind, rule = LIST_STANDARD if policy.levels == 1 else LIST_PRIORITY, LEVEL_RABBITMQ
        if policy.qpid_priorities is not None:
            kind, rule = LIST_PRIORITY, LEVEL_QPID
        if policy.is_outside:
            core = self._new_outside(queue_id, spec)
        elif policy.last_value_key is not None:
            core = new_last_value(queue_id, policy.last_value_key, self.log, spec.durable, self.limits.last_values_max)
        elif policy.grouping is not None:
            mode, header = policy.grouping
            most, idle = self.limits.message_groups_max, self.limits.message_groups_idle_max
            core = new_grouped(queue_id, mode, header, self.log, spec.durable, kind, policy.levels, rule, most, idle)
        else:
            core = QueueHandle(queue_id, kind, policy.levels, rule)
            core.set_durable(spec.durable)
            if self.log is not None:
                core.attach_log(self.log)
        if policy.deduplicates and not policy.is_outside:
            core.set_once(self.limits.dedup_queue_max)
        core.watch(self.expiry.index)
        return core

    def restore_kinds(self) -> None:
        """After the entries of all queues came back, before anybody uses them."""
        for queue in self.queues.values():
            if queue.policy.last_value_key is not None and not queue.policy.is_outside:
                guarded("last values", f"queue {queue.name!r}", restore_last_values, queue.core)
            elif queue.policy.grouping is not None:
                guarded("message groups", f"queue {queue.name!r}", restore_groups, queue.core)

    def _new_outside(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        """A queue of a kind that others supply (queue/kinds.py). Raises: PeerError when it is declared and its kind fails."""
        name, arguments = spec.policy.queue_type, spec.arguments
        kind = kinds.find(name)
        try:
            if kind is not None:
                return new_outside(queue_id, kind.levels(arguments), self.log, lambda entries: kind.open(entries, arguments), spec.durable)
        except Exception as error:
            caught("kinds of queues", f"{name!r} for queue {spec.name!r}", error)
            if self.loops:  # it is declared now
                text = f"{describe('queue', spec.name, spec.vhost)}: its type '{name}' fails, see the broker's log"
                raise PeerError(ReplyCode.INTERNAL_ERROR, text) from error
        # Restored, and its kind is not there: all levels, so that each entry finds its place.
        core = QueueHandle(queue_id, LIST_PRIORITY, kinds.LEVELS_MAX, LEVEL_RABBITMQ)
        core.set_durable(spec.durable)
        if self.log is not None:
            core.attach_log(self.log)
        return core

    def _new_stream(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        if self.streams is None:
            text = f"{describe('queue', spec.name, spec.vhost)} can't be a stream: this broker keeps nothing on disk"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        core = QueueHandle(queue_id)
        core.set_durable(True)
        core.destination_flags = DEST_STREAM
        core.set_returns(spec.policy.delivery_limit is not None, -1, False)  # its groups count and limit by themselves; consumers are told
        self.streams.open(queue_id, spec, core)
        return core

    def _new_shared(self, queue_id: int, spec: QueueSpec) -> QueueHandle:
        shared = self.shared_service()
        if shared is None:
            text = f"{describe('queue', spec.name, spec.vhost)} can't be shared: this broker keeps nothing on disk"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        core = QueueHandle(queue_id)
        core.watch(self.expiry.index)
        core.destination_flags = DEST_SHARED
        operator_changes.configure_shared(core, spec.policy)
        shared.open(queue_id, spec, core, anew=bool(self.loops))
        return core

    def shared_service(self) -> SharedService | None:
        """Of the embedded engine with the first shared queue: the modules of an engine are a twentieth of a start."""
        with self.lock:
            if self.shared is None and self.make_shared is not None:
                self.shared = self.make_shared()
            return self.shared

    def _queue_created(self, queue: Queue) -> None:
        queue.core.owner = queue
        self.queues[queue.queue_id] = queue
        if self.loops:  # before: restored
            self.queues_created += 1
        self.events.queue(queue, True)
        if queue.durable and self.log is not None and not queue.policy.is_elsewhere:
            self.log.attach(queue.core)
        if queue.policy is not DEFAULT_POLICY:
            self.follow(queue)

    def follow(self, queue: Queue) -> None:
        """A queue with arguments or a policy came, or its policy changed: those that serve some queues only know whether it is one."""
        queue.followed = True
        if queue.core.destination_flags & DEST_LIMITED:
            self.limited_queues.add(queue)
        else:
            self.limited_queues.discard(queue)
        self.timeouts.follow(queue)

    def _forget(self, queue: Queue) -> None:
        """A queue that was followed is deleted: what waits for it ends in slices."""
        self.limited_queues.discard(queue)
        self.timeouts.forget(queue)
        for ending in (self.retries.forget(queue), self.letters.forget(queue)):
            if ending is not None:
                self.in_slices(ending)

    def _queue_deleted(self, queue: Queue) -> None:
        """The control plane deleted a queue: its consumers are cancelled, and told so when they understand it. Its entries are swept
        in slices."""
        queue_id = queue.queue_id
        self.events.queue(queue, False)
        self.queues.pop(queue_id, None)
        self.queues_deleted += 1
        if queue.name == SCHEDULE:
            self.schedules.purged(queue.vhost)
        self.expiry.forget(queue_id)
        self.letters.queue_changed(queue)
        if queue_id in self.pauses.queues:
            self.pauses.forget(queue)
        with self.lock:
            consumers = self.consumers.pop(queue_id, None)
            self.active.pop(queue_id, None)
        if consumers:
            self._cancel_all(queue, collections.deque(consumers))
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

    def _elsewhere_deleted(self, queue: Queue) -> None:
        """The messages of a stream, or of a shared queue, end where they are."""
        queue_id = queue.queue_id
        if queue.policy.is_shared:
            if self.shared is not None:
                self.shared.delete(queue_id)
            queue.core.owner = None
            sweeps.run(self, queue.core, True, _swept)
            return
        if self.streams is not None:
            self.streams.delete(queue_id)
        if self.branch_queues is not None and self.branch_queues.take_logged(queue_id):
            assert self.transactions is not None and self.log is not None
            self.transactions.queue_deleted(queue_id, partial(self.log.drop_queue, queue_id))
        queue.core.owner = None

    def _cancel_all(self, queue: Queue, consumers: collections.deque[Consumer]) -> None:
        """Cancels the consumers of a deleted queue, in slices."""

        def cancel() -> bool:
            for _ in range(min(CANCELS_AT_ONCE, len(consumers))):
                guarded("consumers of a deleted queue", f"queue {queue.name!r}", self._cancel_by_broker, consumers.popleft())
            return not consumers

        if not cancel():
            self.in_slices(cancel)

    def _cancel_by_broker(self, consumer: Consumer) -> None:
        handler = consumer.handler
        tag = consumer.tag.encode("utf-8", "surrogateescape")

        def cancel() -> None:
            # On the connection's own loop: the channel may have ended, or the client may have cancelled it, in the meantime.
            state = handler.channels.get(consumer.channel)
            if handler.ended or state is None or state.consumers.get(consumer.tag) is not consumer:
                return
            del state.consumers[consumer.tag]
            handler.consumer_left(consumer)
            handler.connection.cancel(consumer.channel, tag)
            if handler.wants_cancel:
                handler.send_later(consumer.channel, spec.BasicCancel(consumer.tag, True))

        self.on_loop_of(handler, cancel)

    def on_loop_of(self, handler: ConnectionHandler, function: Any) -> None:
        """Runs `function` on the thread that owns the connection: at once when this is it."""
        if handler.loop.is_current():
            function()
        else:
            handler.loop.call(function)

    def in_slices(self, step: Callable[[], bool], ended: Callable[[bool], object] | None = None) -> None:
        """Long work in slices: see Loop.job. Any thread: on the calling loop, or the first when no loop calls; at once while none runs."""
        if not self.loops:
            while not step():
                pass
            if ended is not None:
                ended(True)
            return
        loop = next((one for one in self.loops if one.is_current()), self.loops[0])
        loop.job(step, ended)

    # --- routes -----------------------------------------------------------------------------------------------------

    def route_cache(self, vhost: Any, exchange_name: str) -> RouteCache:
        """The route cache of an exchange, made when first published to."""
        cache = self.route_caches.get((vhost.name, exchange_name))
        if vhost.deleted:  # another one may have its name by now
            raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {vhost.name} not found")
        if cache is None:
            fresh = RouteCache(exchange_name.encode("utf-8", "surrogateescape"), self.limits.route_cache_max)
            fresh.resolver = partial(self.handles_for, vhost, exchange_name)
            cache = self.route_caches.setdefault((vhost.name, exchange_name), fresh)
            version = None
            while version is not self.routes_version:  # another loop may change bindings meanwhile
                version = self.routes_version
                cache.set_cacheable(vhost.route_is_cacheable(exchange_name))
        return cache

    def _routes_changed(self, vhost: VirtualHost, exchange_name: str) -> None:
        self.routes_version = object()
        self.letters.routes_changed(vhost.name)
        cache = self.route_caches.get((vhost.name, exchange_name))
        if cache is not None:
            cache.clear()
            if exchange_name in vhost.exchanges:
                cache.set_cacheable(vhost.route_is_cacheable(exchange_name))

    def _exchange_deleted(self, vhost_name: str, exchange_name: str) -> None:
        self.events.exchange_deleted(vhost_name, exchange_name)
        self.routes_version = object()
        self.letters.routes_changed(vhost_name)
        cache = self.route_caches.pop((vhost_name, exchange_name), None)
        if cache is not None:
            cache.close()

    def _default_route_changed(self, vhost_name: str, queue_name: str) -> None:
        self.routes_version = object()
        self.letters.routes_changed(vhost_name)
        cache = self.route_caches.get((vhost_name, ""))
        if cache is not None:
            key = queue_name.encode("utf-8", "surrogateescape")
            cache.forget(_DEFAULT_ROUTES[len(key)] + key)

    def handles_for(self, vhost: Any, exchange_name: str, key: bytes, headers: dict[str, object] | None = None) -> list[QueueHandle]:
        """Queues a message goes to, as the routing table says now."""
        if exchange_name == "":  # nothing else is bound to it, and it has no alternate
            name = key.decode("utf-8", "surrogateescape")
            found = vhost.queues.get(name)
            if key.startswith(b"amq.rabbitmq.reply-to."):
                found = self.reply_queues.get((vhost.name, name))
            return [] if found is None else [found.core]
        return [queue.core for queue in vhost.route(exchange_name, key, headers)]

    def handles_for_keys(
        self, vhost: Any, exchange_name: str, keys: Iterable[bytes], headers: dict[str, object] | None
    ) -> list[QueueHandle]:
        """The same for several keys (CC, BCC), each queue once. An alternate exchange is asked when none of them leads anywhere."""
        found: dict[QueueHandle, None] = {}
        others = list(keys)
        replies = [key for key in others if key.startswith(b"amq.rabbitmq.reply-to.")] if exchange_name == "" else []
        for key in replies:
            found.update(dict.fromkeys(self.handles_for(vhost, exchange_name, key, headers)))
        if replies:
            others = [key for key in others if key not in replies]
        if others:
            found.update(dict.fromkeys(queue.core for queue in vhost.route_keys(exchange_name, others, headers)))
        return list(found)

    # --- direct reply-to --------------------------------------------------------------------------------------------

    def open_reply_queue(self, vhost: Any) -> ReplyQueue:
        name = f"amq.rabbitmq.reply-to.{secrets.token_urlsafe(24)}"
        core = QueueHandle(next(self.reply_queue_ids))
        queue = ReplyQueue(name, vhost.name, core)
        core.owner = queue
        self.reply_queues[(vhost.name, name)] = queue
        return queue

    def drop_reply_queue(self, queue: ReplyQueue) -> None:
        self.reply_queues.pop((queue.vhost, queue.name), None)
        self._default_route_changed(queue.vhost, queue.name)
        queue.core.mark_deleted()
        sweeps.run(self, queue.core, True, lambda _: None)

    # --- consumers and connections ----------------------------------------------------------------------------------

    def consumer_came(self, consumer: Consumer) -> bool:
        """A consumer was attached. False when the queue was deleted meanwhile: the caller takes it off again."""
        queue = consumer.queue
        if isinstance(queue, ReplyQueue):
            return True
        with self.lock:
            # The virtual host sets `deleted` before it calls _queue_deleted: one of the two sees the other.
            if queue.deleted:
                return False
            known = self.consumers.setdefault(queue.queue_id, collections.OrderedDict())
            known[consumer] = None
            rests = queue.queue_id in self.pauses.queues
            first = queue.policy.single_active_consumer and queue.queue_id not in self.active
            if first:
                self.active[queue.queue_id] = consumer
        self.events.consumer(consumer, True)
        if self.shared is not None and queue.policy.is_shared:
            self.shared.want(queue.queue_id)
        vhost = self.vhosts.get(queue.vhost)
        if vhost is not None:
            vhost.consumer_added(queue)
        if first or rests:
            self.follow_activity(consumer)
        return True

    def follow_activity(self, consumer: Consumer) -> None:
        """The consumer gets messages, or waits: for its turn (x-single-active-consumer: the next is the one of the highest priority, and of
        several the one that came first), or until its queue is resumed (session.pausing P3)."""

        def follow() -> None:
            if not consumer.handler.ended and consumer.channel in consumer.handler.channels:
                queue = consumer.queue
                waits = queue.policy.single_active_consumer and self.active.get(queue.queue_id) is not consumer
                active = not waits and queue.queue_id not in self.pauses.queues
                consumer.handler.connection.activate(consumer.channel, consumer.tag.encode("utf-8", "surrogateescape"), active)

        self.on_loop_of(consumer.handler, follow)

    def consumer_gone(self, consumer: Consumer) -> None:
        """A consumer was cancelled, or its channel or connection ended: the queue may go with it (auto-delete)."""
        if isinstance(consumer.queue, ReplyQueue):
            return
        queue = consumer.queue
        following = None
        with self.lock:
            known = self.consumers.get(queue.queue_id)
            if known is None or consumer not in known:
                return  # the queue was deleted, which is why the consumer goes
            del known[consumer]
            if self.active.get(queue.queue_id) is consumer:
                del self.active[queue.queue_id]
                following = max(known, key=lambda one: one.priority, default=None)
                if following is not None:
                    self.active[queue.queue_id] = following
            if not known:
                del self.consumers[queue.queue_id]
        self.events.consumer(consumer, False)
        if following is not None:
            self.follow_activity(following)
        if self.shared is not None and queue.policy.is_shared:
            self.shared.want(queue.queue_id, left=True)
        vhost = self.vhosts.get(queue.vhost)
        if vhost is not None:
            vhost.consumer_removed(queue)

    def connection_opened(self, handler: ConnectionHandler) -> None:
        self.connections_opened += 1
        self.pending.discard(handler)
        self.connections[handler.connection_id] = handler
        if handler.vhost.tracing or self.spans is not None:
            handler.connection.set_traced(traced_bits(handler.vhost.tracing, self.spans))
        self.events.connection_opened(handler)

    def connection_ended(self, handler: ConnectionHandler, reason: str) -> None:
        if self.transactions is not None:
            self.transactions.session_closed(handler)
        self.timeouts.connection_ended(handler)
        self.flow.connection_ended(handler)
        if self.connections.pop(handler.connection_id, None) is None:
            self.pending.discard(handler)
        else:
            self.connections_closed += 1
            self.events.connection_closed(handler, reason)
            self.quotas.close_connection(handler.user, handler.vhost.name)

    # --- transactions -----------------------------------------------------------------------------------------------

    def open_transactions(self, store: TransactionStore) -> None:
        """From now on `transactions` takes commands. `store`: the durable store, whose queues are those of this broker."""
        self.branch_queues = BranchQueues(self.queues)
        self.transactions = TransactionCoordinator(store, self.branch_queues, self.clock, self.limits)

    def count_drop(self, reason: str) -> None:
        """Counts a message that left without reaching a consumer, by reason: nothing is dropped in silence."""
        with self.lock:
            self.drops[reason] += 1

    def count_drops(self, reason: str, count: int) -> None:
        """The same for several at once."""
        with self.lock:
            self.drops[reason] += count

    def add_drops(self, drops: dict[str, int]) -> None:
        """Adds what a connection counted itself."""
        if drops:
            with self.lock:
                self.drops.update(drops)

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def housekeeping(self, now_ms: int) -> None:
        """Expiry, limits, upkeep, queue expiry (x-expires), transactions whose time is over: only where something is to be done.
        `now_ms`: monotonic."""
        self.expiry.tick()
        self.timeouts.tick()
        self.schedules.tick()
        self.letters.tick()
        if self.delivery_counts is not None:
            self.delivery_counts.tick(self.in_slices)
        if not self._expiring:
            self._expiring = True
            step = partial(self._expire_queues, collections.deque(self.vhosts.values()), self.clock.monotonic_ns())
            self.in_slices(step, self._queues_expired)
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
