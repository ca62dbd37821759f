"""VirtualHost: the names of one vhost and every verb on them.

in: plain Python parameters of declare, delete, bind, unbind, purge; routing questions. out: Queue and Exchange objects, lists of
queues, PeerErrors with RabbitMQ's texts, calls on the Definitions port and on the hooks.

I1  Everything is under one lock, and no hook or factory is called that may wait for another thread.
I2  A durable thing is in Definitions before a verb is over; a binding is durable when both its ends are. A verb is a generator, which
    `perform` or `run` runs (changes.py): asked for by `perform`, it leaves the database's work to the database's own thread.
I3  Every change that can alter a route calls `on_routes_changed` for each exchange it may concern, over exchange-to-exchange
    bindings and alternates, after the change is in place; queues coming and going call `on_default_route_changed`.
I4  A routing walk visits an exchange once, so cycles of bindings or alternates end; a queue is listed once (walk.py).
I5  Names with "amq." are the broker's; the default exchange can be neither declared, deleted nor bound.
I6  No verb and no end of a connection holds the lock for longer than a slice: what takes many bindings or queues with it goes in pieces,
    with its name held (changes.py).
I7  What goes by itself (x-expires, auto-delete) and can't be deleted now, because the database refuses, stays as it is and is tried
    again; nothing else is held up by it.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from flintmq.clock import Clock, SystemClock
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.guard import guarded
from flintmq.patterns import Among
from flintmq.ports import BindingRecord, Definitions, ExchangeRecord, QueueRecord
from flintmq.routing.binding import EXCHANGE, QUEUE, BindingIdentity, Destination, binding_identity
from flintmq.routing.exchange import DEFAULT_EXCHANGE, Binding, DefaultExchange, Exchange, erlang_term
from flintmq.routing.kept import Kept
from flintmq.routing.kinds import EXCHANGE_KINDS
from flintmq.store.sql.changes import Delete, Save
from flintmq.vhost import equivalence
from flintmq.vhost.arguments import CLASSIC, MODULES
from flintmq.vhost.changes import Call, Changes, Names, Verb
from flintmq.vhost.lookup import Lookup
from flintmq.vhost.names import PREDECLARED, RESERVED_PREFIX, generate_queue_name
from flintmq.vhost.policies import Policies
from flintmq.vhost.policy import DEFAULT_POLICY, QueuePolicy, parse_queue_arguments
from flintmq.vhost.queue import Queue, QueueCore, QueueSpec
from flintmq.vhost.refusals import Refusals
from flintmq.vhost.restoring import Restoring
from flintmq.vhost.scheduling import Scheduling
from flintmq.vhost.spreading import InSlices, Spreading
from flintmq.vhost.stream_arguments import check_lasting_properties
from flintmq.vhost.unused import UnusedQueues
from flintmq.vhost.weights import Allowance, Holding, binding_bytes, exchange_bytes, queue_bytes

log = logging.getLogger("flintmq.vhost")

QueueFactory = Callable[[int, QueueSpec], QueueCore]


# bindings, or exclusive queues, that go in one slice, and nanoseconds after which it takes no further one
PIECE = 16
PIECE_NS = 50_000
# of objects whose deletion is under way, and not tried again until then
_UNDER_WAY = 2**63


def _ignore(*_: object) -> None:
    """A hook nobody listens to."""


def _binding_names(identity: BindingIdentity) -> Names:
    """The binding itself, and its ends, which must stay what they are while it changes."""
    source, kind, destination = identity[:3]
    ends = ((EXCHANGE, source), (kind, destination))
    return Names((identity,), ends if ends[0] != ends[1] else ends[:1])


def _log_error(result: Any, error: Exception | None) -> None:
    """The end of a verb that nobody asked for."""
    if error is not None:
        log.error("a definition is not changed: %s", error, exc_info=None if isinstance(error, StoreError | PeerError) else error)


class VirtualHost(Lookup, Restoring, Scheduling, Refusals):
    """One vhost.

    Args: name; definitions: where durable things go; queue_factory: makes the core of a new queue; limits; clock (x-expires); allowance:
    memory for definitions (None: any amount); quotas: what the operator set for this vhost (ports.LimitsRecord).

    Hooks (attributes; called under the lock, must not wait): on_routes_changed(exchange), on_default_route_changed(queue name), and
    on_queue_created, on_queue_deleted, on_policy_changed (queue), on_exchange_created, on_exchange_deleted (exchange).
    """

    def __init__(
        self,
        name: str,
        definitions: Definitions,
        queue_factory: QueueFactory,
        limits: Limits | None = None,
        clock: Clock | None = None,
        allowance: Allowance | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.binding_count = 0  # without the implicit ones of the default exchange
        self.binding_bytes = 0  # of their arguments, in memory
        self.on_routes_changed: Callable[[Exchange], None] = _ignore
        self.on_default_route_changed: Callable[[str], None] = _ignore
        self.on_queue_created: Callable[[Queue], None] = _ignore
        self.on_queue_deleted: Callable[[Queue], None] = _ignore
        self.on_exchange_created: Callable[[Exchange], None] = _ignore
        self.on_exchange_deleted: Callable[[Exchange], None] = _ignore
        self.on_policy_changed: Callable[[Queue], None] = _ignore
        self.policies = Policies((limits or Limits()).consumer_timeout_ms)
        # the type of a durable queue whose declaration names none; None: classic
        self.default_queue_type: str | None = None
        # exchanges for which some user has topic permissions: each publish to them asks for its routing key
        self.keyed: set[str] = set()
        # its definitions are gone: nothing is saved any more, and what is declared is refused
        self.deleted = False
        self.tracing = False  # its messages are copied for the firehose (broker/trace.py)
        self._definitions = definitions
        self._queue_factory = queue_factory
        self._limits = limits or Limits()
        self.holding = Holding(allowance)  # what its definitions take of memory
        self.kept = Kept()  # of what its exchanges remember of messages
        self._quotas = quotas or {}
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self.spreading = Spreading(self._lock, self._clock, self._leading, lambda exchange: self.on_routes_changed(exchange))
        self._changes = Changes(name, self._lock, definitions, self.spreading)
        self.perform, self.run = self._changes.perform, self._changes.run  # one of the verbs below
        # runs a function soon on a thread of the node: what goes by itself when the database has deleted it
        self.home_call: Call = lambda function: function()
        self._exclusive: dict[int, dict[str, Queue]] = {}  # connection id -> its exclusive queues
        self.unused = UnusedQueues(self._clock)
        # What should be gone and is not: the database refused its deletion. -> when it is tried again (monotonic, ns)
        self._put_off: dict[Queue | Exchange, int] = {}
        self._alternate_of: dict[str, dict[Exchange, None]] = {}  # name -> exchanges that name it as their alternate
        self.exchanges[DEFAULT_EXCHANGE] = DefaultExchange(self.queues.get)
        for exchange_name, kind, internal in PREDECLARED:
            self.exchanges[exchange_name] = EXCHANGE_KINDS[kind](exchange_name, durable=True, internal=internal)
            self.exchanges[exchange_name].limit(self._limits)
        self.predeclared = len(self.exchanges)

    # --- verbs that nobody waits for ------------------------------------------------------------------------------------

    def is_held(self, queue_name: str) -> bool:
        """Whether a queue of this name is being declared or deleted now."""
        return self._changes.is_held((QUEUE, queue_name))

    def settled(self, queue_name: str) -> Verb[None]:
        """A verb without an effect: it is over when nobody declares or deletes the queue."""
        yield Names(shared=((QUEUE, queue_name),))

    # --- looking up ---------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Raises: PeerError 404 `no exchange 'x' in vhost '/'`."""
        known = self.exchanges.get(name)
        if known is None:
            raise PeerError(ReplyCode.NOT_FOUND, f"no {self.describe(EXCHANGE, name)}")
        return known

    def queue(self, name: str, connection_id: int | None = None) -> Queue:
        """A queue that the connection may use. `connection_id` None: the broker itself, which may use every queue.

        Raises: PeerError 404 `no queue 'q' in vhost '/'`; 405 when it is another connection's exclusive queue.
        """
        known = self.queues.get(name)
        if known is None:
            raise PeerError(ReplyCode.NOT_FOUND, f"no {self.describe(QUEUE, name)}")
        if known.exclusive_owner is not None and connection_id is not None and known.exclusive_owner != connection_id:
            raise self._locked(known)
        return known

    def check_publish(self, exchange_name: str) -> Exchange:
        """The exchange of a publish. Raises: PeerError 404, or 403 for an internal exchange."""
        exchange = self.exchange(exchange_name)
        if exchange.internal:
            raise PeerError(ReplyCode.ACCESS_REFUSED, f"cannot publish to internal {self.describe(EXCHANGE, exchange_name)}")
        return exchange

    # --- changes of routes -----------------------------------------------------------------------------------------------

    def _routes_changed(self, *changed: Exchange) -> None:
        """Tells the hook of these exchanges and of all that lead to them (spreading.py)."""
        if changed:
            self.spreading.add(changed)

    def _leading(self, exchange: Exchange) -> Collection[Exchange]:
        """Exchanges that lead to this one: bound to it, or with it as their alternate. Copied."""
        alternates = self._alternate_of.get(exchange.name)
        if not alternates and not exchange.upstream:
            return ()
        return [*exchange.upstream, *(alternates or ())]

    def _default_route_changed(self, queue_name: str) -> None:
        self.on_default_route_changed(queue_name)
        leading = self._alternate_of.get(DEFAULT_EXCHANGE)
        if leading:
            self._routes_changed(*leading)

    # --- what an operator changes ---------------------------------------------------------------------------------------

    def _queue_policy(self, name: str, arguments: Mapping[str, Any] | None, among: Among | None = None) -> QueuePolicy:
        """What arguments and policies ask for, of a queue that exists."""
        own = parse_queue_arguments(arguments, self.describe(QUEUE, name), restored=True) if arguments else DEFAULT_POLICY
        return self.policies.queue_policy(name, own, arguments or {}, among)

    def use_slices(self, in_slices: InSlices) -> None:
        """From now on long work of a verb is done in slices (I6)."""
        self._changes.in_slices = self.spreading.in_slices = in_slices

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        self._quotas = quotas  # from now on

    def follow_policies(self, kind: str, names: Iterable[str], among: Among | None = None) -> None:
        """Queues, or exchanges, are what the policies of now make of them. O(names, and bindings of queues whose policy changed).

        The lock is held for one name at a time, and not while patterns are searched. Policies change only when those before them are
        followed (definitions.L1), so nobody puts another policy over one that is newer. Args: among: what all its searches share.
        """
        for name in names:
            if kind == QUEUE:
                queue = self.queues.get(name)
                policy = None if queue is None else self._queue_policy(name, queue.arguments, among)
                with self._lock:
                    if queue is not None and policy is not None and self.queues.get(name) is queue:
                        self._follow(queue, policy)
            elif (exchange := self.exchanges.get(name)) is not None:
                alternate = self.policies.alternate(name, exchange.arguments, among)
                with self._lock:
                    if self.exchanges.get(name) is exchange:
                        self._lead_to(exchange, alternate)

    def _follow(self, queue: Queue, policy: QueuePolicy) -> None:
        before = queue.policy
        if policy != before:
            queue.policy = policy
            self.unused.follow(queue, before.expires_ms)
            self.alter(queue, lambda: self.on_policy_changed(queue))

    def alter(self, queue: Queue, change: Callable[[], object]) -> bool:
        """Changes, under the lock, what routes have copies of. False: the queue is deleted."""
        with self._lock:
            if not queue.deleted:
                change()
                self._routes_changed(*dict.fromkeys(binding.source for binding in (queue.bindings or {}).values()))
                self._default_route_changed(queue.name)
            return not queue.deleted

    def set_keyed(self, names: Iterable[str]) -> None:
        """Exchanges for which some user has topic permissions."""
        with self._lock:
            before, self.keyed = self.keyed, set(names)
            self._routes_changed(*(self.exchanges[name] for name in before ^ self.keyed if name in self.exchanges))

    def end_some(self, most: int) -> bool:
        """Some of a vhost whose definitions are gone ends. True: all has. Hooks are called as for single deletions."""
        with self._lock:
            self.deleted = True
            self._drop_schedule()
            for queue in list(itertools.islice(self.queues.values(), most)):
                if queue.bound and not self._end_some_bindings(queue):
                    return False
                guarded("queues of a deleted virtual host", queue, self._drop_queue, queue)
                self.queues.pop(queue.name, None)
            if self.queues:
                return False
            for exchange in list(itertools.islice(self.exchanges.values(), most)):
                if exchange.bindings and not self._end_some_bindings(exchange):
                    return False
                self.exchanges.pop(exchange.name, None)
                self.on_exchange_deleted(exchange)
            if self.exchanges:
                return False
            self.holding.add(-self.holding.bytes)
            return True

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
        allow: Callable[[], object] | None = None,
    ) -> Verb[Exchange]:
        """exchange.declare. Declaring again with the same properties changes nothing. `allow` as of declare_queue.

        Raises: PeerError 403 default or reserved name; 404 passive and not there; 406 unknown kind, other properties, limit.
        """
        self._refuse_default(name)
        yield Names(shared=((EXCHANGE, name),))
        if passive:
            return self.exchange(name)
        exchange_class = EXCHANGE_KINDS.get(kind)
        if exchange_class is None:
            raise PeerError(ReplyCode.COMMAND_INVALID, f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")
        description = self.describe(EXCHANGE, name)
        arguments = dict(arguments) if arguments else {}
        known = self.exchanges.get(name)
        if known is not None:
            equivalence.check_exchange(known, description, kind, durable, auto_delete, internal, arguments)
            return known
        self._check_new_name(EXCHANGE, name)
        alternate = arguments.get("alternate-exchange")
        if "alternate-exchange" in arguments and not isinstance(alternate, str):
            shown = erlang_term(alternate)[0]
            text = f"invalid type '{shown}' for arg 'alternate-exchange' in {description}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        exchange_class.check(arguments)
        if allow is not None:
            allow()
        exchange = exchange_class(name, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments)
        own = len(self.exchanges) - self.predeclared  # those of the broker are not the client's
        self._check_limit(EXCHANGE, name, own, self._limits.exchanges_max, exchange_bytes(exchange))
        if durable:
            self._check_not_deleted()
            yield Names(alone=((EXCHANGE, name),))
            yield Save(ExchangeRecord(self.name, name, kind, auto_delete, internal, arguments))
        self._add_exchange(exchange)
        return exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Verb[bool]:
        """exchange.delete. False when there was none (no error, as on RabbitMQ).

        Raises: PeerError 403 default or system exchange; 406 `exchange 'x' in vhost '/' in use` with if_unused.
        """
        self._refuse_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise PeerError(ReplyCode.ACCESS_REFUSED, f"deletion of system {self.describe(EXCHANGE, name)} not allowed")
        yield Names(alone=((EXCHANGE, name),))
        known = self.exchanges.get(name)
        if known is None:
            return False
        if if_unused and known.bindings:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{self.describe(EXCHANGE, name)} in use")
        yield from self._remove_exchange(known)
        return True

    def _add_exchange(self, exchange: Exchange) -> None:
        self._check_not_deleted()
        exchange.limit(self._limits, self.kept)
        self.exchanges[exchange.name] = exchange
        self.holding.add(exchange_bytes(exchange))
        exchange.alternate, alternate = None, self.policies.alternate(exchange.name, exchange.arguments)
        self._lead_to(exchange, alternate)
        self.on_exchange_created(exchange)
        self._routes_changed(exchange)  # those that named it as their alternate before it existed

    def _lead_to(self, exchange: Exchange, alternate: str | None) -> None:
        """From now on what the exchange has no queue for goes to `alternate`."""
        before = exchange.alternate
        if before == alternate:
            return
        if before is not None:
            others = self._alternate_of[before]
            del others[exchange]
            if not others:
                del self._alternate_of[before]
        exchange.alternate = alternate
        if alternate is not None:
            self._alternate_of.setdefault(alternate, {})[exchange] = None
        self._routes_changed(exchange)

    def _remove_exchange(self, exchange: Exchange) -> Verb[None]:
        """Removes the exchange, its bindings, and the auto-delete exchanges that lose their last binding by that."""
        if exchange.durable and not self.deleted:
            yield Delete(ExchangeRecord(self.name, exchange.name, exchange.kind, exchange.auto_delete, exchange.internal, {}))
        if exchange.bindings or exchange.incoming:
            yield partial(self._end_some_bindings, exchange)
        yield exchange.forget_some
        if self.exchanges.get(exchange.name) is exchange:  # else it went with its virtual host
            self._drop_exchange(exchange)

    def _end_some_bindings(self, end: Exchange | Queue) -> bool:
        """A slice. True: none is left."""
        until_ns = self._clock.monotonic_ns() + PIECE_NS
        sources: dict[Exchange, None] = {}
        for _ in range(PIECE):
            binding = end.last_binding()
            if binding is None or self._clock.monotonic_ns() >= until_ns:
                break
            sources[binding.source] = None
            self._drop_binding(binding)
        self._routes_changed(*sources)
        self._auto_delete_exchanges(source for source in sources if source is not end)
        return end.last_binding() is None

    def _drop_exchange(self, exchange: Exchange) -> None:
        """Takes an exchange without bindings out of memory."""
        del self.exchanges[exchange.name]
        self.holding.add(-exchange_bytes(exchange))
        self._put_off.pop(exchange, None)
        if exchange.alternate is not None:
            others = self._alternate_of[exchange.alternate]
            del others[exchange]
            if not others:
                del self._alternate_of[exchange.alternate]
        self.on_exchange_deleted(exchange)
        self._routes_changed(exchange)

    def _is_unused(self, exchange: Exchange) -> bool:
        return exchange.auto_delete and not exchange.bindings and self.exchanges.get(exchange.name) is exchange

    def _auto_delete_exchanges(self, candidates: Iterable[Exchange]) -> None:
        """Deletes those that are unused. One of the database, one that others lead to or that remembers is its own change (I6, I7)."""
        for exchange in candidates:
            if not self._is_unused(exchange) or exchange in self._put_off or self._changes.is_held((EXCHANGE, exchange.name)):
                continue
            if not exchange.durable and not exchange.incoming and not exchange.remembers:
                self._drop_exchange(exchange)
            else:
                self._put_off[exchange] = _UNDER_WAY
                self._changes.follow(self._auto_delete_exchange(exchange), self.home_call, partial(self._on_deleted, exchange))

    def _auto_delete_exchange(self, exchange: Exchange) -> Verb[None]:
        """The verb of one unused exchange."""
        yield Names(alone=((EXCHANGE, exchange.name),))
        if self._is_unused(exchange):
            yield from self._remove_exchange(exchange)

    # --- bindings -----------------------------------------------------------------------------------------------------

    def bind_queue(
        self,
        queue_name: str,
        exchange_name: str,
        routing_key: bytes = b"",
        arguments: Mapping[str, Any] | None = None,
        *,
        connection_id: int | None = None,
    ) -> Verb[bool]:
        """queue.bind. True when the binding is new. Raises: PeerError 403, 404, 405, 406."""
        self._refuse_default(exchange_name)
        identity = binding_identity(exchange_name, QUEUE, queue_name, routing_key, arguments)
        yield _binding_names(identity)
        exchange = self.exchange(exchange_name)  # first: of two that are missing RabbitMQ names this one
        return (yield from self._bind(exchange, self.queue(queue_name, connection_id), routing_key, arguments, identity))

    def bind_at_once(
        self, queue_name: str, exchange_name: str, routing_key: bytes, arguments: Mapping[str, Any] | None, connection_id: int
    ) -> bool | None:
        """`bind_queue` of a binding that is there, or that no database has, without a verb. None: a verb has to do it.

        Raises: as `bind_queue`.
        """
        self._refuse_default(exchange_name)
        identity = binding_identity(exchange_name, QUEUE, queue_name, routing_key, arguments)
        with self._lock:
            if self._changes.holds_names:
                return None
            source = self.exchange(exchange_name)
            binding = Binding(source, self.queue(queue_name, connection_id), routing_key, arguments or None)
            source.validate_binding(binding)
            if identity in source.bindings:
                return None if self._changes.told_ones is not None else False
            if binding.durable or not self.spreading.tells_at_once(source):
                return None
            self._add_binding(binding, self._check_room(binding))
            self.on_routes_changed(source)  # alone, and now: as `tells_at_once` says
            return True

    def unbind_queue(
        self,
        queue_name: str,
        exchange_name: str,
        routing_key: bytes = b"",
        arguments: Mapping[str, Any] | None = None,
        *,
        connection_id: int | None = None,
    ) -> Verb[bool]:
        """queue.unbind. False when there was no such binding, queue or exchange (no error, as on RabbitMQ). Raises: 403, 405."""
        self._refuse_default(exchange_name)
        identity = binding_identity(exchange_name, QUEUE, queue_name, routing_key, arguments)
        yield _binding_names(identity)
        queue = self.queues.get(queue_name)
        source = self.exchanges.get(exchange_name)
        if queue is None or source is None:
            return False
        self.queue(queue.name, connection_id)
        return (yield from self._unbind(source, identity))

    def bind_exchange(
        self, destination_name: str, source_name: str, routing_key: bytes = b"", arguments: Mapping[str, Any] | None = None
    ) -> Verb[bool]:
        """exchange.bind. True when the binding is new; cycles are allowed. Raises: PeerError 403, 404, 406."""
        self._refuse_default(source_name)
        self._refuse_default(destination_name)
        identity = binding_identity(source_name, EXCHANGE, destination_name, routing_key, arguments)
        yield _binding_names(identity)
        source = self.exchange(source_name)
        return (yield from self._bind(source, self.exchange(destination_name), routing_key, arguments, identity))

    def unbind_exchange(
        self, destination_name: str, source_name: str, routing_key: bytes = b"", arguments: Mapping[str, Any] | None = None
    ) -> Verb[bool]:
        """exchange.unbind. False when there was no such binding or exchange. Raises: PeerError 403."""
        self._refuse_default(source_name)
        self._refuse_default(destination_name)
        identity = binding_identity(source_name, EXCHANGE, destination_name, routing_key, arguments)
        yield _binding_names(identity)
        source = self.exchanges.get(source_name)
        destination = self.exchanges.get(destination_name)
        if source is None or destination is None:
            return False
        return (yield from self._unbind(source, identity))

    def _bind(
        self, source: Exchange, destination: Destination, key: bytes, arguments: Mapping[str, Any] | None, identity: BindingIdentity
    ) -> Verb[bool]:
        binding = Binding(source, destination, key, dict(arguments) if arguments else None)
        source.validate_binding(binding)
        if identity in source.bindings:
            return False
        size = self._check_room(binding)
        if binding.durable:
            yield Save(self._record(binding))
            self._check_not_deleted()
        self._add_binding(binding, size)
        self._routes_changed(source)
        return True

    def _unbind(self, source: Exchange, identity: BindingIdentity) -> Verb[bool]:
        binding = source.bindings.get(identity)
        if binding is None:
            return False
        if binding.durable:
            yield Delete(self._record(binding))
            if source.bindings.get(binding.identity) is not binding:
                return False  # it went with its virtual host
        self._drop_binding(binding)
        self._routes_changed(source)
        self._auto_delete_exchanges([source])
        return True

    def _add_binding(self, binding: Binding, size: int) -> None:
        """Puts the binding into both ends; the caller tells the hook. Args: size: as binding_bytes says."""
        binding.source.add(binding)
        self.binding_count += 1
        self.binding_bytes += binding.arguments_bytes
        self.holding.add(size)
        if isinstance(binding.destination, Queue):
            binding.destination.bind(binding)

    def _drop_binding(self, binding: Binding) -> None:
        """Takes the binding out of both ends; the caller tells the hook."""
        binding.source.remove(binding)
        self.binding_count -= 1
        self.binding_bytes -= binding.arguments_bytes
        self.holding.add(-binding_bytes(binding))
        if isinstance(binding.destination, Queue):
            binding.destination.unbind(binding)

    def _record(self, binding: Binding) -> BindingRecord:
        destination = binding.destination
        return BindingRecord(
            self.name, binding.source.name, destination.destination_kind, destination.name, binding.routing_key, binding.arguments
        )

    # --- queues -------------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        connection_id: int | None = None,
        server_name: str | None = None,
        allow: Callable[[], object] | None = None,
    ) -> Verb[Queue]:
        """queue.declare. An empty name asks for one of the broker's: `server_name`, from generate_queue_name() so that permission
        could be asked for it, or else a fresh one. `allow` asks for what a new one needs: what was there when the verb was asked for may
        be gone when its turn comes.

        An exclusive queue belongs to `connection_id` (required then) and is never durable, as on RabbitMQ.
        Raises: PeerError 403 reserved name; 404 passive and not there; 405 another connection's exclusive queue, or exclusive and
        not at redeclaration; 406 bad argument, other properties, limit; what the queue factory raises.
        """
        yield Names(shared=((QUEUE, name),))
        if passive:
            queue = self.queue(name, connection_id)
            self.touch(queue)
            return queue
        if durable and not exclusive and not auto_delete and self.default_queue_type is not None:
            arguments = self._of_default_type(name, arguments)
        if name:
            self._check_new_name(QUEUE, name)  # also when it exists: RabbitMQ refuses to redeclare amq.gen-...
        else:
            module = MODULES.get((arguments or {}).get("x-queue-type", ""))
            if module is not None:
                text = f"Cannot declare a server-named queue for type {module}"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
            name = server_name or generate_queue_name()
        own = parse_queue_arguments(arguments, self.describe(QUEUE, name)) if arguments else DEFAULT_POLICY
        if exclusive and connection_id is None:
            raise ValueError("an exclusive queue needs the connection it belongs to")
        owner = connection_id if exclusive else None
        durable = durable and not exclusive
        arguments = dict(arguments) if arguments else {}
        known = self.queues.get(name)
        if known is not None:
            return self._declared_again(known, owner, durable, auto_delete, arguments)
        if allow is not None:
            allow()
        spec = QueueSpec(self.name, name, durable, auto_delete, owner, arguments, self.policies.queue_policy(name, own, arguments))
        size = queue_bytes(spec)
        self._check_limit(QUEUE, name, len(self.queues), self._limits.queues_max, size)
        if spec.policy is not DEFAULT_POLICY and spec.policy.lasts:
            check_lasting_properties(self.describe(QUEUE, name), durable=durable or exclusive, exclusive=exclusive, auto_delete=auto_delete)
        if not durable:
            return self._add_queue(self._definitions.new_queue_id(), spec, size)
        self._check_not_deleted()
        yield Names(alone=((QUEUE, name),))
        return (yield from self._declare_durable(spec, size))

    def declare_again(
        self,
        name: str,
        *,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        connection_id: int,
    ) -> Queue | None:
        """`declare_queue` of a queue that is there, without a verb. None: it is not there, or a verb under way may have the name.

        Raises: as `declare_queue`.
        """
        with self._lock:
            known = self.queues.get(name)
            if known is None or self._changes.holds_names:
                return None
            if passive:
                self.queue(name, connection_id)
                self.touch(known)
                return known
            if durable and not exclusive and not auto_delete and self.default_queue_type is not None:
                arguments = self._of_default_type(name, arguments)
            self._check_new_name(QUEUE, name)
            if arguments:
                parse_queue_arguments(arguments, self.describe(QUEUE, name))
            return self._declared_again(known, connection_id if exclusive else None, durable and not exclusive, auto_delete, arguments)

    def _declared_again(self, known: Queue, owner: int | None, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]) -> Queue:
        if known.exclusive_owner != owner:
            raise self._locked(known)
        equivalence.check_queue(known, durable, auto_delete, arguments)
        self.touch(known)
        return known

    def _of_default_type(self, name: str, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Arguments with the type that the virtual host gives to a queue whose declaration names none. A queue of another type that is
        there already stays what it is, and is declared again as before."""
        arguments, kind = arguments or {}, self.default_queue_type
        known = self.queues.get(name)
        if "x-queue-type" in arguments or (known is not None and known.arguments.get("x-queue-type", CLASSIC) != kind):
            return arguments
        return {**arguments, "x-queue-type": kind}

    def _declare_durable(self, spec: QueueSpec, size: int) -> Verb[Queue]:
        record = QueueRecord(self.name, spec.name, self._definitions.new_queue_id(), spec.auto_delete, spec.arguments)
        yield Save(record)
        try:
            return self._add_queue(record.queue_id, spec, size)
        except BaseException:  # whatever it was: the next start must not meet a queue that can't be made
            yield Delete(record)
            raise

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False, connection_id: int | None = None) -> Verb[int]:
        """queue.delete. Returns the number of ready messages that went with it; 0 when there was no queue (no error).

        Raises: PeerError 405 exclusive elsewhere; 406 `queue 'q' in vhost '/' not empty` or `... in use`.
        """
        yield Names(alone=((QUEUE, name),))
        if name not in self.queues:
            return 0
        queue = self.queue(name, connection_id)
        if if_unused and queue.core.consumer_count():
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{self.describe(QUEUE, name)} in use")
        if not if_empty:
            return (yield from self._remove_queue(queue))
        # Nothing may come in between the look and the end, which the database may take its time for.
        queue.core.hold_arrivals(True)
        try:
            if queue.core.ready_count():
                raise PeerError(ReplyCode.PRECONDITION_FAILED, f"{self.describe(QUEUE, name)} not empty")
            return (yield from self._remove_queue(queue))
        except Exception:
            queue.core.hold_arrivals(False)
            raise

    def queue_to_purge(self, name: str, *, connection_id: int | None = None) -> Queue:
        """The queue of a queue.purge, which the caller sweeps. Raises: PeerError 404, 405; 540 for a stream."""
        with self._lock:
            queue = self.queue(name, connection_id)
            if queue.policy.is_stream:
                text = f"queue.purge not supported by stream queues {self.describe(QUEUE, queue.name)}"
                raise PeerError(ReplyCode.NOT_IMPLEMENTED, text)
            return queue

    def consumer_added(self, queue: Queue) -> None:
        """A consumer was attached: from now on an auto-delete queue goes with its last consumer."""
        queue.had_consumers = True
        self.touch(queue)

    def consumer_removed(self, queue: Queue) -> bool:
        """A consumer was detached (call it after the detachment). True when the queue was deleted for it."""
        with self._lock:
            self.touch(queue)
            if not queue.auto_delete:
                return False
            return self.remove_by_itself(queue, lambda: queue.had_consumers and not queue.core.consumer_count())

    def remove_by_itself(self, queue: Queue, wanted: Callable[[], bool]) -> bool:
        """A deletion that nobody asked for, so nobody is told when the database refuses: it is tried again (I7). True when it is done."""

        def verb() -> Verb[None]:
            yield Names(alone=((QUEUE, queue.name),))
            if not queue.deleted and wanted():
                yield from self._remove_queue(queue)

        if queue.deleted or queue in self._put_off or not wanted():
            return False
        self._put_off[queue] = _UNDER_WAY
        self.perform(verb(), self.home_call, partial(self._on_deleted, queue))
        return queue.deleted

    def _on_deleted(self, thing: Queue | Exchange, result: Any, error: Exception | None) -> None:
        """The end of a deletion that nobody asked for."""
        with self._lock:
            if self._put_off.get(thing) == _UNDER_WAY:
                del self._put_off[thing]
            if isinstance(error, StoreError):
                self._try_later(thing, error)
            else:
                _log_error(result, error)

    def _try_later(self, thing: Queue | Exchange, error: StoreError) -> None:
        log.error("%s can't be deleted now: %s", self.describe(thing.destination_kind, thing.name), error)
        self._put_off[thing] = self._clock.monotonic_ns() + self._limits.sql_retry_ms * 1_000_000

    def owns_queues(self, connection_id: int) -> bool:
        """Whether a connection has exclusive queues."""
        return connection_id in self._exclusive

    def connection_closed(self, connection_id: int) -> bool:
        """Deletes a slice of the exclusive queues of a connection that is gone. True: there is no other.

        Cost: PIECE queues, PIECE_NS."""
        until_ns = self._clock.monotonic_ns() + PIECE_NS
        with self._lock:
            queues = self._exclusive.get(connection_id, {})
            for _ in range(PIECE):
                if not queues or self._clock.monotonic_ns() >= until_ns:
                    break
                _name, queue = queues.popitem()
                if queue.bound:  # they may be many, and an exchange may go with them that the database has
                    self.perform(self._end_exclusive(queue), self.home_call, _log_error)
                else:
                    guarded("exclusive queues that end", queue, self._drop_queue, queue)
            if not queues:
                self._exclusive.pop(connection_id, None)
            return not queues

    def _end_exclusive(self, queue: Queue) -> Verb[None]:
        yield Names(alone=((QUEUE, queue.name),))
        if not queue.deleted:
            yield from self._remove_queue(queue)

    def touch(self, queue: Queue) -> None:
        """The queue was used (declared, consumed, basic.get): x-expires counts anew."""
        self.unused.use(queue)

    def keep(self, queue: Queue, ms: int) -> None:
        """The queue is in use for so long from now on, by a reader that is no consumer: x-expires counts from then."""
        self.unused.use(queue, ms)

    def expire_queues(self, now: int = 0, until_ns: int = 0) -> int:
        """Deletes queues that had no consumer and no use for their x-expires; returns how many. For the housekeeping.

        Args: now: those whose time is over then, 0: now; until_ns: a slice ends there, 0: all of them. Both monotonic.
        """
        with self._lock:
            now = now or self._clock.monotonic_ns()
            if self._put_off:
                self._delete_late(now)
            over = self.unused.over(now, until_ns)
            return sum(self.remove_by_itself(queue, partial(self.unused.is_over, queue, now)) for queue in over)

    def _delete_late(self, now: int) -> None:
        """The deletions that were put off and are due."""
        for thing in [thing for thing, due_ns in self._put_off.items() if due_ns <= now]:
            del self._put_off[thing]
            if not isinstance(thing, Queue):
                self._put_off[thing] = _UNDER_WAY
                self.perform(self._auto_delete_exchange(thing), self.home_call, partial(self._on_deleted, thing))
            elif thing.auto_delete:  # x-expires looks by itself
                self.consumer_removed(thing)

    def _add_queue(self, queue_id: int, spec: QueueSpec, size: int) -> Queue:
        self._check_not_deleted()
        core = self._queue_factory(queue_id, spec)
        queue = Queue(queue_id, spec, core)
        self.queues[queue.name] = queue
        queue.weight = size
        self.holding.add(size)
        if queue.exclusive_owner is not None:
            self._exclusive.setdefault(queue.exclusive_owner, {})[queue.name] = queue
        self.unused.add(queue)
        self.on_queue_created(queue)
        self._default_route_changed(queue.name)
        return queue

    def _remove_queue(self, queue: Queue) -> Verb[int]:
        """Returns the number of ready messages that went with it."""
        if queue.durable and not self.deleted:
            yield Delete(QueueRecord(self.name, queue.name, queue.queue_id, queue.auto_delete, {}))
        if queue.bound:
            yield partial(self._end_some_bindings, queue)
        messages: int = queue.core.ready_count()
        if queue.deleted:
            return 0  # it went with its virtual host
        self._drop_queue(queue)
        return messages

    def _drop_queue(self, queue: Queue) -> None:
        """Takes a queue without bindings out of memory."""
        del self.queues[queue.name]
        self.holding.add(-queue.weight)
        if queue.exclusive_owner is not None:
            owned = self._exclusive.get(queue.exclusive_owner, {})
            owned.pop(queue.name, None)
            if not owned:
                self._exclusive.pop(queue.exclusive_owner, None)
        queue.deleted = True
        self.unused.remove(queue)
        if self._put_off:
            self._put_off.pop(queue, None)
        queue.core.mark_deleted()
        self.on_queue_deleted(queue)
        self._default_route_changed(queue.name)
