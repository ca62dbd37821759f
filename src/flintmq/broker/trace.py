"""The firehose: copies of the messages that are published and delivered in a virtual host, to its exchange `amq.rabbitmq.trace`.

in: messages of a virtual host that is traced. out: messages with the keys `publish.{exchange}` and `deliver.{queue}`, the same body, and
RabbitMQ's headers: exchange_name, routing_keys, properties, node, vhost, connection, channel, user, routed_queues or redelivered.

T1  Off it costs nothing but one look at a flag of the connection with each delivery: what is published comes here because no route of a
    traced virtual host is cached.
T2  The firehose is off after a start, as on RabbitMQ. A reader of the exchange may read everything, and an administrator turns it on.
T3  Messages of the exchange itself are not traced. Nothing is copied while no queue or exchange is bound to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flintmq.broker.outbox import Outbox, Put
from flintmq.core.content import CONTENT_HEADERS
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.codec import decode_properties

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

TRACE = "amq.rabbitmq.trace"

Content = tuple[bytes, bytes, bytes, bytes]


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


class Tracer:
    """The firehoses of all virtual hosts. Args: bits: what a connection looks for, with the firehose on or off (spans.traced_bits)."""

    def __init__(self, state: NodeState, put: Put, bits: Callable[[bool], int]) -> None:
        self._state = state
        self._bits = bits
        self._outbox = Outbox(state, put, TRACE, state.limits.trace_bytes_max, "trace", CONTENT_HEADERS)

    def turn(self, name: str, on: bool) -> None:
        """On or off for a virtual host: with the next message that is published or delivered. Any thread."""
        vhost = self._state.vhosts.get(name)
        if vhost is None or vhost.tracing is on:
            return
        vhost.tracing = on
        for exchange in list(vhost.exchanges.values()):
            guarded("tracing", f"vhost {name!r}", vhost.on_routes_changed, exchange)
        for client in list(self._state.connections.values()):
            if client.vhost is vhost:
                client.connection.set_traced(self._bits(on))

    def published(
        self, client: Client, channel: int, content: Content, keys: Iterable[bytes], properties: Any, handles: Iterable[Any]
    ) -> None:
        """A message that is about to be put on the queues of its route."""
        exchange = _text(content[0])
        if exchange == TRACE or _nobody_reads(client):
            return
        routed = [handle.owner.name for handle in handles if handle.owner is not None]
        facts = _facts(self._state.node_name, exchange, [_text(key) for key in keys], properties, client)
        self._outbox.add(
            client.vhost.name,
            f"publish.{exchange}",
            {"headers": facts | {"channel": channel, "user": client.user, "routed_queues": routed}},
            content[3],
        )

    def delivered(self, client: Client, channel: int, queue_id: int, redelivered: bool, content: Content) -> None:
        """A message that is on its way to a consumer."""
        exchange = _text(content[0])
        queue = self._state.queues.get(queue_id)
        if exchange == TRACE or queue is None or _nobody_reads(client):
            return
        limits = self._state.limits
        _, properties = decode_properties(content[2], limits.table_depth_max, limits.table_fields_max)
        facts = _facts(self._state.node_name, exchange, [_text(content[1])], properties, client)
        self._outbox.add(
            client.vhost.name,
            f"deliver.{queue.name}",
            {"headers": facts | {"redelivered": int(redelivered), "channel": channel, "user": client.user}},
            content[3],
        )


def _nobody_reads(client: Client) -> bool:
    """Nothing is bound to the exchange: a copy would lead nowhere."""
    exchange = client.vhost.exchanges.get(TRACE)
    return exchange is None or (not exchange.bindings and exchange.alternate is None)


def _facts(node_name: str, exchange: str, keys: list[str], properties: dict[str, Any], client: Client) -> dict[str, Any]:
    return {
        "exchange_name": exchange,
        "routing_keys": keys,
        "properties": {name: value for name, value in properties.items() if value is not None},
        "node": node_name,
        "vhost": client.vhost.name,
        "connection": client.name,
    }
