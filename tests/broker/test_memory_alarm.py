"""Above the memory watermark publishers are told, not read and not killed; consumers go on; below it publishers go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_held
from tests.support.broker import wait_until
from tests.support.rawamqp import CAPABILITIES, HEARTBEAT, RawConnection, frame, method_frame, publish_bytes

MIB = 1 << 20
BODY = 64 * 1024


def alarmed(broker: Any) -> bool:
    return any(one.is_blocked for one in broker.node.broker.connections.values())


class Flood(threading.Thread):
    """Publishes in the background until it has sent `count` messages; a paused socket holds it."""

    def __init__(self, connection: RawConnection, count: int) -> None:
        super().__init__(daemon=True)
        connection.timeout = 120
        # A socket object of its own: the test's short waits on the other one must not become the deadline of what is sent here.
        self.sock = connection.sock.dup()
        self.sock.settimeout(120)
        self.count = count
        self.sent = 0
        self.start()

    def run(self) -> None:
        with self.sock, contextlib.suppress(OSError):  # the test is over, and so is the broker
            for number in range(self.count):
                self.sock.sendall(publish_bytes(1, number.to_bytes(4, "big") * (BODY // 4), routing_key="big"))
                self.sent += 1


@pytest.mark.parametrize("threads", [1, 2])
def test_publisher_is_blocked_and_let_go(start: Callable[..., Any], connect: Callable[..., Any], threads: int) -> None:
    broker = start(memory_limit=bytes_held() + 32 * MIB, io_threads=threads)
    reader = connect(broker).channel()
    reader.queue("big")
    publisher = connect(broker)
    publisher.channel()
    flood = Flood(publisher, 1200)  # 75 MiB: more than memory and socket buffers take
    blocked = publisher.recv_any()
    assert (blocked.name, blocked.channel) == ("connection.blocked", 0)
    assert blocked.reason == "low on memory"
    wait_until(lambda: any(one.is_blocked for one in broker.node.broker.connections.values()))
    ready = reader.ready("big")
    assert ready < 1200 and flood.is_alive()
    # A consumer on another connection is served, its acks free memory, and the publisher goes on where it was.
    reader.consume("big")
    for seen in range(1200):
        message = reader.expect("basic.deliver")
        assert int.from_bytes(message.body[:4], "big") == seen
        reader.send("basic.ack", delivery_tag=message.delivery_tag)
    flood.join(60)
    assert not flood.is_alive() and flood.sent == 1200
    names = [publisher.recv_any().name]
    while names.count("connection.unblocked") < names.count("connection.blocked") + 1:
        names.append(publisher.recv_any().name)
    assert names[0] == "connection.unblocked"
    assert set(names) <= {"connection.blocked", "connection.unblocked"}


def test_client_without_the_capability_is_paused_in_silence(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(memory_limit=bytes_held() + 24 * MIB)
    reader = connect(broker).channel()
    reader.queue("big")
    publisher = connect(broker, capabilities={**CAPABILITIES, "connection.blocked": False})
    publisher.channel()
    flood = Flood(publisher, 900)
    wait_until(lambda: any(one.is_blocked for one in broker.node.broker.connections.values()), what="the publisher is paused")
    with pytest.raises(TimeoutError):
        publisher.recv_any(0.2)
    reader.call("queue.purge", queue="big")
    while flood.is_alive():
        reader.call("queue.purge", queue="big")
        flood.join(0.05)
    assert flood.sent == 900


def test_paused_publisher_with_heartbeats_lives(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(memory_limit=bytes_held() + 24 * MIB)
    reader = connect(broker).channel()
    reader.queue("big")
    publisher = connect(broker, heartbeat=2)
    publisher.channel()
    flood = Flood(publisher, 900)
    assert publisher.recv_any().name == "connection.blocked"
    names: list[str] = []
    # Six seconds in which hardly a byte of it is read: more than two intervals. The broker's own heartbeats still arrive.
    wait_until(lambda: beats(publisher, names) >= 6, timeout=60, what="six heartbeats of the broker")
    assert flood.is_alive(), "the flood must still be held back for this test to mean anything"
    while flood.is_alive():
        reader.call("queue.purge", queue="big")
        flood.join(0.02)
    publisher.send(frame(HEARTBEAT, 0, b""))
    publisher.send(method_frame(2, "channel.open"))
    # Sent is not read: what the sockets still hold may raise the alarm again. So the queue is emptied until the last answer is here.
    wait_until(
        lambda: reader.call("queue.purge", queue="big") and names_until_open(publisher, names), timeout=60, what="the channel to be open"
    )
    assert names[0] == "connection.unblocked"
    assert set(names[:-1]) <= {"connection.blocked", "connection.unblocked"}


def names_until_open(publisher: RawConnection, names: list[str]) -> bool:
    """Whether `channel.open-ok` has arrived; the names of all that came are added to `names`."""
    with contextlib.suppress(TimeoutError):
        names.append(publisher.recv_any(0.05).name)
    return names[-1:] == ["channel.open-ok"]


def beats(connection: RawConnection, names: list[str]) -> int:
    """Heartbeats so far. What else came is added to `names`: the broker makes room where it can, and may let a publisher go on."""
    with contextlib.suppress(TimeoutError):
        names.append(connection.recv_any(0.2).name)
    return connection.heartbeats


def test_connection_that_also_consumes_is_read_up_to_the_hard_limit(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(memory_limit=bytes_held() + 32 * MIB)
    other = connect(broker).channel()
    other.queue("big")
    other.queue("mine")
    both = connect(broker)
    channel = both.channel()
    channel.consume("mine", "c")
    pure = connect(broker)
    pure.channel()
    Flood(pure, 1200)
    assert pure.recv_any().name == "connection.blocked"
    # Above the watermark, below 1.25 of it: still read, both its publishes and its acks.
    channel.publish(b"note", routing_key="mine")
    message = channel.expect("basic.deliver")
    channel.send("basic.ack", delivery_tag=message.delivery_tag)
    channel.call("basic.qos")
    assert other.ready("mine") == 0
    wait_until(lambda: alarmed(broker), what="the alarm, which ended if at all for a moment")
