"""Property: unmodified pika runs the stream forms of RabbitMQ's documentation: declare, confirms, every x-stream-offset, filters."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.broker import Broker, unique


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """A channel with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


@pytest.fixture
def stream(channel: BlockingChannel) -> str:
    """A stream of 20 messages, declared as in RabbitMQ's documentation."""
    name = unique("stream")
    arguments = {
        "x-queue-type": "stream",
        "x-max-length-bytes": 20_000_000_000,
        "x-stream-max-segment-size-bytes": 100_000_000,
        "x-max-age": "7D",
    }
    channel.queue_declare(queue=name, durable=True, exclusive=False, auto_delete=False, arguments=arguments)
    publish(channel, name, range(20))
    return name


def publish(channel: BlockingChannel, name: str, numbers: range) -> None:
    for number in numbers:
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(headers={"x-stream-filter-value": "abc"[number % 3]}))


def read(channel: BlockingChannel, stream: str, count: int, **arguments: Any) -> list[tuple[int, bytes]]:
    """(x-stream-offset, body) of the first messages that a consumer with these arguments gets, each acknowledged."""
    channel.basic_qos(prefetch_count=10)
    got: list[tuple[int, bytes]] = []
    for method, properties, body in channel.consume(stream, arguments=arguments, inactivity_timeout=60):
        assert method is not None, f"only {got}"
        got.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def arrivals(consumer: Any, count: int) -> list[tuple[Any, Any, bytes]]:
    """What comes next; pauses of a consumer with a short inactivity_timeout are passed over, for a minute at most."""
    got: list[tuple[Any, Any, bytes]] = []
    until = time.monotonic() + 60
    while len(got) < count:
        one = next(consumer)
        if one[0] is not None:
            got.append(one)
        assert time.monotonic() < until, f"only {got}"
    return got


@pytest.mark.parametrize(("offset", "first"), [("first", 0), (12, 12), ("last", 19), ("5m", 0)])
def test_offsets(channel: BlockingChannel, stream: str, offset: Any, first: int) -> None:
    """first, last, an absolute offset and an interval begin where they say; the offset is in the header of each message."""
    got = read(channel, stream, 20 - first, **{"x-stream-offset": offset})
    assert got == [(number, b"%d" % number) for number in range(first, 20)]


def test_timestamps(channel: BlockingChannel, stream: str) -> None:
    """A datetime is a timestamp on the wire: an hour ago is the beginning, in an hour is what comes next."""
    now = datetime.datetime.now(datetime.UTC)
    assert read(channel, stream, 20, **{"x-stream-offset": now - datetime.timedelta(hours=1)})[0] == (0, b"0")
    channel.basic_qos(prefetch_count=10)
    consumer = channel.consume(stream, arguments={"x-stream-offset": now + datetime.timedelta(hours=1)}, inactivity_timeout=0.3)
    assert next(consumer) == (None, None, None)
    publish(channel, stream, range(20, 21))
    [(_, properties, body)] = arrivals(consumer, 1)
    assert (properties.headers["x-stream-offset"], body) == (20, b"20")
    channel.cancel()


def test_next(channel: BlockingChannel, stream: str) -> None:
    """next: nothing of what is there, everything that comes."""
    channel.basic_qos(prefetch_count=100)
    consumer = channel.consume(stream, arguments={"x-stream-offset": "next"}, inactivity_timeout=0.3)
    assert next(consumer) == (None, None, None)
    publish(channel, stream, range(20, 25))
    assert [body for _, _, body in arrivals(consumer, 5)] == [b"%d" % number for number in range(20, 25)]
    channel.cancel()


def test_resuming_from_a_kept_offset(broker: Broker, channel: BlockingChannel, stream: str) -> None:
    """The documentation's way without a group: the application keeps the last offset and begins behind it."""
    half = read(channel, stream, 7, **{"x-stream-offset": "first"})
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        rest = read(connection.channel(), stream, 13, **{"x-stream-offset": half[-1][0] + 1})
    assert [body for _, body in half + rest] == [b"%d" % number for number in range(20)]


def test_filtering(channel: BlockingChannel, stream: str) -> None:
    """x-stream-filter, one value or several."""
    assert [offset for offset, _ in read(channel, stream, 6, **{"x-stream-offset": "first", "x-stream-filter": "b"})] == [
        1,
        4,
        7,
        10,
        13,
        16,
    ]
    got = read(channel, stream, 13, **{"x-stream-offset": "first", "x-stream-filter": ["a", "c"]})
    assert [offset for offset, _ in got] == [number for number in range(20) if number % 3 != 1]


def test_start_consuming(channel: BlockingChannel, stream: str) -> None:
    """basic_consume with a callback, as in the tutorial; basic_nack counts as an ack."""
    got = []

    def on_message(ch: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        got.append(body)
        if len(got) % 2:
            ch.basic_ack(method.delivery_tag)
        else:
            ch.basic_nack(method.delivery_tag)
        if len(got) == 20:
            ch.stop_consuming()

    channel.basic_qos(prefetch_count=4)
    channel.basic_consume(stream, on_message, arguments={"x-stream-offset": "first"})
    channel.start_consuming()
    assert got == [b"%d" % number for number in range(20)]


def test_refusals(broker: Broker, channel: BlockingChannel, stream: str) -> None:
    """pika raises what RabbitMQ's rules say: 406 without prefetch, 540 for auto_ack and basic_get."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_consume(stream, lambda *_: None)
    assert refused.value.reply_code == 406 and "prefetch count is not set" in refused.value.reply_text
    for wrong in (lambda ch: ch.basic_get(stream), lambda ch: ch.basic_consume(stream, lambda *_: None, auto_ack=True)):
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        other = connection.channel()
        other.basic_qos(prefetch_count=1)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            wrong(other)
        assert closed.value.reply_code == 540


def test_a_group_of_two(broker: Broker, channel: BlockingChannel, stream: str) -> None:
    """x-group: two connections share the stream; what neither acknowledged comes to whoever joins next, and only that."""
    if broker.external:
        pytest.skip("groups are FlintMQ's")
    consumers = []
    for _ in range(2):
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        member = connection.channel()
        member.basic_qos(prefetch_count=5)
        consumers.append((connection, member, member.consume(stream, arguments={"x-stream-offset": "first", "x-group": "pair"})))
    settled, open_ = [], []
    for _, member, messages in consumers:
        for number, (method, properties, _body) in enumerate(itertools.islice(messages, 5)):
            offset = properties.headers["x-stream-offset"]
            if number < 3:
                member.basic_ack(method.delivery_tag)
                settled.append(offset)
            else:
                open_.append(offset)
    assert not set(settled) & set(open_)
    for connection, _, _ in consumers:
        connection.close()
    until = time.monotonic() + 60
    wanted = sorted(set(range(20)) - set(settled))
    got: list[int] = []
    channel.basic_qos(prefetch_count=50)
    for method, properties, _body in channel.consume(stream, arguments={"x-group": "pair"}, inactivity_timeout=0.5):
        if method is not None:
            got.append(properties.headers["x-stream-offset"])
        elif len(got) >= len(wanted) or time.monotonic() > until:
            break
    channel.cancel()
    assert sorted(got) == wanted
