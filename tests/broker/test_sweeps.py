"""Answers to purges and deletions: when all is done, and in their order; and what becomes of deliveries of a queue that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.twins.memory_log import MemoryLog

PERSISTENT = {"delivery_mode": 2}
Start = Callable[..., Any]
Connect = Callable[..., Any]


def filled(channel: RawChannel, count: int, name: str = "q", **more: Any) -> None:
    channel.queue(name, durable=True)
    channel.call("confirm.select")
    for number in range(count):
        channel.publish(b"%d" % number, routing_key=name, **more)
    confirmed = 0
    while confirmed < count:
        confirmed = channel.expect("basic.ack").delivery_tag


@pytest.mark.parametrize("count", [3, 3000])
def test_purge_ok_comes_when_the_log_has_it_durable(start: Start, connect: Connect, count: int) -> None:
    log: Any = MemoryLog()
    broker = start(log=log)
    channel = connect(broker).channel()
    other = connect(broker).channel()
    filled(channel, count, **PERSISTENT)
    log.hold()
    channel.send("queue.purge", queue="q")
    channel.send("queue.declare", queue="q", passive=True)
    wait_until(lambda: other.call("queue.declare", queue="q", passive=True).message_count == 0)  # others are served meanwhile
    channel.nothing()
    log.release()
    assert channel.expect("queue.purge-ok").message_count == count
    assert channel.expect("queue.declare-ok").message_count == 0


def test_a_purge_of_what_is_in_memory_only_waits_for_nothing(start: Start, connect: Connect) -> None:
    log: Any = MemoryLog()
    channel = connect(start(log=log)).channel()
    filled(channel, 3000)
    log.hold()
    assert channel.call("queue.purge", queue="q").message_count == 3000


def test_a_connection_that_leaves_during_its_purge_leaves_a_purged_queue(start: Start, connect: Connect) -> None:
    log: Any = MemoryLog()
    broker = start(log=log)
    client = connect(broker)
    channel = client.channel()
    other = connect(broker).channel()
    filled(channel, 3000, **PERSISTENT)
    log.hold()
    channel.send("queue.purge", queue="q")
    client.sock.close()
    wait_until(lambda: other.call("queue.declare", queue="q", passive=True).message_count == 0)
    log.release()
    assert other.call("queue.declare", queue="q", passive=True).message_count == 0


@pytest.mark.parametrize("count", [3, 3000])
def test_a_queue_is_deleted_and_declared_again(start: Start, connect: Connect, count: int) -> None:
    channel = connect(start(log=MemoryLog())).channel()
    filled(channel, count, **PERSISTENT)
    assert channel.call("queue.delete", queue="q").message_count == count
    assert channel.queue("q", durable=True) == "q"
    assert channel.call("queue.declare", queue="q", passive=True).message_count == 0
    assert channel.call("queue.delete", queue="gone").message_count == 0


@pytest.mark.parametrize("requeue", [True, False])
def test_deliveries_of_a_deleted_queue_are_settled_to_no_effect(start: Start, connect: Connect, requeue: bool) -> None:
    log: Any = MemoryLog()
    channel = connect(start(log=log)).channel()
    filled(channel, 4, **PERSISTENT)
    tags = []
    for _ in range(3):
        channel.send("basic.get", queue="q", no_ack=False)
        tags.append(channel.expect("basic.get-ok").delivery_tag)
    assert channel.call("queue.delete", queue="q").message_count == 1
    ended = log.dequeues
    assert ended == 4  # those in the consumer's hands, too
    channel.send("basic.nack", delivery_tag=tags[0], requeue=requeue)
    channel.send("basic.ack", delivery_tag=tags[1])
    channel.call("basic.qos")
    assert log.dequeues == ended
