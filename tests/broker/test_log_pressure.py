"""The log's pressure: full buffers pause publishers in silence, a full disk blocks them and tells them; consumers go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_held
from tests.broker.test_memory_alarm import Flood
from tests.channel.test_confirms import PERSISTENT
from tests.support.broker import wait_until
from tests.support.rawamqp import CAPABILITIES, RawChannel
from tests.twins.memory_log import MemoryLog

NONE, BUFFERS, DISK = 0, 1, 2
MIB = 1 << 20
Connect = Callable[..., Any]


class Setup:
    """A broker on a log, a channel that declares and looks, and one that publishes."""

    def __init__(self, start: Callable[..., Any], connect: Connect, **options: Any) -> None:
        self.log = MemoryLog()
        # No timer helps: only the log's wake lets publishers go on.
        self.broker = start(log=self.log, limits={"housekeeping_ms": 3_600_000}, **options)
        self.connect = connect
        self.other: RawChannel = connect(self.broker).channel()
        self.other.queue("kept", durable=True)
        self.publisher: RawChannel = connect(self.broker).channel()

    def paused(self) -> int:
        """Connections that are not read."""
        # A list: the loop may take one that has ended out of them meanwhile.
        return sum(one.socket.paused for one in list(self.broker.node.broker.connections.values()))

    def publish(self, channel: RawChannel, body: bytes) -> None:
        channel.publish(body, routing_key="kept", **PERSISTENT)


@pytest.fixture
def setup(start: Callable[..., Any], connect: Connect) -> Setup:
    return Setup(start, connect)


def test_buffers_pause_in_silence(setup: Setup) -> None:
    """What was read is taken; more is not read until the wake; the client hears nothing of it."""
    for _ in range(20):
        setup.log.set_pressure(BUFFERS)
        before = setup.log.enqueues
        setup.publish(setup.publisher, b"1")
        wait_until(lambda wanted=before + 1: setup.log.enqueues == wanted and setup.paused() == 1, step=0.001)
        setup.publish(setup.publisher, b"2")
        setup.publisher.nothing(0.01)
        assert setup.log.enqueues == before + 1
        setup.log.set_pressure(NONE)
        wait_until(lambda wanted=before + 2: setup.log.enqueues == wanted, step=0.001)
        setup.publisher.call("basic.qos")  # the look after that message is over: it must not see the next round's pressure
    assert setup.paused() == 0


def test_wake_under_pressure_keeps_the_pause(setup: Setup) -> None:
    """A wake for durability is no wake for pressure."""
    setup.log.set_pressure(BUFFERS)
    setup.publish(setup.publisher, b"1")
    wait_until(lambda: setup.paused() == 1)
    setup.log.wake()
    setup.other.call("basic.qos")
    assert setup.paused() == 1
    setup.log.set_pressure(NONE)
    wait_until(lambda: setup.paused() == 0)


def test_consumers_are_served_under_pressure(setup: Setup) -> None:
    """Deliveries and acks of others go on, with buffers or disk full."""
    for number in range(10):
        setup.publish(setup.other, b"%d" % number)
    setup.other.wait_ready("kept", 10)
    for pressure in (BUFFERS, DISK):
        setup.log.set_pressure(pressure)
        before = setup.log.dequeues
        reader = setup.connect(setup.broker).channel()
        reader.call("basic.qos", prefetch_count=1)
        reader.consume("kept")
        for _ in range(5):
            reader.send("basic.ack", delivery_tag=reader.expect("basic.deliver").delivery_tag)
        wait_until(lambda wanted=before + 5: setup.log.dequeues == wanted)
        reader.connection.drop()
    assert setup.paused() == 0


def test_consumer_that_only_settles_is_not_paused_by_buffers(setup: Setup) -> None:
    """It published once; under pressure its acks go on, its next publish pauses it."""
    both = setup.publisher
    both.consume("kept", "c")
    for number in range(4):
        setup.publish(both, b"%d" % number)
    tags = [message.delivery_tag for message in both.deliveries(4)]
    setup.log.set_pressure(BUFFERS)
    for number, tag in enumerate(tags):
        both.send("basic.ack", delivery_tag=tag)
        wait_until(lambda wanted=number + 1: setup.log.dequeues == wanted)
    assert setup.paused() == 0
    setup.publish(both, b"5")
    wait_until(lambda: setup.paused() == 1)
    setup.log.set_pressure(NONE)
    wait_until(lambda: setup.paused() == 0)


def test_full_disk_blocks_and_says_so(setup: Setup) -> None:
    """connection.blocked names the disk; unblocked when there is room; everything arrives in order."""
    silent = setup.connect(setup.broker, capabilities={**CAPABILITIES, "connection.blocked": False}).channel()
    setup.log.set_pressure(DISK)
    setup.publish(setup.publisher, b"1")
    blocked = setup.publisher.connection.recv_any()
    assert (blocked.name, blocked.reason) == ("connection.blocked", "low on disk")
    setup.publish(silent, b"2")
    wait_until(lambda: setup.paused() == 2)
    setup.publish(setup.publisher, b"3")
    setup.publisher.nothing(0.05)
    assert setup.log.enqueues == 2
    setup.log.set_pressure(NONE)
    assert setup.publisher.connection.recv_any().name == "connection.unblocked"
    silent.nothing(0.05)
    wait_until(lambda: setup.log.enqueues == 3 and setup.paused() == 0)


def test_an_alarm_that_is_over_at_the_next_look_holds_nobody(setup: Setup) -> None:
    """The disk was full when a publisher was read, and had room again before the loop looked: who was told to stop is told to go on."""
    for body in (b"1", b"2"):
        setup.log.set_brief_pressure(DISK)
        setup.publish(setup.publisher, body)
        assert setup.publisher.connection.recv_any().name == "connection.blocked"
        assert setup.publisher.connection.recv_any().name == "connection.unblocked"
    wait_until(lambda: setup.log.enqueues == 2 and setup.paused() == 0)


def test_buffers_then_disk(setup: Setup) -> None:
    """A publisher that waits for buffers is told when it turns out that the disk is full."""
    setup.log.set_pressure(BUFFERS)
    setup.publish(setup.publisher, b"1")
    wait_until(lambda: setup.paused() == 1)
    setup.log.set_pressure(DISK)
    setup.log.wake()
    setup.publish(setup.publisher, b"2")
    assert setup.publisher.connection.recv_any().name == "connection.blocked"
    setup.log.set_pressure(NONE)
    assert setup.publisher.connection.recv_any().name == "connection.unblocked"
    wait_until(lambda: setup.paused() == 0)


def test_unblocked_only_when_memory_and_disk_are_free(start: Callable[..., Any], connect: Connect) -> None:
    """Two alarms at once: the end of one of them does not let publishers go."""
    setup = Setup(start, connect, memory_limit=bytes_held() + 24 * MIB)
    setup.other.queue("big")
    pure = connect(setup.broker)
    pure.channel()
    flood = Flood(pure, 900)  # 56 MiB
    assert pure.recv_any().reason == "low on memory"
    setup.log.set_pressure(DISK)
    setup.publish(setup.publisher, b"x")
    assert setup.publisher.connection.recv_any().reason == "low on memory & disk"
    setup.other.call("queue.purge", queue="big")
    setup.other.call("basic.qos")  # the loop has seen free memory by now
    with pytest.raises(TimeoutError):
        pure.recv_any(0.1)
    setup.log.set_pressure(NONE)
    assert pure.recv_any().name == "connection.unblocked"
    assert setup.publisher.connection.recv_any().name == "connection.unblocked"
    while flood.is_alive():
        setup.other.call("queue.purge", queue="big")
        flood.join(0.02)
    assert flood.sent == 900


def test_paused_publisher_gets_its_confirms(setup: Setup) -> None:
    """A pause stops reading, not writing: what was logged is confirmed when it is durable."""
    setup.publisher.call("confirm.select")
    setup.log.set_pressure(BUFFERS)
    setup.log.hold()
    setup.publish(setup.publisher, b"1")
    wait_until(lambda: setup.paused() == 1)
    setup.log.release()
    assert setup.publisher.expect("basic.ack").delivery_tag == 1
    assert setup.paused() == 1
    setup.log.set_pressure(NONE)
    wait_until(lambda: setup.paused() == 0)


def test_paused_publisher_that_hangs_up_is_forgotten(setup: Setup) -> None:
    """Its end is seen when the pressure is over, at the latest; the broker goes on."""
    setup.log.set_pressure(BUFFERS)
    setup.publish(setup.publisher, b"1")
    wait_until(lambda: setup.paused() == 1)
    setup.publisher.connection.drop()
    setup.log.set_pressure(NONE)
    wait_until(lambda: len(setup.broker.node.broker.connections) == 1)
    setup.other.call("basic.qos")


@pytest.mark.parametrize("threads", [2, 3])
def test_every_loop_lets_its_publishers_go(start: Callable[..., Any], connect: Connect, threads: int) -> None:
    """The wake reaches all loops."""
    setup = Setup(start, connect, io_threads=threads)
    channels = [connect(setup.broker).channel() for _ in range(12)]
    for _ in range(5):
        before = setup.log.enqueues
        setup.log.set_pressure(BUFFERS)
        for channel in channels:
            setup.publish(channel, b"m")
        wait_until(lambda: setup.paused() == 12)
        setup.log.set_pressure(NONE)
        wait_until(lambda wanted=before + 12: setup.log.enqueues == wanted and setup.paused() == 0)
