"""Unacked deliveries: memory follows what is unsettled, acks work in any order, what is not settled returns in its order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_by_kind
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel


def fill(channel: RawChannel, queue: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        channel.publish(b"%d" % number, routing_key=queue)


def bodies(channel: RawChannel, count: int) -> list[int]:
    return [int(message.body) for message in channel.deliveries(count)]


@pytest.fixture
def ch(start: Callable[..., Any], connect: Callable[..., Any]) -> RawChannel:
    channel = connect(start()).channel()
    channel.queue("q")
    return channel


def test_one_old_unacked_delivery_does_not_pin_the_memory_of_later_ones(ch: RawChannel) -> None:
    ch.call("basic.qos", prefetch_count=512, prefetch_size=0)
    ch.consume("q")
    fill(ch, "q", 1)
    assert bodies(ch, 1) == [0]
    measured = 0
    for batch in range(100):
        fill(ch, "q", 500, 1 + batch * 500)
        last = ch.deliveries(500)[-1]
        assert int(last.body) == (batch + 1) * 500
        # Everything but tag 1: newest first half by single acks would be slow, so two spans by single and multiple.
        for tag in range(batch * 500 + 2, batch * 500 + 502):
            ch.send("basic.ack", delivery_tag=tag)
        ch.ready("q")
        if batch == 20:
            measured = bytes_by_kind()["unacked"]
    grown = bytes_by_kind()["unacked"] - measured
    assert grown < 40_000, f"{grown} bytes grown over 40,000 settled deliveries"
    ch.call("basic.recover", requeue=True)
    again = ch.expect("basic.deliver")
    assert (again.body, bool(again.redelivered)) == (b"0", True)


def test_acks_in_any_order(ch: RawChannel) -> None:
    count = 2_000
    fill(ch, "q", count)
    ch.consume("q")
    assert bodies(ch, count) == list(range(count))
    tags = list(range(1, count + 1))
    random.Random(8).shuffle(tags)
    kept = sorted(tags[-7:])
    for tag in tags[:-7]:
        ch.send("basic.ack", delivery_tag=tag)
    assert ch.ready("q") == 0
    ch.call("basic.recover", requeue=True)
    assert bodies(ch, 7) == [tag - 1 for tag in kept]


def test_multiple_ack_covers_what_is_before_it(ch: RawChannel) -> None:
    fill(ch, "q", 600)
    tag = ch.consume("q")
    ch.deliveries(600)
    ch.send("basic.ack", delivery_tag=300)
    ch.send("basic.ack", delivery_tag=500, multiple=True)
    ch.send("basic.nack", delivery_tag=550, multiple=True, requeue=False)
    ch.call("basic.cancel", consumer_tag=tag)
    ch.call("basic.recover", requeue=True)
    assert ch.ready("q") == 50
    ch.refuse(406, "unknown delivery tag 500", "basic.ack", delivery_tag=500, multiple=True)


def test_multiple_with_tag_zero_is_everything_and_may_be_nothing(ch: RawChannel) -> None:
    ch.send("basic.ack", delivery_tag=0, multiple=True)
    fill(ch, "q", 10)
    ch.consume("q")
    ch.deliveries(10)
    ch.send("basic.ack", delivery_tag=0, multiple=True)
    ch.call("basic.recover", requeue=True)
    ch.nothing()
    ch.refuse(406, "unknown delivery tag 0", "basic.ack", delivery_tag=0)


def test_twice_acked_tag_is_unknown(ch: RawChannel) -> None:
    fill(ch, "q", 2)
    ch.consume("q")
    ch.deliveries(2)
    ch.send("basic.ack", delivery_tag=1)
    ch.refuse(406, "PRECONDITION_FAILED - unknown delivery tag 1", "basic.ack", delivery_tag=1)
    assert ch.ready("q") == 1


@pytest.mark.parametrize("name", ["basic.ack", "basic.nack", "basic.reject"])
def test_tag_that_never_was_is_unknown(ch: RawChannel, name: str) -> None:
    rest = {} if name == "basic.ack" else {"requeue": True}
    ch.refuse(406, "unknown delivery tag 77", name, delivery_tag=77, **rest)


def test_cancelled_consumer_may_still_ack(ch: RawChannel) -> None:
    fill(ch, "q", 5)
    tag = ch.consume("q")
    ch.deliveries(5)
    ch.call("basic.cancel", consumer_tag=tag)
    ch.send("basic.ack", delivery_tag=2)
    ch.send("basic.nack", delivery_tag=4, requeue=False)
    ch.send("basic.reject", delivery_tag=1, requeue=True)
    assert ch.ready("q") == 1
    ch.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    fresh = ch.connection.channel(2)
    fresh.consume("q")
    back = fresh.deliveries(3)
    assert [(int(message.body), bool(message.redelivered)) for message in back] == [(0, True), (2, True), (4, True)]


def test_channel_close_returns_entries_to_their_places(ch: RawChannel) -> None:
    fill(ch, "q", 1000)
    ch.call("basic.qos", prefetch_count=700, prefetch_size=0)
    ch.consume("q")
    ch.deliveries(700)
    for tag in range(1, 701, 7):
        ch.send("basic.ack", delivery_tag=tag)
    ch.deliveries(100)
    ch.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    fresh = ch.connection.channel(2)
    fresh.consume("q")
    expected = [(n, n < 800) for n in range(1000) if not (n < 700 and n % 7 == 0)]
    assert [(int(message.body), bool(message.redelivered)) for message in fresh.deliveries(len(expected))] == expected


def test_lost_client_returns_entries_in_order(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(io_threads=2)
    victim = connect(broker)
    channel = victim.channel()
    channel.queue("q")
    fill(channel, "q", 300)
    channel.consume("q")
    channel.deliveries(300)
    other = connect(broker).channel()
    victim.drop()
    wait_until(lambda: other.ready("q") == 300, what="the entries are back")
    other.consume("q")
    back = other.deliveries(300)
    assert [int(message.body) for message in back] == list(range(300))
    assert all(message.redelivered for message in back)


def test_get_and_consume_share_the_tags_of_a_channel(ch: RawChannel) -> None:
    fill(ch, "q", 3)
    got = ch.call("basic.get", queue="q")
    assert (got.delivery_tag, got.body, got.message_count) == (1, b"0", 2)
    ch.consume("q")
    assert [message.delivery_tag for message in ch.deliveries(2)] == [2, 3]
    ch.send("basic.ack", delivery_tag=3, multiple=True)
    ch.refuse(406, "unknown delivery tag 1", "basic.ack", delivery_tag=1)


def test_prefetch_is_given_back_once_per_settlement(ch: RawChannel) -> None:
    ch.call("basic.qos", prefetch_count=3, prefetch_size=0)
    fill(ch, "q", 20)
    ch.consume("q")
    assert bodies(ch, 3) == [0, 1, 2]
    ch.nothing()
    ch.send("basic.ack", delivery_tag=2, multiple=True)
    assert bodies(ch, 2) == [3, 4]
    ch.nothing()
    ch.send("basic.reject", delivery_tag=3, requeue=True)
    assert bodies(ch, 1) == [2]
    ch.nothing()
