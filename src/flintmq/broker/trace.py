"""The firehose: copies of the messages that are published and delivered in a virtual host, to its exchange `amq.rabbitmq.trace`.

in: virtual hosts that are traced, and what the message path does not know. out: what connections make copies of (channel/tracing.py):
messages with the keys `publish.{exchange}` and `deliver.{queue}`, the same body, and RabbitMQ's headers (protocol/v0_9_1/tracing.py).

T1  Off it costs nothing but one look at a bit of the connection with each message.
T2  The firehose is off after a start, as on RabbitMQ. A reader of the exchange may read everything, and an administrator turns it on.
T3  Messages of the exchange itself are not traced. Nothing is copied while no queue or exchange is bound to it.
T4  Copies of large bodies, and those whose headers decide their route, wait in an outbox: trace_bytes_max is its limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.outbox import Outbox, Put
from flintmq.core.content import CONTENT_HEADERS
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.codec import decode_properties, encode_table

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.trace")

TRACE = "amq.rabbitmq.trace"
# key of Counters.in_python, and the reason under which copies are dropped
TRACED = "trace"
# Bounds of decoding a copy's headers: the message's own, which were within the limits of a publish, are two tables deeper in them.
COPY_DEPTH_MAX = 256
COPY_FIELDS_MAX = 2**20


class Tracer:
    """The firehoses of all virtual hosts. Args: bits: what a connection looks for, with the firehose on or off (spans.traced_bits)."""

    def __init__(self, state: NodeState, put: Put, bits: Callable[[bool], int]) -> None:
        self._state = state
        self._bits = bits
        self._outbox = Outbox(state, put, TRACE, state.limits.trace_bytes_max, TRACED, CONTENT_HEADERS)

    def turn(self, name: str, on: bool) -> None:
        """On or off for a virtual host: with the next message that is published or delivered. Any thread."""
        vhost = self._state.vhosts.get(name)
        if vhost is None or vhost.tracing is on:
            return
        vhost.tracing = on
        effect = f"what is published and delivered is copied to exchange '{TRACE}', at a price for each message" if on else "no more copies"
        log.info("tracing of vhost %r is %s: %s", name, "on" if on else "off", effect)
        for client in list(self._state.connections.values()):
            if client.vhost is vhost:
                guarded("tracing", f"connection {client.name!r}", self.follow, client)

    def follow(self, client: Client) -> None:
        """What a connection looks for, as its virtual host is traced now. Any thread. Raises: PeerError 530: that is deleted."""
        on = None
        while on is not client.vhost.tracing:  # another thread may turn it meanwhile
            on = client.vhost.tracing
            if on:
                place = {"node": self._state.node_name, "vhost": client.vhost.name, "connection": client.name}
                cache = self._state.routes.cache(client.vhost, TRACE)
                client.connection.set_tracer(cache, encode_table(place), encode_table({"user": client.user}))
            client.connection.set_traced(self._bits(on))

    # --- what the message path asks, once -------------------------------------------------------------------------------

    def learn(self, vhost: Any, key: bytes) -> None:
        """Where copies with a key go is remembered, if their headers do not decide it."""
        self._state.counters.in_python[TRACED] += 1
        try:
            self._state.routes.learn(vhost, TRACE, key)
        except PeerError:  # the virtual host is gone, or there are more patterns than may be looked at
            self._state.counters.drop(TRACED)

    def name_queue(self, queue_id: int) -> None:
        """The message path knows a queue's name from now on. Raises: MemoryError."""
        queue = self._state.queues.get(queue_id)
        if queue is not None:
            self._state.counters.in_python[TRACED] += 1
            queue.core.set_name(queue.name.encode("utf-8", "surrogateescape"))

    def send(self, vhost_name: str, copy: tuple[bytes, bytes, bytes, bytes], body: bytes) -> None:
        """T4. Args: copy: exchange, routing key and content header payload, without its body."""
        self._state.counters.in_python[TRACED] += 1
        _, key, header, _ = copy
        _, properties = decode_properties(header, COPY_DEPTH_MAX, COPY_FIELDS_MAX)
        self._outbox.add(vhost_name, key.decode("utf-8", "surrogateescape"), properties, body)
