"""A message past its time is never delivered; it goes to the dead-letter exchange or is counted. Unused queues with x-expires go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.clock import ManualClock
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

SLOW = {"housekeeping_ms": 60_000}  # the housekeeping does not come round during the test


def gone(channel: RawChannel, queue: str) -> None:
    wait_until(lambda: channel.ready(queue) == 0, what=f"{queue} is empty")


@pytest.mark.parametrize("how", ["queue", "message", "both"])
def test_expired_messages_leave_the_queue(start: Callable[..., Any], connect: Callable[..., Any], how: str) -> None:
    broker = start()
    channel = connect(broker).channel()
    channel.queue("q", arguments={} if how == "message" else {"x-message-ttl": 60_000 if how == "both" else 30})
    expiration = {} if how == "queue" else {"expiration": "30"}
    channel.publish(b"x", routing_key="q", **expiration)
    if how == "both":  # the lesser one counts, either way round
        channel.queue("p", arguments={"x-message-ttl": 30})
        channel.publish(b"x", routing_key="p", expiration="60000")
        gone(channel, "p")
    gone(channel, "q")
    wait_until(lambda: broker.node.broker.counters.drops["expired"] == (2 if how == "both" else 1))


@pytest.mark.parametrize("reader", ["consume", "get"])
def test_expired_message_is_never_delivered_late(start: Callable[..., Any], connect: Callable[..., Any], reader: str) -> None:
    broker = start(SLOW)
    broker.node.broker.expiry.stop()  # the clock does not ring
    channel = connect(broker).channel()
    channel.queue("dead")
    channel.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.publish(b"first", routing_key="q")
    channel.publish(b"late", routing_key="q", expiration="40")
    channel.publish(b"last", routing_key="q")
    channel.wait_ready("q", 3)  # its time began when the broker read it
    until = time.monotonic() + 0.06
    wait_until(lambda: time.monotonic() > until)
    assert channel.ready("q") == 3, "nothing but the reader finds that its time is over"
    if reader == "consume":
        channel.consume("q", no_ack=True)
        assert [message.body for message in channel.deliveries(2)] == [b"first", b"last"]
    else:
        assert [channel.call("basic.get", queue="q", no_ack=True).body for _ in range(2)] == [b"first", b"last"]
        assert channel.call("basic.get", queue="q", no_ack=True).name == "basic.get-empty"
    assert channel.ready("dead") == 1


def test_message_that_a_consumer_holds_does_not_expire_in_its_hands(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start()).channel()
    channel.queue("q", arguments={"x-message-ttl": 200})
    tag = channel.consume("q")
    for _ in range(20):  # one expires before the consumer's turn when the broker does not get to run in between
        channel.publish(b"x", routing_key="q")
        with contextlib.suppress(TimeoutError):
            held = channel.expect("basic.deliver", 3)
            break
    until = time.monotonic() + 0.25
    wait_until(lambda: time.monotonic() > until)
    channel.call("basic.cancel", consumer_tag=tag)
    channel.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)  # a good tag, and now it is past its time
    gone(channel, "q")


def test_ttl_zero_reaches_a_waiting_consumer_and_nobody_else(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start()).channel()
    channel.queue("q", arguments={"x-message-ttl": 0})
    channel.publish(b"nobody", routing_key="q")
    gone(channel, "q")
    channel.consume("q", no_ack=True)
    for _ in range(5):
        channel.publish(b"you", routing_key="q")
        # A broker that did not get to run between taking it and the consumer's turn lets it expire: then once more.
        with contextlib.suppress(TimeoutError):
            assert channel.expect("basic.deliver", 3).body == b"you"
            return
    raise AssertionError("the waiting consumer got none of five")


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "", "12x", "315360000001"])
def test_invalid_expiration_is_refused(start: Callable[..., Any], connect: Callable[..., Any], value: str) -> None:
    channel = connect(start()).channel()
    channel.queue("q")
    channel.publish(b"body", routing_key="q", expiration=value)
    channel.expect_close(406, f"invalid expiration '{value}'")
    channel.connection.channel(2).queue("q2")


def test_expiration_may_be_ten_years(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start()).channel()
    channel.queue("q")
    channel.publish(b"body", routing_key="q", expiration="315360000000")
    channel.publish(b"body", routing_key="q", expiration="4294967296")
    channel.wait_ready("q", 2)


def test_expiration_inside_a_transaction_counts_from_the_commit(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    channel = connect(start()).channel()
    channel.queue("q")
    channel.call("tx.select")
    channel.publish(b"x", routing_key="q", expiration="30")
    channel.publish(b"y", routing_key="q")
    channel.call("tx.commit")
    wait_until(lambda: channel.ready("q") == 1, what="one of the two expired")
    assert channel.call("basic.get", queue="q").body == b"y"


def test_unused_queue_with_x_expires_goes(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    clock = ManualClock()
    broker = start(clock=clock)
    queues = broker.node.broker.vhosts["/"].queues
    channel = connect(broker).channel()
    channel.queue("q", arguments={"x-expires": 120})
    channel.queue("used", arguments={"x-expires": 120})
    channel.consume("used", "c")
    probe = channel.connection.channel(9)
    clock.advance(ms=119)
    probe.nothing()  # housekeeping comes round
    assert "q" in queues
    clock.advance(ms=1)
    wait_until(lambda: "q" not in queues, what="the unused queue goes")
    probe.refuse(404, "no queue 'q' in vhost '/'", "queue.declare", queue="q", passive=True)
    assert probe.queue("used", passive=True) == "used", "a queue with a consumer is in use"
    channel.call("basic.cancel", consumer_tag="c")
    clock.advance(ms=120)
    wait_until(lambda: "used" not in queues, what="without its consumer it goes, too")
    probe.refuse(404, "no queue 'used'", "queue.declare", queue="used", passive=True)


MINIMUM, MAXIMUM = "x-qpid-minimum-message-ttl", "x-qpid-maximum-message-ttl"


@pytest.mark.parametrize(
    ("arguments", "expiration", "gone_at_once"),
    [
        ({MINIMUM: 60_000}, "30", False),
        ({MINIMUM: 60_000}, "0", False),
        ({MINIMUM: 20}, "30", True),
        ({MINIMUM: 60_000, MAXIMUM: 30}, "10", True),
        ({MINIMUM: 60_000, "x-message-ttl": 30}, "10", True),
        ({MAXIMUM: 30}, None, True),
        ({MAXIMUM: 30}, "60000", True),
        ({MAXIMUM: 60_000, "x-message-ttl": 30}, None, True),
        ({MAXIMUM: 30, "x-message-ttl": 60_000}, None, True),
    ],
)
@pytest.mark.parametrize("way", ["publish", "commit"])
def test_a_queue_raises_and_caps_the_time_to_live(
    start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, int], expiration: str | None, gone_at_once: bool, way: str
) -> None:
    broker = start()
    channel = connect(broker).channel()
    channel.queue("q", arguments=arguments)
    if way == "commit":
        channel.call("tx.select")
    channel.publish(b"x", routing_key="q", **({} if expiration is None else {"expiration": expiration}))
    if way == "commit":
        channel.call("tx.commit")
    if gone_at_once:
        wait_until(lambda: broker.node.broker.counters.drops["expired"] == 1, what="it expired")
        gone(channel, "q")
    else:
        channel.wait_ready("q", 1)
        until = time.monotonic() + 0.15
        wait_until(lambda: time.monotonic() > until)
        assert channel.ready("q") == 1 and broker.node.broker.counters.drops["expired"] == 0


def test_an_expired_message_behind_a_live_head_leaves_at_its_time(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(SLOW)
    channel = connect(broker).channel()
    channel.queue("dead")
    channel.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.consume("dead", no_ack=True)
    channel.publish(b"lives", routing_key="q")
    publisher = channel.connection.channel(2)
    publisher.call("tx.select")  # so that the times of both begin at once
    publisher.publish(b"second", routing_key="q", expiration="350")
    publisher.publish(b"first", routing_key="q", expiration="50")
    publisher.call("tx.commit")
    assert [one.body for one in channel.deliveries(2)] == [b"first", b"second"]  # how late on a quiet machine: bench/expiry.py
    assert channel.ready("q") == 1
