"""basic.get of a message that must be read from disk is answered when it is there, in order, and holds up nobody else."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.twins.memory_log import MemoryLog

PERSISTENT = {"delivery_mode": 2}
Start = Callable[..., Any]


def cold_queue(start: Start, connect: Start, bodies: int = 3, persistent: bool = True) -> tuple[MemoryLog, RawChannel]:
    """A queue `q` whose messages b"0", b"1".. are all on disk, and a channel that published them."""
    log = MemoryLog(hot_bytes=0)
    channel = connect(start(log=log)).channel()
    channel.queue("q", durable=True)
    channel.call("confirm.select")
    for number in range(bodies):
        channel.publish(b"%d" % number, routing_key="q", **(PERSISTENT if persistent else {}))
    confirmed = 0
    while confirmed < bodies:
        confirmed = channel.expect("basic.ack").delivery_tag
    return log, channel


def get(channel: RawChannel, no_ack: bool = True) -> None:
    channel.send("basic.get", queue="q", no_ack=no_ack)


def loads_come(log: MemoryLog, count: int = 1) -> None:
    wait_until(lambda: len(log.loads) >= count)


@pytest.mark.parametrize("persistent", [True, False])
def test_answer_comes_when_the_message_is_loaded(start: Start, connect: Start, persistent: bool) -> None:
    log, channel = cold_queue(start, connect, persistent=persistent)
    other = channel.connection.channel(2)
    get(channel)
    loads_come(log)
    other.send("queue.declare", queue="q", passive=True)  # the same connection: its answer must not overtake the get's
    channel.nothing()
    other.nothing()
    log.answer_loads()
    got = channel.expect("basic.get-ok")
    assert (got.body, got.message_count, bool(got.redelivered)) == (b"0", 2, False)
    assert other.expect("queue.declare-ok").message_count == 2


def test_pipelined_gets_are_answered_in_order(start: Start, connect: Start) -> None:
    log, channel = cold_queue(start, connect)
    for _ in range(4):
        get(channel, no_ack=False)
    for number in range(3):
        loads_come(log)
        assert len(log.loads) == 1, "the next get is not looked at before this one is answered"
        log.answer_loads()
        got = channel.expect("basic.get-ok")
        assert (got.body, got.delivery_tag) == (b"%d" % number, number + 1)
    channel.expect("basic.get-empty")


def test_other_connections_go_on_meanwhile(start: Start, connect: Start) -> None:
    log = MemoryLog(hot_bytes=0)
    broker = start(log=log)
    channel = connect(broker).channel()
    channel.queue("q", durable=True)
    channel.publish(b"0", routing_key="q", **PERSISTENT)
    channel.wait_ready("q", 1)
    get(channel)
    loads_come(log)
    other = connect(broker).channel()
    other.queue("other")
    other.send("basic.get", queue="other", no_ack=True)
    other.expect("basic.get-empty")
    log.answer_loads()
    assert channel.expect("basic.get-ok").body == b"0"


def test_two_that_wait_for_the_same_message_get_one_each(start: Start, connect: Start) -> None:
    log = MemoryLog(hot_bytes=0)
    broker = start(log=log)
    channels = [connect(broker).channel() for _ in range(2)]
    channels[0].queue("q", durable=True)
    for number in range(2):
        channels[0].publish(b"%d" % number, routing_key="q", **PERSISTENT)
    channels[0].wait_ready("q", 2)
    get(channels[0])
    loads_come(log)
    get(channels[1])
    channels[1].nothing()
    log.answer_loads()
    loads_come(log)  # the one who did not get the first message asks for the second
    log.answer_loads()
    assert sorted(channel.expect("basic.get-ok").body for channel in channels) == [b"0", b"1"]


def test_get_empty_when_the_message_is_purged_meanwhile(start: Start, connect: Start) -> None:
    log = MemoryLog(hot_bytes=0)
    broker = start(log=log)
    channel, other = connect(broker).channel(), connect(broker).channel()
    channel.queue("q", durable=True)
    channel.publish(b"0", routing_key="q", **PERSISTENT)
    channel.wait_ready("q", 1)
    get(channel)
    loads_come(log)
    other.call("queue.purge", queue="q")
    channel.expect("basic.get-empty")
    log.answer_loads()
    channel.nothing()
    assert channel.ready("q") == 0


def test_not_found_when_the_queue_is_deleted_meanwhile(start: Start, connect: Start) -> None:
    log = MemoryLog(hot_bytes=0)
    broker = start(log=log)
    channel, other = connect(broker).channel(), connect(broker).channel()
    channel.queue("q", durable=True)
    channel.publish(b"0", routing_key="q", **PERSISTENT)
    channel.wait_ready("q", 1)
    get(channel)
    loads_come(log)
    other.call("queue.delete", queue="q")
    channel.expect_close(404, "no queue 'q'")
    log.answer_loads()


@pytest.mark.parametrize("reset", [True, False])
def test_who_hangs_up_while_waiting_takes_nothing(start: Start, connect: Start, reset: bool) -> None:
    log = MemoryLog(hot_bytes=0)
    broker = start(log=log)
    channel, other = connect(broker).channel(), connect(broker).channel()
    other.queue("q", durable=True)
    other.publish(b"0", routing_key="q", **PERSISTENT)
    other.wait_ready("q", 1)
    get(channel, no_ack=False)
    loads_come(log)
    if reset:  # noticed at once
        channel.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        channel.connection.drop()
        wait_until(lambda: len(broker.node.broker.connections) == 1)
        log.answer_loads()
    else:  # noticed at the next read, after the answer was sent into the void
        channel.connection.drop()
        log.answer_loads()
        wait_until(lambda: len(broker.node.broker.connections) == 1)
    assert other.ready("q") == 1
    get(other)
    got = other.expect("basic.get-ok")
    assert (got.body, bool(got.redelivered)) == (b"0", not reset)


def test_consumer_of_cold_messages_gets_all_in_order(start: Start, connect: Start) -> None:
    log, channel = cold_queue(start, connect, bodies=5)
    channel.consume("q", no_ack=True)

    def arrives() -> Any:
        # Not one load for each delivery: the loop may ask for the next message while the last is being answered, which answers that, too.
        log.answer_loads()
        with contextlib.suppress(TimeoutError):
            return channel.expect("basic.deliver", 0.01).body
        return None

    bodies = [wait_until(arrives, what="the next message is delivered") for _ in range(5)]
    assert bodies == [b"%d" % number for number in range(5)]


def test_expired_cold_message_is_dead_lettered_with_its_content(start: Start, connect: Start) -> None:
    log = MemoryLog(hot_bytes=0)
    channel = connect(start(log=log)).channel()
    channel.queue("dead", durable=True)
    channel.queue("q", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1})
    channel.publish(b"first", routing_key="q", **PERSISTENT)
    channel.publish(b"second", routing_key="q", **PERSISTENT)
    channel.wait_ready("dead", 1)
    channel.send("basic.get", queue="dead", no_ack=True)
    loads_come(log)
    log.answer_loads()
    assert channel.expect("basic.get-ok").body == b"first"
