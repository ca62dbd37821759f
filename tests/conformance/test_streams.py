"""Streams over AMQP 0-9-1: declared as on RabbitMQ, appended once, read by anybody from anywhere; consumer groups share a place.

RabbitMQ's rules and texts unless a test is marked `flintmq_only`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import Broker, unique
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.rawcodec import Typed

STREAM = {"x-queue-type": "stream"}
groups_only = pytest.mark.flintmq_only("RabbitMQ keeps no place of a consumer over AMQP 0-9-1, and has no groups")
Connect = Callable[..., RawConnection]


@pytest.fixture
def stream(ch: RawChannel, name: str) -> str:
    """A declared stream; the channel confirms and has a prefetch of 100."""
    ch.queue(name, durable=True, arguments=STREAM)
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=100)
    return name


def fill(ch: RawChannel, stream: str, bodies: list[bytes], **rest: Any) -> None:
    """Publishes and returns when all are confirmed."""
    for body in bodies:
        ch.publish(body, routing_key=stream, **rest)
    wait_confirms(ch, len(bodies))


def wait_confirms(ch: RawChannel, count: int) -> None:
    """The next `count` confirms of the channel, all positive."""
    before = getattr(ch, "confirmed", 0)
    ch.confirmed = before + count  # type: ignore[attr-defined]
    while before < ch.confirmed:  # type: ignore[attr-defined]
        before = ch.expect("basic.ack").delivery_tag


def numbered(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(count)]


def offsets(deliveries: list[Any]) -> list[int]:
    return [delivery.properties["headers"]["x-stream-offset"] for delivery in deliveries]


# --- declaring --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
    ],
)
@pytest.mark.parametrize("kind", ["stream", "quorum"])
def test_a_stream_is_durable_and_nobodys(ch: RawChannel, name: str, kind: str, properties: dict[str, bool], wrong: str) -> None:
    """So is a quorum queue: 406 with RabbitMQ's text, and no queue is left."""
    text = f"PRECONDITION_FAILED - invalid property '{wrong}' for queue '{name}' in vhost '/'"
    ch.refuse(406, text, "queue.declare", queue=name, arguments={"x-queue-type": kind}, **properties)
    ch.refuse(404, "no queue", "queue.declare", queue=name, passive=True)


def test_arguments_of_other_queue_types_are_refused(ch: RawChannel, name: str) -> None:
    """A known argument that means nothing to a stream: 406 naming the type."""
    text = f"invalid arg 'x-message-ttl' for queue '{name}' in vhost '/' of queue type rabbit_stream_queue"
    ch.refuse(406, text, "queue.declare", queue=name, durable=True, arguments={**STREAM, "x-message-ttl": 1000})


def test_redeclaring_compares_arguments(ch: RawChannel, name: str) -> None:
    """The same again is fine; another x-max-age is 406, and so is the classic type."""
    arguments = {**STREAM, "x-max-age": "7D"}
    ch.queue(name, durable=True, arguments=arguments)
    assert ch.call("queue.declare", queue=name, durable=True, arguments=arguments).message_count == 0
    other = {**STREAM, "x-max-age": "8D"}
    ch.refuse(
        406, f"inequivalent arg 'x-max-age' for queue '{name}' in vhost '/'", "queue.declare", queue=name, durable=True, arguments=other
    )
    ch.refuse(406, "inequivalent arg 'x-queue-type'", "queue.declare", queue=name, durable=True)


def test_counts(ch: RawChannel, stream: str, connect: Connect) -> None:
    """declare-ok tells messages and consumers; consuming and acknowledging takes nothing away; delete-ok counts what went."""
    fill(ch, stream, numbered(7))
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    last = ch.deliveries(7)[-1]
    ch.send("basic.ack", delivery_tag=last.delivery_tag, multiple=True)
    found = connect().channel().call("queue.declare", queue=stream, passive=True)
    assert (found.message_count, found.consumer_count) == (7, 1)
    assert connect().channel().call("queue.delete", queue=stream).message_count == 7


# --- what a stream does not do ----------------------------------------------------------------------------------------------


def test_get_and_purge_are_not_implemented(connect: Connect, stream: str) -> None:
    """540 closes the connection, as on RabbitMQ."""
    for method, what in (("basic.get", "basic.get"), ("queue.purge", "queue.purge")):
        conn = connect()
        conn.channel().send(method, queue=stream)
        conn.expect_close(540, f"NOT_IMPLEMENTED - {what} not supported by stream queues queue '{stream}' in vhost '/'")


def test_consuming_needs_a_prefetch(connect: Connect, stream: str) -> None:
    """406 without basic.qos."""
    ch = connect().channel()
    text = f"consumer prefetch count is not set for stream queue '{stream}' in vhost '/'"
    ch.refuse(406, text, "basic.consume", queue=stream)


def test_consuming_without_acknowledgements_is_refused(connect: Connect, stream: str) -> None:
    """540, as on RabbitMQ."""
    conn = connect()
    ch = conn.channel()
    ch.call("basic.qos", prefetch_count=10)
    ch.send("basic.consume", queue=stream, no_ack=True)
    conn.expect_close(540, f"automatic acknowledgement not supported by stream queue '{stream}' in vhost '/'")


@pytest.mark.parametrize("offset", ["yesterday", True, 1.5])
@pytest.mark.flintmq_only("RabbitMQ accepts any type and fails later")
def test_an_offset_that_is_none(ch: RawChannel, stream: str, offset: Any) -> None:
    """406 naming the argument; the channel can be used again."""
    text = f"invalid arg 'x-stream-offset' for queue '{stream}' in vhost '/'"
    ch.refuse(406, text, "basic.consume", queue=stream, arguments={"x-stream-offset": offset})


# --- reading ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "first"), [("first", 0), (0, 0), (7, 7), ("1h", 0), ("last", 9)])
def test_starting_points(ch: RawChannel, stream: str, offset: Any, first: int) -> None:
    """first, an offset, an interval: what is there from that place on, each with its offset, in order; and then what comes."""
    fill(ch, stream, numbered(10))
    ch.consume(stream, arguments={"x-stream-offset": offset})
    got = ch.deliveries(10 - first)
    assert offsets(got) == list(range(first, 10)) and [one.body for one in got] == numbered(10)[first:]
    assert not any(one.redelivered for one in got)
    ch.publish(b"more", routing_key=stream)
    methods = {method.name: method for method in (ch.connection.recv(1), ch.connection.recv(1))}
    assert methods["basic.deliver"].properties["headers"]["x-stream-offset"] == 10


def test_next_is_the_default(ch: RawChannel, stream: str) -> None:
    """Without x-stream-offset a consumer gets what is published from now on."""
    fill(ch, stream, numbered(3))
    ch.consume(stream, "a")
    ch.consume(stream, "b", arguments={"x-stream-offset": "next"})
    ch.nothing()
    ch.publish(b"new", routing_key=stream)
    got = [method for method in (ch.connection.recv(1) for _ in range(3)) if method.name == "basic.deliver"]
    assert sorted(one.consumer_tag for one in got) == ["a", "b"] and offsets(got) == [3, 3]


def test_starting_at_a_time(ch: RawChannel, stream: str) -> None:
    """A timestamp (whole seconds) starts with the first message of that time or later."""
    fill(ch, stream, numbered(5))
    boundary = int(time.time()) + 1
    while time.time() < boundary + 0.02:
        time.sleep(0.02)
    fill(ch, stream, [b"late"])
    ch.consume(stream, "a", arguments={"x-stream-offset": Typed("T", boundary)})
    assert [one.body for one in ch.deliveries(1)] == [b"late"]
    ch.consume(stream, "b", arguments={"x-stream-offset": Typed("T", boundary - 3600)})
    assert offsets(ch.deliveries(6)) == list(range(6))


def test_everybody_gets_everything(ch: RawChannel, stream: str, connect: Connect) -> None:
    """Consumers on their own don't share: each gets each message."""
    fill(ch, stream, numbered(50))
    for _ in range(3):
        other = connect().channel()
        other.call("basic.qos", prefetch_count=100)
        other.consume(stream, arguments={"x-stream-offset": "first"})
        assert [one.body for one in other.deliveries(50)] == numbered(50)


def test_prefetch_is_credit(ch: RawChannel, stream: str) -> None:
    """No more than the prefetch is delivered before acks come; nack and reject give credit like an ack and bring nothing back."""
    fill(ch, stream, numbered(9))
    ch.call("basic.qos", prefetch_count=3)
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    got = ch.deliveries(3)
    ch.nothing()
    ch.send("basic.ack", delivery_tag=got[0].delivery_tag)
    ch.send("basic.nack", delivery_tag=got[1].delivery_tag, requeue=True)
    ch.send("basic.reject", delivery_tag=got[2].delivery_tag, requeue=False)
    assert offsets(ch.deliveries(3)) == [3, 4, 5]
    ch.nothing()


def test_a_large_message_and_its_properties(ch: RawChannel, stream: str) -> None:
    """Everything the publisher set arrives as it was, x-stream-offset added."""
    body = bytes(range(256)) * 20_000
    headers = {"n": 5, "deep": {"x": [1, None]}}
    fill(ch, stream, [body], content_type="text/plain", headers=headers, delivery_mode=1, message_id="id")
    fill(ch, stream, [b""])
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    got = ch.deliveries(2)
    assert got[0].body == body and got[1].body == b""
    assert got[0].properties["headers"] == {**headers, "x-stream-offset": 0}
    assert (got[0].properties["content_type"], got[0].properties["message_id"], got[0].properties["delivery_mode"]) == (
        "text/plain",
        "id",
        1,
    )


def test_cancel_and_consume_again(ch: RawChannel, stream: str) -> None:
    """A consumer on its own has no place that is kept: the next one says where it begins."""
    fill(ch, stream, numbered(4))
    tag = ch.consume(stream, arguments={"x-stream-offset": "first"})
    got = ch.deliveries(4)
    ch.send("basic.ack", delivery_tag=got[-1].delivery_tag, multiple=True)
    ch.call("basic.cancel", consumer_tag=tag)
    ch.consume(stream, arguments={"x-stream-offset": 2})
    assert offsets(ch.deliveries(2)) == [2, 3]


# --- filters ----------------------------------------------------------------------------------------------------------------


@pytest.mark.flintmq_only("RabbitMQ filters by chunk: clients must filter again")
def test_filters(ch: RawChannel, stream: str) -> None:
    """A consumer with x-stream-filter gets exactly the messages with one of its values, and those without one if it asks."""
    for number in range(12):
        value = ("red", "green", None)[number % 3]
        ch.publish(b"m%d" % number, routing_key=stream, **({"headers": {"x-stream-filter-value": value}} if value else {}))
    wait_confirms(ch, 12)
    ch.consume(stream, "one", arguments={"x-stream-offset": "first", "x-stream-filter": "red"})
    assert offsets(ch.deliveries(4)) == [0, 3, 6, 9]
    ch.consume(stream, "two", arguments={"x-stream-offset": "first", "x-stream-filter": ["green", "blue"]})
    assert offsets(ch.deliveries(4)) == [1, 4, 7, 10]
    ch.consume(stream, "three", arguments={"x-stream-offset": "first", "x-stream-filter": ["red"], "x-stream-match-unfiltered": True})
    assert offsets(ch.deliveries(8)) == [0, 2, 3, 5, 6, 8, 9, 11]
    ch.nothing()


# --- publishing -------------------------------------------------------------------------------------------------------------


def test_beside_ordinary_queues(ch: RawChannel, stream: str) -> None:
    """A message routed to a stream and to queues is in all of them and confirmed once; mandatory finds the stream."""
    ch.queue(stream + ".q", durable=True)
    ch.queue(stream + ".t", exclusive=True)
    for queue in (stream, stream + ".q", stream + ".t"):
        ch.call("queue.bind", queue=queue, exchange="amq.fanout", routing_key="")
    for number in range(20):
        ch.publish(b"%d" % number, exchange="amq.fanout", delivery_mode=2 - number % 2, mandatory=True)
    wait_confirms(ch, 20)
    ch.wait_ready(stream + ".q", 20)
    assert (ch.ready(stream), ch.ready(stream + ".t")) == (20, 20)
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    assert [one.body for one in ch.deliveries(20)] == [b"%d" % number for number in range(20)]
    ch.call("queue.delete", queue=stream)
    ch.publish(b"after", exchange="amq.fanout", delivery_mode=2)
    while (method := ch.connection.recv(1)).name != "basic.ack":
        assert method.name in ("basic.cancel", "basic.deliver")
    ch.wait_ready(stream + ".q", 21)
    ch.call("queue.delete", queue=stream + ".q")


def test_transactions(connect: Connect, stream: str) -> None:
    """tx: nothing is in the stream before the commit, everything after commit-ok, in order; nothing after a rollback."""
    ch = connect().channel()
    ch.call("tx.select")
    ch.call("basic.qos", prefetch_count=100)
    for number in range(5):
        ch.publish(b"%d" % number, routing_key=stream)
    assert ch.ready(stream) == 0
    ch.call("tx.commit")
    assert ch.ready(stream) == 5
    ch.publish(b"no", routing_key=stream)
    ch.call("tx.rollback")
    ch.call("tx.commit")
    assert ch.ready(stream) == 5


@groups_only
def test_a_transaction_settles_for_a_group(connect: Connect, stream: str) -> None:
    """Acks of a transaction move the group at the commit, and with them a message to the stream and one to a queue."""
    ch = connect().channel()
    ch.queue(stream + ".q", durable=True)
    fill_ch = connect().channel()
    fill_ch.call("confirm.select")
    fill(fill_ch, stream, numbered(4))
    ch.call("tx.select")
    ch.call("basic.qos", prefetch_count=10)
    tag = ch.consume(stream, arguments={"x-stream-offset": "first", "x-group": "g"})
    got = ch.deliveries(4)
    for one in got[:2]:
        ch.send("basic.ack", delivery_tag=one.delivery_tag)
    ch.publish(b"result", routing_key=stream + ".q", delivery_mode=2)
    ch.publish(b"event", routing_key=stream)
    ch.call("tx.commit")
    assert (ch.ready(stream), ch.ready(stream + ".q")) == (5, 1)
    assert offsets(ch.deliveries(1)) == [4]
    ch.call("basic.cancel", consumer_tag=tag)
    ch.connection.close()
    later = connect().channel()
    later.call("basic.qos", prefetch_count=10)
    later.consume(stream, arguments={"x-group": "g"})
    assert sorted(offsets(later.deliveries(3))) == [2, 3, 4]
    later.nothing()
    later.call("queue.delete", queue=stream + ".q")


# --- groups -----------------------------------------------------------------------------------------------------------------


@groups_only
def test_a_group_shares_and_others_do_not_notice(connect: Connect, stream: str, ch: RawChannel) -> None:
    """Each message goes to one consumer of the group; another group and a lone consumer get all of them."""
    fill(ch, stream, numbered(60))
    members = []
    for _ in range(3):
        member = connect().channel()
        member.call("basic.qos", prefetch_count=20)
        member.consume(stream, arguments={"x-group": "workers", "x-stream-offset": "first"})
        members.append(member)
    shares = [offsets(member.deliveries(20)) for member in members]
    assert sorted(offset for share in shares for offset in share) == list(range(60))
    other = connect().channel()
    other.call("basic.qos", prefetch_count=100)
    other.consume(stream, "other", arguments={"x-group": "audit", "x-stream-offset": "first"})
    other.consume(stream, "alone", arguments={"x-stream-offset": "first"})
    got = other.deliveries(120)
    for tag in ("other", "alone"):
        assert offsets([one for one in got if one.consumer_tag == tag]) == list(range(60))


@groups_only
def test_a_group_goes_on_where_it_was(connect: Connect, stream: str, ch: RawChannel) -> None:
    """The place is the broker's: acked messages, in any order, do not come again; x-stream-offset counts for the first time only."""
    fill(ch, stream, numbered(10))
    first = connect().channel()
    first.call("basic.qos", prefetch_count=6)
    first.consume(stream, arguments={"x-group": "g", "x-stream-offset": "first"})
    got = first.deliveries(6)
    for index in (5, 0, 2):
        first.send("basic.ack", delivery_tag=got[index].delivery_tag)
    assert offsets(first.deliveries(3)) == [6, 7, 8]
    first.connection.drop()
    second = connect().channel()
    second.call("basic.qos", prefetch_count=100)
    second.consume(stream, arguments={"x-group": "g", "x-stream-offset": "first"})
    again = second.deliveries(7)
    assert {(offset, one.redelivered) for offset, one in zip(offsets(again), again, strict=True)} == {
        *((offset, True) for offset in (1, 3, 4, 6, 7, 8)),
        (9, False),
    }
    second.nothing()


@groups_only
def test_requeue_brings_back_to_the_group(connect: Connect, stream: str, ch: RawChannel) -> None:
    """nack with requeue: the message comes to the group again, flagged, before what nobody had."""
    fill(ch, stream, numbered(3))
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(stream, arguments={"x-group": "g", "x-stream-offset": "first"})
    (one,) = ch.deliveries(1)
    ch.send("basic.nack", delivery_tag=one.delivery_tag, requeue=True)
    (again,) = ch.deliveries(1)
    assert (offsets([again]), again.redelivered, one.redelivered) == ([0], True, False)
    ch.send("basic.ack", delivery_tag=again.delivery_tag)
    assert offsets(ch.deliveries(1)) == [1]


@groups_only
def test_numbers_of_63_bits(connect: Connect, name: str) -> None:
    """The largest numbers that AMQP has make a stream that works: nothing comes again because of them."""
    ch = connect().channel()
    huge = 2**63 - 1
    most = {"x-delivery-limit": huge, "x-consumer-timeout": huge, "x-max-length-bytes": huge, "x-max-age": "9999999999999999999Y"}
    ch.queue(name, durable=True, arguments={**STREAM, **most})
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=10)
    fill(ch, name, [b"one"])
    ch.consume(name, arguments={"x-group": "g", "x-stream-offset": "first"})
    for again in (False, True):
        (one,) = ch.deliveries(1)
        ch.nothing()
        assert (one.body, one.redelivered) == (b"one", again)
        ch.send("basic.nack", delivery_tag=one.delivery_tag, requeue=True)


@groups_only
def test_retry_delay_and_delivery_limit(ch: RawChannel, name: str) -> None:
    """A message that keeps coming back goes to the dead-letter exchange with the reason delivery_limit; a rejected one at once."""
    dead = ch.queue(exclusive=True)
    arguments = {
        **STREAM,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-delivery-limit": 2,
        "x-retry-delay": 50,
    }
    ch.queue(name, durable=True, arguments=arguments)
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=10)
    fill(ch, name, [b"poison", b"bad", b"good"])
    ch.consume(name, "c", arguments={"x-group": "g", "x-stream-offset": "first"})
    poison, bad, good = ch.deliveries(3)
    ch.send("basic.reject", delivery_tag=bad.delivery_tag, requeue=False)
    ch.send("basic.ack", delivery_tag=good.delivery_tag)
    times = [time.monotonic()]
    for _ in range(2):
        ch.send("basic.nack", delivery_tag=poison.delivery_tag, requeue=True)
        (poison,) = ch.deliveries(1)
        times.append(time.monotonic())
        assert poison.redelivered and poison.body == b"poison"
    assert all(later - sooner >= 0.045 for sooner, later in itertools.pairwise(times))
    ch.send("basic.nack", delivery_tag=poison.delivery_tag, requeue=True)
    ch.wait_ready(dead, 2)
    ch.nothing()
    deaths = {}
    for _ in range(2):
        got = ch.call("basic.get", queue=dead, no_ack=True)
        (death,) = got.properties["headers"]["x-death"]
        deaths[got.body] = (death["reason"], death["queue"], got.properties["headers"]["x-stream-offset"])
    assert deaths == {b"poison": ("delivery_limit", name, 0), b"bad": ("rejected", name, 1)}


@groups_only
def test_visibility_time(connect: Connect, name: str) -> None:
    """x-consumer-timeout: what is not settled in time goes to another member of the group; a late ack changes nothing."""
    ch = connect().channel()
    ch.queue(name, durable=True, arguments={**STREAM, "x-consumer-timeout": 1500})
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=1)
    fill(ch, name, [b"slow"])
    ch.consume(name, "slow", arguments={"x-group": "g", "x-stream-offset": "first"})
    (held,) = ch.deliveries(1)
    other = connect().channel()
    other.call("basic.qos", prefetch_count=1)
    other.consume(name, "other", arguments={"x-group": "g"})
    (again,) = other.deliveries(1)
    assert again.redelivered and offsets([again]) == [0]
    ch.send("basic.ack", delivery_tag=held.delivery_tag)
    other.send("basic.ack", delivery_tag=again.delivery_tag)
    other.nothing()


@groups_only
def test_members_have_one_filter(ch: RawChannel, stream: str) -> None:
    """Another filter than the group's is refused with 406."""
    ch.consume(stream, arguments={"x-group": "g", "x-stream-filter": "a"})
    text = f"inequivalent arg 'x-stream-filter' for consumer group 'g' of queue '{stream}' in vhost '/'"
    ch.refuse(406, text, "basic.consume", queue=stream, arguments={"x-group": "g", "x-stream-filter": "b"})


# --- more ways in and out ---------------------------------------------------------------------------------------------------


def test_by_properties_of_the_message(ch: RawChannel, stream: str) -> None:
    """CC and a headers exchange lead to a stream, too: the message goes the slow way and is confirmed when it is on disk."""
    ch.call("queue.bind", queue=stream, exchange="amq.headers", arguments={"x-match": "all", "kind": "event"})
    ch.publish(b"cc", routing_key=stream + ".nobody", headers={"CC": [stream]})
    ch.publish(b"headers", exchange="amq.headers", headers={"kind": "event"})
    ch.publish(b"else", exchange="amq.headers", headers={"kind": "other"})
    wait_confirms(ch, 3)
    assert ch.ready(stream) == 2
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    got = ch.deliveries(2)
    assert [one.body for one in got] == [b"cc", b"headers"] and got[0].properties["headers"] == {"CC": [stream], "x-stream-offset": 0}


def test_dead_letters_of_a_queue(connect: Connect, stream: str) -> None:
    """A queue may dead-letter into a stream: rejected, expired, and rejected in a transaction."""
    ch = connect().channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream}
    queue = ch.queue(durable=True, arguments=arguments)
    passing = connect().channel().queue(durable=True, arguments={**arguments, "x-message-ttl": 20})
    for number in range(2):
        ch.publish(b"%d" % number, routing_key=queue, delivery_mode=2)
    ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue=queue).delivery_tag, requeue=False)
    ch.wait_ready(stream, 1)
    ch.call("tx.select")
    ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue=queue).delivery_tag, requeue=False)
    ch.call("tx.commit")
    assert ch.ready(stream) == 2
    reader = connect().channel()
    reader.publish(b"2", routing_key=passing, delivery_mode=2)
    reader.wait_ready(stream, 3)
    reader.call("basic.qos", prefetch_count=10)
    reader.consume(stream, arguments={"x-stream-offset": "first"})
    deaths = [(one.body, one.properties["headers"]["x-death"][0]["reason"]) for one in reader.deliveries(3)]
    assert deaths == [(b"0", "rejected"), (b"1", "rejected"), (b"2", "expired")]
    for name in (queue, passing):
        ch.call("queue.delete", queue=name)


def test_a_backlog_that_is_not_in_memory(connect: Connect, stream: str, ch: RawChannel) -> None:
    """Tens of MiB, read from the disk by several at once, in order and whole, while new messages come."""
    bodies = [b"%06d" % number + bytes(40_000) for number in range(600)]
    fill(ch, stream, bodies)
    readers = []
    for arguments in ({"x-stream-offset": "first"}, {"x-stream-offset": 100}, {"x-stream-offset": "first", "x-group": "g"}):
        reader = connect().channel()
        reader.call("basic.qos", prefetch_count=40)
        reader.consume(stream, arguments=arguments)
        readers.append(reader)
    fill(ch, stream, [b"%06d" % number for number in range(600, 620)])
    for reader, first in zip(readers, (0, 100, 0), strict=True):
        for offset in range(first, 620):
            (one,) = reader.deliveries(1)
            assert one.properties["headers"]["x-stream-offset"] == offset
            assert one.body == (bodies[offset] if offset < 600 else b"%06d" % offset)
            if offset % 20 == 0:
                reader.send("basic.ack", delivery_tag=one.delivery_tag, multiple=True)
        reader.connection.drop()


def test_x_max_age(ch: RawChannel, name: str) -> None:
    """Segments whose messages are all older go; the last one stays; offsets go on."""
    ch.queue(name, durable=True, arguments={**STREAM, "x-max-age": "1s", "x-stream-max-segment-size-bytes": 600_000})
    ch.call("confirm.select")
    ch.call("basic.qos", prefetch_count=100)
    fill(ch, name, [bytes(50_000)] * 60)
    deadline = time.monotonic() + 60
    while ch.ready(name) > 30:
        assert time.monotonic() < deadline, f"{ch.ready(name)} messages are still kept"
        time.sleep(0.05)
    fill(ch, name, [b"new"])
    ch.consume(name, arguments={"x-stream-offset": 0})
    while (got := ch.deliveries(1)[0]).body != b"new":
        ch.send("basic.ack", delivery_tag=got.delivery_tag)
    assert offsets([got]) == [60]


# --- ends -------------------------------------------------------------------------------------------------------------------


def test_deleting_cancels_consumers(connect: Connect, stream: str, ch: RawChannel) -> None:
    """queue.delete: consumers get basic.cancel, unsettled deliveries can still be settled, the name is free and begins at 0."""
    fill(ch, stream, numbered(3))
    ch.consume(stream, "c", arguments={"x-stream-offset": "first"})
    got = ch.deliveries(3)
    deleter = connect().channel()
    deleter.call("queue.delete", queue=stream)
    assert ch.expect("basic.cancel").consumer_tag == "c"
    ch.send("basic.ack", delivery_tag=got[-1].delivery_tag, multiple=True)
    ch.refuse(404, "no queue", "basic.consume", queue=stream)
    ch.queue(stream, durable=True, arguments=STREAM)
    ch.call("basic.qos", prefetch_count=10)
    ch.consume(stream, arguments={"x-stream-offset": "first"})
    ch.publish(b"new", routing_key=stream)
    (one,) = ch.deliveries(1)
    assert offsets([one]) == [0] and one.body == b"new"


@groups_only
def test_a_reader_that_retention_overtakes_is_told(connect: Connect, name: str) -> None:
    """x-max-length-bytes drops whole segments from the front; a group that lags gets x-stream-lost with its next message, and the offsets
    it got plus what it lost are all there are."""
    ch = connect().channel()
    # A segment has at least 512 KiB.
    ch.queue(name, durable=True, arguments={**STREAM, "x-max-length-bytes": 1_000_000, "x-stream-max-segment-size-bytes": 1})
    ch.call("confirm.select")
    slow = connect().channel()
    slow.call("basic.qos", prefetch_count=1)
    slow.consume(name, arguments={"x-group": "slow", "x-stream-offset": "first"})
    fill(ch, name, [b"first"])
    (got,) = slow.deliveries(1)
    fill(ch, name, [bytes(50_000)] * 100)
    deadline = time.monotonic() + 60
    while ch.ready(name) > 60:
        assert time.monotonic() < deadline, f"{ch.ready(name)} messages are still kept"
        time.sleep(0.05)
    seen, lost = offsets([got]), 0
    while seen[-1] != 100:
        slow.send("basic.ack", delivery_tag=got.delivery_tag)
        (got,) = slow.deliveries(1)
        seen += offsets([got])
        lost += got.properties["headers"].get("x-stream-lost", 0)
    assert lost > 0 and len(seen) + lost == 101 and seen == sorted(set(seen))


def test_two_streams_by_one_channel(ch: RawChannel, stream: str) -> None:
    """Confirms stay in order when messages go to several streams and to a transient queue in turn."""
    other = stream + ".2"
    ch.queue(other, durable=True, arguments=STREAM)
    transient = ch.queue(exclusive=True)
    for number in range(90):
        ch.publish(b"%d" % number, routing_key=(stream, other, transient)[number % 3])
    wait_confirms(ch, 90)
    assert (ch.ready(stream), ch.ready(other), ch.ready(transient)) == (30, 30, 30)
    ch.call("queue.delete", queue=other)


@pytest.mark.flintmq_only("there is no other broker in memory")
def test_a_broker_in_memory_has_no_streams() -> None:
    """--memory: 406 that says why."""
    with Broker("--memory") as broker, contextlib.closing(RawConnection(broker.host, broker.port).open()) as conn:
        text = "can't be a stream: this broker keeps nothing on disk"
        conn.channel().refuse(406, text, "queue.declare", queue=unique("s"), durable=True, arguments=STREAM)
