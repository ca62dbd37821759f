"""A confirm never runs ahead of the log, every tag is answered once and in order, and deliveries do not wait for the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.twins.memory_log import MemoryLog

PERSISTENT = {"delivery_mode": 2}


def answers(channel: RawChannel, last: int, timeout: float = 30.0) -> list[tuple[str, int]]:
    """(ack or nack, tag) for every single tag up to `last`, in the order the client learns them."""
    seen: list[tuple[str, int]] = []
    done: set[int] = set()
    while len(done) < last:
        method = channel.connection.recv(channel.number, timeout)
        assert method.name in ("basic.ack", "basic.nack"), method.name
        first = (max(done) if done else 0) + 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            assert tag not in done, f"tag {tag} is answered twice"
            done.add(tag)
            seen.append((method.name[6:], tag))
    return seen


def setup(start: Callable[..., Any], connect: Callable[..., Any]) -> tuple[MemoryLog, RawChannel]:
    log = MemoryLog()
    channel = connect(start(log=log)).channel()
    channel.queue("kept", durable=True)
    channel.queue("passing")
    channel.call("confirm.select")
    return log, channel


def test_persistent_message_is_confirmed_when_its_log_record_is_durable(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    log.hold()
    channel.publish(b"1", routing_key="kept", **PERSISTENT)
    wait_until(lambda: log.enqueues == 1, what="the message is logged")
    channel.nothing()
    log.release()
    assert answers(channel, 1) == [("ack", 1)]


def test_multiple_never_passes_a_tag_that_waits(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    log.hold()
    channel.publish(b"1", routing_key="passing")
    channel.publish(b"2", routing_key="kept", **PERSISTENT)
    for _ in range(5):
        channel.publish(b"3", routing_key="passing")
    assert channel.ready("passing") == 6  # all of them were read
    first = channel.expect("basic.ack")
    assert first.delivery_tag == 1
    channel.nothing()
    log.release()
    second = channel.expect("basic.ack")
    assert (second.delivery_tag, bool(second.multiple)) == (7, True)
    channel.nothing()


def test_transient_and_unlogged_messages_do_not_wait(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    log.hold()
    channel.publish(b"1", routing_key="kept")  # transient on a durable queue
    channel.publish(b"2", routing_key="passing", **PERSISTENT)  # persistent on a queue that is not durable
    channel.publish(b"3", routing_key="nowhere", **PERSISTENT)
    assert answers(channel, 3) == [("ack", 1), ("ack", 2), ("ack", 3)]
    assert log.enqueues == 0


def test_delivery_does_not_wait_for_the_log(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log = MemoryLog()
    broker = start(log=log)
    consumer = connect(broker).channel()
    consumer.queue("kept", durable=True)
    consumer.consume("kept", no_ack=True)
    publisher = connect(broker).channel()
    publisher.call("confirm.select")
    log.hold()
    publisher.publish(b"now", routing_key="kept", **PERSISTENT)
    assert consumer.expect("basic.deliver").body == b"now"
    publisher.nothing()
    log.release()
    assert answers(publisher, 1) == [("ack", 1)]


def test_refused_messages_are_nacked_once_and_in_order(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    channel.queue("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    log.hold()
    for key in ("small", "kept", "small", "small", "passing", "small"):
        channel.publish(b"m", routing_key=key, **PERSISTENT)
    assert answers(channel, 1) == [("ack", 1)]
    assert channel.ready("passing") == 1  # all of them were read
    channel.nothing()
    log.release()
    rest = []
    while len(rest) < 5:
        method = channel.connection.recv(channel.number)
        rest.append((method.name[6:], method.delivery_tag, bool(method.multiple)))
    assert rest == [("ack", 2, False), ("nack", 3, False), ("nack", 4, False), ("ack", 5, False), ("nack", 6, False)]
    assert channel.ready("small") == 1


def test_many_confirms_of_many_passes_come_in_order(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    log.hold()
    for number in range(500):
        channel.publish(b"m", routing_key="kept" if number % 3 else "passing", **PERSISTENT)
        if number % 50 == 49:
            wait_until(lambda wanted=number: log.enqueues >= wanted * 2 // 3, what="the broker read the publishes")
            log.release()
            log.hold()
    wait_until(lambda: log.enqueues == 333, what="the broker read the last publishes, too")
    log.release()
    assert answers(channel, 500) == [("ack", tag) for tag in range(1, 501)]
    channel.nothing()


def test_confirms_of_two_channels_are_separate(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    log, channel = setup(start, connect)
    other = channel.connection.channel(2)
    other.call("confirm.select")
    log.hold()
    channel.publish(b"1", routing_key="kept", **PERSISTENT)
    other.publish(b"1", routing_key="passing")
    assert answers(other, 1) == [("ack", 1)]
    channel.nothing()
    channel.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    log.release()
    other.publish(b"2", routing_key="passing")
    assert other.expect("basic.ack").delivery_tag == 2
