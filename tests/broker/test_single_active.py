"""x-single-active-consumer: one at a time; when it goes the next is the one of the highest priority, and of several the first that came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_promotion_by_priority(start: Callable[..., Any], connect: Callable[..., Any], how: str) -> None:
    broker = start()
    ch = connect(broker).channel()
    ch.queue("q", arguments={"x-single-active-consumer": True})
    connections = [connect(broker) for _ in range(5)]
    channels = [one.channel() for one in connections]
    for channel, (tag, priority) in zip(channels, [("a", 0), ("b", 5), ("c", 9), ("d", 9), ("e", 1)], strict=True):
        channel.consume("q", tag, arguments={"x-priority": priority})
    queue = broker.node.broker.vhosts["/"].queues["q"]
    order = []
    for _ in range(5):
        ch.publish(b"x", routing_key="q")
        tag = broker.node.broker.active[queue.queue_id].tag
        at = "abcde".index(tag)
        got = channels[at].expect("basic.deliver")
        channels[at].send("basic.ack", delivery_tag=got.delivery_tag)
        order.append(tag)
        if how == "cancel":
            channels[at].call("basic.cancel", consumer_tag=tag)
        elif how == "channel":
            channels[at].call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
        else:
            channels[at].call("basic.qos", prefetch_count=0)  # the ack is served
            connections[at].close()
    assert order == ["a", "c", "d", "b", "e"]
    assert queue.queue_id not in broker.node.broker.active


def test_a_higher_priority_does_not_displace_the_active_one(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    ch, other = connect(broker).channel(), connect(broker).channel()
    ch.queue("q", arguments={"x-single-active-consumer": True})
    ch.consume("q", "low")
    other.consume("q", "high", arguments={"x-priority": 10})
    ch.publish(b"x", routing_key="q")
    assert ch.expect("basic.deliver").consumer_tag == "low"
    other.nothing(0.05)


def test_no_consumer_is_exclusive_there(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """The two contradict each other; RabbitMQ's text (tools/differential)."""
    ch = connect(start()).channel()
    ch.queue("q", arguments={"x-single-active-consumer": True})
    ch.send("basic.consume", queue="q", consumer_tag="a", exclusive=True)
    closed = ch.expect("channel.close")
    assert (closed.reply_code, closed.reply_text) == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")
