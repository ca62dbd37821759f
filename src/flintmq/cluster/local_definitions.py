"""The definitions of this node that all nodes share, as records: which there are, and the verbs that change them as other nodes decided.

in: records. out: those of this node with the same identity; verbs of virtual hosts and of the definitions service, as an administrator's.

L1  Bindings to queues of one node, links, and what a node keeps for itself are not shared (`is_shared`).
L2  What is changed here tells no other node (told.T3). Nobody waits: `done(error)` is called once, on any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flintmq.definitions.change_line import OTHER_NODE, Refused
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.ports import (
    BindingRecord,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    UserRecord,
    VhostRecord,
    freeze,
)
from flintmq.routing.binding import EXCHANGE, QUEUE, binding_identity
from flintmq.routing.exchange import Binding, Exchange
from flintmq.shared.definition_rows import COMPONENTS, GLOBAL, METADATA, TOPIC, Record, SharedQueue, is_predeclared
from flintmq.shared.queue_rows import QueueRow
from flintmq.vhost.changes import Verb
from flintmq.vhost.virtual_host import VirtualHost

Done = Callable[[Exception | None], object]


def text_of(error: Exception) -> str:
    """Of a refusal, for people. What an unexpected error says may have anything in it."""
    if isinstance(error, PeerError):
        return error.text
    return str(error) if isinstance(error, Refused | StoreError) else type(error).__name__


def is_in_use(record: Record, error: Exception) -> bool:
    """Whether an exchange that goes with its last binding was kept, since it has bindings here."""
    return isinstance(record, ExchangeRecord) and isinstance(error, PeerError) and error.code == ReplyCode.PRECONDITION_FAILED


class LocalDefinitions:
    """Args: broker: broker.broker.Broker; service: definitions.verbs.DefinitionsService."""

    def __init__(self, broker: Any, service: Any) -> None:
        self._broker = broker
        self._service = service
        # is told the row of each shared queue that is here, also of one that was restored; on the engine's thread, and must not wait
        self.know_queue: Callable[[SharedQueue], object] = lambda queue: None
        # the verb that makes a shared queue here which the engine has, and the one that ends it here
        self.declare_queue: Callable[[VirtualHost, str, QueueRow], Verb[Any]] = _declare_queue
        self.delete_queue: Callable[[VirtualHost, str], Verb[Any]] = lambda vhost, name: vhost.delete_queue(name)

    # --- which there are ------------------------------------------------------------------------------------------------

    def is_shared(self, record: object) -> bool:
        """Whether it is a definition of all nodes (L1)."""
        if isinstance(record, ParameterRecord):
            return record.component in COMPONENTS
        if isinstance(record, BindingRecord):
            return record.destination_kind == EXCHANGE or self._queue(record.vhost, record.destination) is not None
        return isinstance(record, VhostRecord | UserRecord | PermissionRecord | LimitsRecord | ExchangeRecord)

    def _queue(self, vhost: str, name: str) -> Any:
        """The shared queue of that name."""
        host = self._broker.vhosts.get(vhost)
        queue = None if host is None else host.queues.get(name)
        return queue if queue is not None and queue.policy.is_shared else None

    def twin(self, record: Record) -> Record | None:
        """The record of this node with the identity of `record`; None: there is none."""
        broker, service = self._broker, self._service
        if isinstance(record, VhostRecord):
            return service.vhosts.get(record.name)  # type: ignore[no-any-return]
        if isinstance(record, UserRecord):
            return broker.users.get(record.name)  # type: ignore[no-any-return]
        if isinstance(record, PermissionRecord):
            return broker.permissions.record(record.user, record.vhost)  # type: ignore[no-any-return]
        if isinstance(record, LimitsRecord):
            limits = broker.quotas.of(record.kind, record.name)
            return LimitsRecord(record.kind, record.name, limits) if limits else None
        if isinstance(record, ParameterRecord):
            return service.parameters.get((record.component, record.vhost, record.name))  # type: ignore[no-any-return]
        if isinstance(record, SharedQueue):
            queue = self._queue(record.vhost, record.name)
            return None if queue is None else SharedQueue(record.vhost, record.name, QueueRow(b"", queue.arguments))
        host = broker.vhosts.get(record.vhost)
        if isinstance(record, ExchangeRecord):
            exchange = None if host is None else host.exchanges.get(record.name)
            return None if exchange is None or not exchange.durable else _exchange(record.vhost, exchange)
        exchange = None if host is None else host.exchanges.get(record.source)
        arguments = record.arguments or None
        identity = binding_identity(record.source, record.destination_kind, record.destination, record.routing_key, arguments)
        binding = None if exchange is None else exchange.bindings.get(identity)
        return None if binding is None or not binding.durable else _binding(record.vhost, binding)

    def records(self) -> Iterator[Record]:
        """All that are shared. Cost: O(1) between two of them, but for a copy of the names of one virtual host."""
        broker, service = self._broker, self._service
        yield from list(service.vhosts.values())
        yield from filter(None, map(broker.users.get, broker.users.names()))
        yield from broker.quotas.records()
        yield from broker.permissions.records()
        yield from [one for one in list(service.parameters.values()) if one.component in COMPONENTS]
        for host in list(broker.vhosts.values()):
            exchanges = [one for one in list(host.exchanges.values()) if one.durable]
            yield from (_exchange(host.name, one) for one in exchanges if not is_predeclared(one.name))
            for queue in list(host.queues.values()):
                if queue.policy.is_shared:
                    yield SharedQueue(host.name, queue.name, QueueRow(b"", queue.arguments))
            for exchange in exchanges:
                for binding in list(exchange.bindings.values()):
                    if binding.durable and self._leads_on(binding):
                        yield _binding(host.name, binding)

    def _leads_on(self, binding: Binding) -> bool:
        destination: Any = binding.destination
        return destination.destination_kind != QUEUE or bool(destination.policy.is_shared)

    def borne(self) -> Iterator[Record]:
        """Virtual hosts, exchanges and bindings of exchanges on which durable queues of this node hang."""
        for host in list(self._broker.vhosts.values()):
            queues = [one for one in list(host.queues.values()) if one.durable and not one.policy.is_shared]
            if queues and host.name in self._service.vhosts:
                yield self._service.vhosts[host.name]
            leading: list[Any] = [binding for queue in queues for binding in list((queue.bindings or {}).values()) if binding.durable]
            seen: dict[str, None] = {}
            bindings: list[Binding] = []
            while leading:
                binding = leading.pop()
                source = binding.source
                if not self._is_local(binding):
                    bindings.append(binding)
                if source.name not in seen:
                    seen[source.name] = None
                    leading += [one for one in list(source.incoming.values()) if one.durable]
            yield from (_exchange(host.name, host.exchanges[name]) for name in seen if name in host.exchanges and not is_predeclared(name))
            yield from (_binding(host.name, one) for one in bindings)

    def _is_local(self, binding: Binding) -> bool:
        return not self._leads_on(binding)

    # --- as other nodes decided -------------------------------------------------------------------------------------------

    def put(self, record: Record, done: Done) -> None:
        """Makes the definition, or gives it the record's values."""
        service = self._service
        over = partial(_over, done)
        if isinstance(record, VhostRecord):
            service.put_vhost(OTHER_NODE, record.name, {"description": record.description}, over)
        elif isinstance(record, UserRecord):
            service.put_user(OTHER_NODE, record.name, list(record.tags), over, password_hash=record.password_hash)
        elif isinstance(record, LimitsRecord):
            service.put_limits(OTHER_NODE, record, over)
        elif isinstance(record, PermissionRecord):
            patterns = {"configure": record.configure, "write": record.write, "read": record.read}
            service.put_permission(OTHER_NODE, record.vhost, record.user, patterns, over)
        elif isinstance(record, ParameterRecord):
            self._put_parameter(record, over)
        else:
            self._perform(record, self._making(record), done)

    def _put_parameter(self, record: ParameterRecord, over: Callable[[Any, Exception | None], object]) -> None:
        service, value = self._service, record.value
        if record.component == GLOBAL:
            service.put_global(OTHER_NODE, record.name, value, over)
        elif record.component == METADATA:
            service.put_metadata(OTHER_NODE, record.vhost, value, over)
        elif record.component == TOPIC:
            user, exchange = json.loads(record.name)
            service.put_topic(OTHER_NODE, record.vhost, user, exchange, value, over)
        else:
            service.put_policy(OTHER_NODE, record.vhost, record.name, value, over, operator=record.component != "policy")

    def end(self, record: Record, done: Done) -> None:
        """Ends the definition, with all that hangs on it here; one that is not there is no error."""
        service = self._service
        over = partial(_over, done)
        if isinstance(record, VhostRecord):
            service.delete_vhost(OTHER_NODE, record.name, over)
        elif isinstance(record, UserRecord):
            service.delete_users(OTHER_NODE, [record.name], over)
        elif isinstance(record, LimitsRecord):
            service.put_limits(OTHER_NODE, LimitsRecord(record.kind, record.name), over)
        elif isinstance(record, PermissionRecord):
            service.clear_permission(OTHER_NODE, record.vhost, record.user, over)
        elif isinstance(record, ParameterRecord):
            self._end_parameter(record, over)
        else:
            self._perform(record, self._ending(record), done)

    def _end_parameter(self, record: ParameterRecord, over: Callable[[Any, Exception | None], object]) -> None:
        service = self._service
        if record.component == GLOBAL:
            service.delete_global(OTHER_NODE, record.name, over)
        elif record.component == METADATA:
            service.put_metadata(OTHER_NODE, record.vhost, None, over)
        elif record.component == TOPIC:
            user, exchange = json.loads(record.name)
            service.clear_topics(OTHER_NODE, record.vhost, user, exchange, over)
        else:
            service.delete_policy(OTHER_NODE, record.vhost, record.name, over, operator=record.component != "policy")

    def _making(self, record: Any) -> Callable[[VirtualHost], Verb[Any]]:
        if isinstance(record, ExchangeRecord):
            flags: dict[str, Any] = {"durable": True, "auto_delete": record.auto_delete, "internal": record.internal}
            return lambda host: host.declare_exchange(record.name, record.kind, arguments=record.arguments, **flags)
        if isinstance(record, SharedQueue):
            return lambda host: self.declare_queue(host, record.name, record.row)
        names = record.destination, record.source, record.routing_key, record.arguments
        return lambda host: host.bind_queue(*names) if record.destination_kind == QUEUE else host.bind_exchange(*names)

    def _ending(self, record: Any) -> Callable[[VirtualHost], Verb[Any]]:
        if isinstance(record, ExchangeRecord):
            return lambda host: host.delete_exchange(record.name, if_unused=record.auto_delete)
        if isinstance(record, SharedQueue):
            return lambda host: self.delete_queue(host, record.name)
        names = record.destination, record.source, record.routing_key, record.arguments
        return lambda host: host.unbind_queue(*names) if record.destination_kind == QUEUE else host.unbind_exchange(*names)

    def _perform(self, record: Any, verb: Callable[[VirtualHost], Verb[Any]], done: Done) -> None:
        host = self._broker.vhosts.get(record.vhost)
        if host is None:
            done(Refused("not_found", f"there is no virtual host '{record.vhost}'"))
            return
        host.perform(verb(host), self._broker.loops.call_home, partial(_over, done), followed=True)


def _over(done: Done, result: Any, error: Exception | None) -> None:
    done(error)


def _declare_queue(vhost: VirtualHost, name: str, row: QueueRow) -> Verb[Any]:
    return vhost.declare_queue(name, durable=True, arguments=row.arguments)


def _exchange(vhost: str, exchange: Exchange) -> ExchangeRecord:
    return ExchangeRecord(vhost, exchange.name, exchange.kind, exchange.auto_delete, exchange.internal, exchange.arguments)


def _binding(vhost: str, binding: Binding) -> BindingRecord:
    destination = binding.destination
    return BindingRecord(
        vhost, binding.source.name, destination.destination_kind, destination.name, binding.routing_key, binding.arguments or {}
    )


def same(one: Record, other: Record) -> bool:
    """Whether two records of one identity mean the same. Of a shared queue its life says so."""
    if isinstance(one, ExchangeRecord) and isinstance(other, ExchangeRecord):
        kinds = (one.kind, one.auto_delete, one.internal) == (other.kind, other.auto_delete, other.internal)
        return kinds and freeze(one.arguments) == freeze(other.arguments)
    if isinstance(one, BindingRecord | SharedQueue):
        return True
    if isinstance(one, UserRecord) and isinstance(other, UserRecord):
        return (one.password_hash, tuple(one.tags)) == (other.password_hash, tuple(other.tags))
    return one == other
