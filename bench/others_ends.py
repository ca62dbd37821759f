"""Rows of bench.others: what others wait while one client deletes something large, hangs up with much, or lets much expire."""

from __future__ import annotations

import contextlib
import socket
import time

from bench.others_row import HOST, Row, repeat
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.rawcodec import method_frame, publish_bytes

# things that one deletion takes with it
BINDINGS = 100_000
HEADERS_BINDINGS = 10_000
QUEUES = 100_000
EXCHANGES = 20_000
CONNECTIONS = 5_000
EXPIRING = 300_000
MEMBERS = 4_000
# requests that are sent before their answers are waited for
AT_ONCE = 1_000


def sync(channel: RawChannel) -> None:
    """All that was sent is done."""
    channel.call("queue.declare", queue="others-sync")


def many(channel: RawChannel, count: int, frame: object) -> None:
    """Sends frame(0), frame(1), ... without answers."""
    assert callable(frame)
    for first in range(0, count, AT_ONCE):
        channel.connection.send(b"".join(frame(number) for number in range(first, min(first + AT_ONCE, count))))
        sync(channel)


def bind(number: int, arguments: dict[str, object] | None = None, exchange: str = "others-x", queue: str = "others-q") -> bytes:
    return method_frame(1, "queue.bind", queue=queue, exchange=exchange, routing_key=f"k.{number}", arguments=arguments or {}, no_wait=True)


def bound(channel: RawChannel, kind: str, count: int) -> None:
    channel.queue("others-q")
    channel.call("exchange.declare", exchange="others-x", type=kind)
    many(channel, count, lambda number: bind(number, {"x-match": "all", "n": number, "m": str(number)} if kind == "headers" else None))


def exchange_delete(channel: RawChannel) -> bytes:
    bound(channel, "direct", BINDINGS)
    return method_frame(1, "exchange.delete", exchange="others-x")


def topic_delete(channel: RawChannel) -> bytes:
    bound(channel, "topic", BINDINGS)
    return method_frame(1, "exchange.delete", exchange="others-x")


def headers_delete(channel: RawChannel) -> bytes:
    bound(channel, "headers", HEADERS_BINDINGS)
    return method_frame(1, "exchange.delete", exchange="others-x")


def queue_delete(channel: RawChannel) -> bytes:
    bound(channel, "direct", BINDINGS)
    return method_frame(1, "queue.delete", queue="others-q")


def exclusive(channel: RawChannel) -> bytes:
    """Its connection hangs up."""
    many(channel, QUEUES, lambda number: method_frame(1, "queue.declare", queue=f"others-{number}", exclusive=True, no_wait=True))
    return method_frame(0, "connection.close", reply_code=200, reply_text="")


def auto_delete(channel: RawChannel) -> bytes:
    channel.queue("others-q")
    many(
        channel,
        EXCHANGES,
        lambda number: (
            method_frame(1, "exchange.declare", exchange=f"others-{number}", type="fanout", auto_delete=True, no_wait=True)
            + bind(number, exchange=f"others-{number}")
        ),
    )
    return method_frame(1, "queue.delete", queue="others-q")


def wide(channel: RawChannel) -> bytes:
    """Each bind and unbind changes the routes of EXCHANGES exchanges, which lead there."""
    channel.queue("others-q")
    channel.call("exchange.declare", exchange="others-x", type="fanout")
    many(
        channel,
        EXCHANGES,
        lambda number: (
            method_frame(1, "exchange.declare", exchange=f"others-{number}", type="fanout", no_wait=True)
            + method_frame(1, "exchange.bind", destination="others-x", source=f"others-{number}", no_wait=True)
        ),
    )
    return repeat(bind(0) + method_frame(1, "queue.unbind", queue="others-q", exchange="others-x", routing_key="k.0"))


def hang_up(channel: RawChannel) -> bytes:
    """CONNECTIONS connections of a helper hang up a second after the row began."""
    port = channel.connection.sock.getpeername()[1]
    kept: list[socket.socket] = []
    for _ in range(CONNECTIONS):
        one = RawConnection(HOST, port).open()
        one.channel()
        kept.append(one.sock)
    _later.append(kept)
    return method_frame(1, "basic.qos", prefetch_count=0)


_later: list[list[socket.socket]] = []


def drop_all() -> None:
    """What `hang_up` holds is closed, all of it at once."""
    for kept in _later:
        for sock in kept:
            with contextlib.suppress(OSError):
                sock.close()
    _later.clear()


def expiring(channel: RawChannel) -> bytes:
    """They expire together in the second second of the row."""
    channel.queue("others-big")
    due = time.monotonic() + 6
    for first in range(0, EXPIRING, 5_000):
        left_ms = int((due - time.monotonic()) * 1000)
        channel.connection.send(publish_bytes(1, bytes(16), routing_key="others-big", expiration=str(max(1, left_ms))) * 5_000)
        assert first < EXPIRING
    sync(channel)
    time.sleep(max(0.0, due - time.monotonic() - 3))
    return method_frame(1, "basic.qos", prefetch_count=0)


def members(channel: RawChannel) -> bytes:
    """A stream's group of MEMBERS consumers, while it is published to and all deliveries are acked again and again."""
    channel.queue("others-stream", durable=True, arguments={"x-queue-type": "stream"})
    channel.call("basic.qos", prefetch_count=10)
    many(
        channel,
        MEMBERS,
        lambda number: method_frame(
            1,
            "basic.consume",
            queue="others-stream",
            consumer_tag=f"c{number}",
            no_wait=True,
            arguments={"x-group": "g", "x-stream-offset": "next"},
        ),
    )
    return repeat(
        publish_bytes(1, bytes(16), routing_key="others-stream") * 10 + method_frame(1, "basic.ack", delivery_tag=0, multiple=True)
    )


ENDS = {
    "end-exchange": Row(f"exchange.delete, {BINDINGS:,} bindings", exchange_delete, once=True),
    "end-topic": Row("the same of a topic exchange", topic_delete, once=True),
    "end-headers": Row(f"exchange.delete, {HEADERS_BINDINGS:,} headers", headers_delete, once=True),
    "end-queue": Row(f"queue.delete, {BINDINGS:,} bindings", queue_delete, once=True),
    "end-exclusive": Row(f"close: {QUEUES:,} exclusive queues", exclusive, once=True),
    "end-auto-delete": Row(f"end of {EXCHANGES:,} auto-delete exchanges", auto_delete, once=True),
    "wide": Row(f"bind, {EXCHANGES:,} exchanges lead there", wide),
    "end-connections": Row(f"{CONNECTIONS:,} connections hang up", hang_up, once=True, begin=drop_all),
    "end-expiry": Row(f"expiry of {EXPIRING:,} with a time each", expiring, once=True),
    "members": Row(f"stream's group of {MEMBERS:,}", members, durable=True),
}
