"""Publishes to a queue that has a mirror: a confirm leaves when the engine has the message, and not before; what waits is bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.mirror.mirror import Mirror, MirrorPort
from flintmq.routing.route_cache import DEST_MIRRORED
from flintmq.testing.broker import Broker
from tests.support.rawamqp import RawConnection

QUEUE_BYTES = 10_000


class Mirrored:
    """A durable queue of a broker, made one that this node owns, by hand. The engine is the test."""

    def __init__(self, broker: Broker, raw: RawConnection, name: str = "m") -> None:
        self.channel: Any = raw.channel()
        self.channel.queue(name, durable=True)
        self.channel.call("confirm.select")
        inner = broker.node.broker
        self.core = inner.vhosts["/"].queues[name].core
        self.port = MirrorPort(2**64 - 1, QUEUE_BYTES, 10 * QUEUE_BYTES, inner.log)
        self.mirror = Mirror(self.core, self.port, "/")
        self.core.destination_flags |= DEST_MIRRORED
        self.name = name

    def publish(self, body: bytes) -> None:
        self.channel.publish(body, routing_key=self.name)

    def take(self) -> list[int]:
        return [position for position, _ in self.mirror.take(1, 1, 400, 1 << 18, 100)]

    def settle(self, positions: list[int]) -> None:
        self.mirror.settle(positions)
        self.port.wake()

    def answers(self) -> list[tuple[str, int]]:
        """Confirms that came until a call of this connection is answered."""
        came: list[tuple[str, int]] = []
        self.channel.send("queue.declare", queue=self.name, passive=True)
        while True:
            frame = self.channel.connection.recv(self.channel.number)
            if frame.name == "queue.declare-ok":
                return came
            came.append((frame.name, frame.delivery_tag))

    def answer(self) -> tuple[str, int]:
        frame = self.channel.connection.recv(self.channel.number)
        return frame.name, frame.delivery_tag


@pytest.fixture
def mirrored(start: Callable[..., Broker], connect: Any, tmp_path: Path) -> Mirrored:
    broker = start(store_dir=str(tmp_path / "store"))
    return Mirrored(broker, connect(broker))


def test_a_confirm_waits_for_the_engine_whatever_the_delivery_mode(mirrored: Mirrored) -> None:
    mirrored.publish(b"1")
    assert mirrored.answers() == []
    first = mirrored.take()
    mirrored.publish(b"2")
    assert mirrored.answers() == []
    mirrored.settle(first)
    assert mirrored.answer() == ("basic.ack", 1)
    assert mirrored.answers() == []
    mirrored.settle(mirrored.take())
    assert mirrored.answer() == ("basic.ack", 2)


def test_a_message_that_ended_before_its_batch_is_confirmed_with_it(mirrored: Mirrored) -> None:
    mirrored.publish(b"1")
    assert mirrored.answers() == []
    assert mirrored.core.take_head(1)[3] == b"1"
    mirrored.settle(mirrored.take())
    assert mirrored.answer() == ("basic.ack", 1)


def test_what_waits_is_bounded_and_the_next_publish_is_refused(mirrored: Mirrored) -> None:
    mirrored.publish(b"x" * (QUEUE_BYTES - 1_000))
    mirrored.publish(b"y" * 2_000)
    assert mirrored.answers() == []  # in the order of their publishes
    positions = mirrored.take()
    assert len(positions) == 1 and mirrored.mirror.waiting_bytes < QUEUE_BYTES
    mirrored.settle(positions)
    assert [mirrored.answer(), mirrored.answer()] == [("basic.ack", 1), ("basic.nack", 2)]
    mirrored.publish(b"z" * 3 * QUEUE_BYTES)  # one message may be larger
    assert mirrored.answers() == []
    mirrored.settle(mirrored.take())
    assert mirrored.answer() == ("basic.ack", 3)


def test_a_queue_that_is_lost_refuses_what_waits_and_what_comes(mirrored: Mirrored) -> None:
    mirrored.publish(b"1")
    assert mirrored.answers() == []
    mirrored.mirror.lose()
    assert mirrored.answer() == ("basic.nack", 1)
    mirrored.publish(b"2")
    assert mirrored.answer() == ("basic.nack", 2)


def test_a_message_of_several_queues_waits_for_each(mirrored: Mirrored) -> None:
    channel = mirrored.channel
    channel.queue("plain", durable=True)
    for queue in ("m", "plain"):
        channel.call("queue.bind", queue=queue, exchange="amq.fanout", routing_key="")
    channel.publish(b"1", exchange="amq.fanout", delivery_mode=2)
    assert mirrored.answers() == []
    mirrored.settle(mirrored.take())
    assert mirrored.answer() == ("basic.ack", 1)
