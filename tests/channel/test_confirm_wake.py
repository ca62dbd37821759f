"""A confirm that waits leaves when the log's writer says so, from any thread and without Python; only what is durable leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.channel.test_confirms import PERSISTENT, answers
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.twins.memory_log import MemoryLog

THREADS = pytest.mark.parametrize("threads", [1, 2])


def confirming(broker: Any, connect: Callable[..., Any], queue: str = "kept") -> RawChannel:
    channel = connect(broker).channel()
    channel.queue(queue, durable=True)
    channel.call("confirm.select")
    return channel


@THREADS
def test_many_waiting_connections_are_answered_by_one_wake(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    """Forty connections wait; one wake answers all, and those of transient messages were answered before."""
    log = MemoryLog()
    broker = start(log=log, io_threads=threads)
    channels = [confirming(broker, connect) for _ in range(40)]
    log.hold()
    for number, channel in enumerate(channels):
        channel.publish(b"m", routing_key="kept", **(PERSISTENT if number % 4 else {}))
    for channel in channels[::4]:
        assert answers(channel, 1) == [("ack", 1)]
    wait_until(lambda: log.enqueues == 30)
    for channel in channels:
        channel.nothing(0.001)
    log.release()
    for number, channel in enumerate(channels):
        if number % 4:
            assert answers(channel, 1) == [("ack", 1)]


def test_wake_from_another_thread_needs_no_python(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """No callback, no timer: the waker alone brings the confirm while the loop sleeps."""
    log = MemoryLog()
    broker = start(log=log, limits={"housekeeping_ms": 3_600_000})
    assert log.on_durable is None
    channel = confirming(broker, connect)
    for number in range(1, 30):
        log.hold()
        channel.publish(b"m", routing_key="kept", **PERSISTENT)
        wait_until(lambda wanted=number: log.enqueues == wanted, step=0.0005)
        thread = threading.Thread(target=log.release)
        thread.start()
        thread.join()
        assert channel.expect("basic.ack").delivery_tag == number


def test_wake_without_progress_confirms_nothing(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A wake is only a hint: what counts is the durable LSN."""
    log = MemoryLog()
    channel = confirming(start(log=log), connect)
    log.hold()
    channel.publish(b"m", routing_key="kept", **PERSISTENT)
    for _ in range(50):
        log.wake()
    channel.nothing()
    log.release()
    assert answers(channel, 1) == [("ack", 1)]


def test_connection_that_ends_while_its_confirm_waits(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """It is forgotten, the others are answered."""
    log = MemoryLog()
    broker = start(log=log)
    first, second, third = (confirming(broker, connect) for _ in range(3))
    log.hold()
    for channel in (first, second, third):
        channel.publish(b"m", routing_key="kept", **PERSISTENT)
    wait_until(lambda: log.enqueues == 3)
    second.connection.drop()
    wait_until(lambda: len(broker.node.broker.connections) == 2)
    log.release()
    assert answers(first, 1) == answers(third, 1) == [("ack", 1)]


def test_loop_that_ended_is_not_woken(start: Callable[..., Any]) -> None:
    """A stopped broker has taken its wakers off the log."""
    log = MemoryLog()
    broker = start(log=log, io_threads=2)
    broker.node.stop()
    log.wake()  # would write into freed memory, or to a closed descriptor


def test_the_log_is_kicked_for_what_was_published(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A publish is followed by a kick at once; the end of a message, for which nobody waits, goes with the next one."""
    log = MemoryLog()
    channel = confirming(start(log=log, limits={"housekeeping_ms": 3_600_000}), connect)
    log.hold()
    before = log.kicks
    channel.publish(b"m", routing_key="kept", **PERSISTENT)
    wait_until(lambda: log.kicks > before and log.enqueues == 1)
    log.release()
    channel.expect("basic.ack")
    channel.consume("kept", "c")
    message = channel.expect("basic.deliver")
    channel.call("basic.qos")
    before = log.kicks
    channel.send("basic.ack", delivery_tag=message.delivery_tag)
    wait_until(lambda: log.dequeues == 1)
    assert log.kicks <= before + 1, "at most what basic.qos made"
    channel.publish(b"m", routing_key="kept", **PERSISTENT)
    channel.expect("basic.deliver")
    wait_until(lambda: log.kicks > before)


def test_housekeeping_kicks(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """What nobody waits for is on its way to the disk with the next housekeeping pass."""
    log = MemoryLog()
    start(log=log, limits={"housekeeping_ms": 20})
    before = log.kicks
    wait_until(lambda: log.kicks >= before + 3)


def test_transient_messages_kick_nothing(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """What is not logged costs the log nothing."""
    log = MemoryLog()
    channel = confirming(start(log=log, limits={"housekeeping_ms": 3_600_000}), connect)
    channel.publish(b"m", routing_key="kept")  # makes the route known, which needs Python
    assert answers(channel, 1) == [("ack", 1)]
    before = log.kicks
    for _ in range(20):
        channel.publish(b"m", routing_key="kept")
        channel.expect("basic.ack")
    assert log.kicks == before


def test_shared_content_is_placed_once(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A persistent message for several queues is announced when all have it; one for a single queue never is."""
    log = MemoryLog()
    channel = confirming(start(log=log), connect)
    for name in ("a", "b", "c"):
        channel.queue(name, durable=name != "c")
        channel.call("queue.bind", queue=name, exchange="amq.fanout")
    channel.publish(b"m", exchange="amq.fanout", **PERSISTENT)
    channel.publish(b"m", exchange="amq.fanout")
    channel.publish(b"m", routing_key="kept", **PERSISTENT)
    assert answers(channel, 3) == [("ack", tag) for tag in (1, 2, 3)]
    assert (log.enqueues, log.placed) == (3, 1)


def test_the_log_learns_who_settled_what_and_when(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """The consumer's tag and group are told once; a dequeue carries its id and the time of the delivery."""
    log = MemoryLog()
    channel = confirming(start(log=log), connect)
    channel.queue("passing")
    channel.consume("kept", "mine", arguments={"x-group": "g1"})
    channel.consume("passing", "other")
    assert list(log.consumers.values()) == [(b"mine", b"g1")]
    channel.publish(b"m", routing_key="kept", **PERSISTENT)
    message = channel.expect("basic.deliver")
    assert channel.expect("basic.ack").delivery_tag == 1
    now_us = time.time_ns() // 1000
    channel.send("basic.ack", delivery_tag=message.delivery_tag)
    channel.call("basic.qos")  # answered behind the ack
    assert log.dequeues == 1
    owner, reason, delivered_us = log.last_dequeue
    assert log.consumers[owner] == (b"mine", b"g1") and reason == 1
    assert 0 <= now_us - delivered_us < 60_000_000


def test_group_must_be_a_string(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A wrong x-group is refused with 406."""
    channel = confirming(start(log=MemoryLog()), connect)
    channel.refuse(406, "x-group", "basic.consume", queue="kept", consumer_tag="c", arguments={"x-group": 5})
