"""Events: what happens to connections, queues, users and the rest. This is the one place that tells them.

in: calls of whoever changed something, under any lock. out: messages without a body on the event exchange (`amq.rabbitmq.event` of virtual
host `/`), with RabbitMQ's keys and header names; and, for clients of `/api/v1/events`, calls of the hub.

N1  While nothing is bound to the exchange and nobody listens at the hub, an event is forgotten at the first look. Telling never waits and
    never fails.
N2  No password, hash or value of a parameter (shovels have addresses with passwords) is in an event.
N3  Who may read the exchange of `/` sees the names of all virtual hosts, as on RabbitMQ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flintmq.access.hashes import hash_of
from flintmq.broker import client_properties
from flintmq.broker.outbox import Outbox, Put
from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT
from flintmq.guard import guarded
from flintmq.ports import LimitsRecord, ParameterRecord, PermissionRecord, UserRecord, VhostRecord
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.routing.exchange import Binding, Exchange, TopicExchange

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

EVENT = "amq.rabbitmq.event"
DEFAULT_VHOST = "/"
# components of parameters that operators see; others are the broker's own records
_SHOWN = ("federation-upstream", "federation-upstream-set", "shovel", "global")
_POLICY, _OPERATOR_POLICY, _TOPIC = "policy", "operator_policy", "topic-permission"


class Events:
    """Tells events of a node."""

    def __init__(self, state: NodeState, put: Put) -> None:
        self._state = state
        # of the virtual host "/" that there is now, or was last
        self._exchange: Exchange | None = None
        # whether anything is bound to the exchange
        self.wanted = False
        # hears of each change while somebody listens (admin.events.Hub); None: no HTTP client has come yet
        self.hub: Any = None
        # nothing is bound and nobody listens: what every connection passes looks at this alone
        self.quiet = True
        # told of each binding that comes (True) or goes, under the virtual host's lock; must not wait
        self.followers: list[Callable[[Binding, bool], object]] = []
        self._looking = threading.Lock()
        self._outbox = Outbox(state, put, EVENT, state.limits.events_bytes_max, "event", CONTENT_HEADERS | CONTENT_PERSISTENT)

    def look(self) -> None:
        """Something was bound or unbound, or a listener of the hub came or went. Any thread: the last one to look has seen both changes."""
        with self._looking:
            self.quiet = not self.wanted and (self.hub is None or not self.hub.listened_to)

    def tell(self, key: str, **facts: Any) -> None:
        """Any thread; facts: headers, by RabbitMQ's names with `_` for `-`."""
        if not self.wanted:
            return
        now_ms = self._state.clock.wall_ms()
        headers = {**facts, "timestamp_in_ms": now_ms}
        self._outbox.add(DEFAULT_VHOST, key, {"headers": headers, "delivery_mode": 2, "timestamp": Timestamp(now_ms // 1000)})

    def _tell_hub(self, kind: str, vhost: str, **facts: Any) -> None:
        if self.hub is not None and self.hub.listened_to:
            self.hub.event(kind, vhost, facts)

    # --- virtual hosts ------------------------------------------------------------------------------------------------

    def watch(self, vhost: Any) -> None:
        """From now on exchanges and bindings of a new virtual host are told; `/` gets the event exchange."""
        if vhost.name == DEFAULT_VHOST:
            vhost.exchanges[EVENT] = self._exchange = TopicExchange(EVENT, durable=True, internal=True)
            self.wanted = False
            self.look()
            vhost.predeclared += 1

        def bound(binding: Binding, new: bool) -> None:
            if self.wanted or binding.source is self._exchange:
                self._bound(vhost.name, binding, new)
            for follower in self.followers:
                guarded("followers of bindings", vhost.name, follower, binding, new)

        def created(exchange: Exchange) -> None:
            exchange.watch = bound
            self.tell(
                "exchange.created",
                name=exchange.name,
                vhost=vhost.name,
                type=exchange.kind,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=dict(exchange.arguments),
            )

        vhost.on_exchange_created = created
        for exchange in vhost.exchanges.values():
            exchange.watch = bound

    def _bound(self, vhost: str, binding: Binding, new: bool) -> None:
        if self._exchange is not None and binding.source is self._exchange:
            self.wanted = bool(self._exchange.bindings)
            self.look()
        if self.wanted:
            self.tell(
                "binding.created" if new else "binding.deleted",
                source_name=binding.source.name,
                source_kind="exchange",
                destination_name=binding.destination.name,
                destination_kind=binding.destination.destination_kind,
                routing_key=binding.routing_key.decode("utf-8", "surrogateescape"),
                arguments=dict(binding.arguments),
                vhost=vhost,
            )

    def queue(self, queue: Any, created: bool) -> None:
        """A queue came or went."""
        if self.quiet:
            return
        if created:
            policy = queue.policy
            self._tell_hub("queue.created", queue.vhost, queue=queue.name, type=policy.queue_type, durable=queue.durable)
        else:
            self._tell_hub("queue.deleted", queue.vhost, queue=queue.name)
        if not self.wanted:
            return
        if not created:
            self.tell("queue.deleted", name=queue.name, vhost=queue.vhost)
            return
        self.tell(
            "queue.created",
            name=queue.name,
            vhost=queue.vhost,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            exclusive=queue.exclusive_owner is not None,
            arguments=dict(queue.arguments),
        )

    def paused(self, queue: Any, paused: bool) -> None:
        """An operator paused a queue, or let it go on."""
        kind = "queue.paused" if paused else "queue.resumed"
        self._tell_hub(kind, queue.vhost, queue=queue.name)
        self.tell(kind, name=queue.name, vhost=queue.vhost)

    def exchange_deleted(self, vhost: str, exchange: str) -> None:
        self.tell("exchange.deleted", name=exchange, vhost=vhost)

    # --- connections --------------------------------------------------------------------------------------------------

    def connection_opened(self, client: Client) -> None:
        if self.quiet:
            return
        self._tell_hub("connection.opened", client.vhost.name, connection=client.name, user=client.user)
        if not self.wanted:
            return
        self.tell(
            "connection.created",
            name=client.name,
            type="network",
            user=client.user,
            vhost=client.vhost.name,
            peer_host=client.peer_host,
            peer_port=client.peer_port,
            ssl=client.secure,
            auth_mechanism=client.mechanism,
            protocol="{0,9,1}",
            timeout=client.heartbeat_s,
            frame_max=client.frame_size_max,
            channel_max=client.channel_max,
            connected_at=client.connected_at_ms,
            client_properties=client_properties.told(client.client_properties),
            user_provided_name=client_properties.connection_name(client.client_properties),
            node=self._state.node_name,
            user_who_performed_action=client.user,
        )

    def connection_closed(self, client: Client, reason: str) -> None:
        if self.quiet:
            return
        self._tell_hub("connection.closed", client.vhost.name, connection=client.name, user=client.user, reason=reason)
        self.tell("connection.closed", name=client.name, node=self._state.node_name)

    def login(self, client: Client, user: str, ok: bool) -> None:
        if self.wanted:
            self.tell(
                "user.authentication.success" if ok else "user.authentication.failure",
                name=user,
                connection_name=client.name,
                connection_type="network",
                peer_host=client.peer_host,
                peer_port=client.peer_port,
                ssl=client.secure,
                auth_mechanism=client.mechanism,
                protocol="{0,9,1}",
            )

    def consumer(self, consumer: Any, came: bool) -> None:
        """A consumer came or went."""
        if self.quiet:
            return
        queue, name = consumer.queue, consumer.client.name
        kind = "consumer.came" if came else "consumer.gone"
        self._tell_hub(kind, queue.vhost, queue=queue.name, consumer_tag=consumer.tag, connection=name)
        if not self.wanted:
            return
        facts = {"consumer_tag": consumer.tag, "queue": consumer.queue.name, "vhost": consumer.queue.vhost}
        if came:
            facts |= {"exclusive": consumer.exclusive, "ack_required": not consumer.no_ack, "arguments": dict(consumer.arguments)}
            facts |= {"user_who_performed_action": consumer.client.user}
        self.tell("consumer.created" if came else "consumer.deleted", **facts)

    # --- definitions --------------------------------------------------------------------------------------------------

    def changed(self, changes: Sequence[tuple[object, bool]], new: object, actor: str | None, before: object = None) -> None:
        """Definitions are durable. Args: changes: (record, saved and not deleted); new: the verb said True: it was not there before;
        before: the record that was replaced, of users."""
        if self.wanted:
            for record, saved in changes:
                guarded("events", type(record).__name__, self._changed, record, saved, new, actor or "rmq-internal", before)

    def _changed(self, record: object, saved: bool, new: object, actor: str, before: object) -> None:
        by = {"user_who_performed_action": actor}
        if isinstance(record, UserRecord):
            if not saved:
                self.tell("user.deleted", name=record.name, **by)
                return
            if new or not isinstance(before, UserRecord) or hash_of(before.password_hash) != hash_of(record.password_hash):
                self.tell("user.created" if new else "user.password.changed", name=record.name, **by)
            self.tell("user.tags.set", name=record.name, tags=list(record.tags), **by)
        elif isinstance(record, PermissionRecord):
            patterns = {"configure": record.configure, "write": record.write, "read": record.read} if saved else {}
            key = "permission.created" if saved else "permission.deleted"
            self.tell(key, user=record.user, vhost=record.vhost, **patterns, **by)
        elif isinstance(record, VhostRecord):
            if saved and new:
                self.tell("vhost.created", name=record.name, description=record.description, tracing=False, **by)
            elif not saved:
                self.tell("vhost.deleted", name=record.name, **by)
        elif isinstance(record, LimitsRecord):
            owner = {"name": "limits"} | ({"vhost": record.name} if record.kind == "vhost" else {"username": record.name})
            limits = dict(record.limits)
            self.tell(f"{record.kind}.limits.set" if limits else f"{record.kind}.limits.cleared", **owner, **limits, **by)
        elif isinstance(record, ParameterRecord):
            self._parameter(record, saved, by)

    def _parameter(self, record: ParameterRecord, saved: bool, by: dict[str, Any]) -> None:
        where = {"name": record.name, "vhost": record.vhost}
        if record.component in (_POLICY, _OPERATOR_POLICY):
            key = "policy" if record.component == _POLICY else "operator.policy"
            self.tell(f"{key}.{'set' if saved else 'cleared'}", **where, **(dict(record.value) if saved else {}), **by)
        elif record.component == _TOPIC:
            self.tell(f"topic.permission.{'created' if saved else 'deleted'}", vhost=record.vhost, **by)
        elif record.component in _SHOWN:
            self.tell(f"parameter.{'set' if saved else 'cleared'}", component=record.component, **where, **by)
