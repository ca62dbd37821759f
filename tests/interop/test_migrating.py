"""docs/FROM_RABBITMQ.md carried out, from Debian's RabbitMQ, with a publisher and a consumer that never stop; nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.links.rig import Side, sides, until
from tests.support import servers

QUEUE = "orders"


class Publisher:
    """Publishes numbers with confirms, at some hundred a second, to whatever broker it is told."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wanted = url
        self.count = 0
        self.moved = threading.Event()
        self._stop = threading.Event()
        self._quiet = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _channel(self) -> BlockingChannel:
        channel = pika.BlockingConnection(pika.URLParameters(self._url)).channel()
        channel.confirm_delivery()
        return channel

    def _run(self) -> None:
        channel = self._channel()
        while not self._stop.is_set():
            if self._wanted != self._url:
                channel.connection.close()
                self._quiet.set()
                self._go.wait(60)
                self._url = self._wanted
                channel = self._channel()
                self.moved.set()
            channel.basic_publish("", QUEUE, b"%d" % self.count, pika.BasicProperties(delivery_mode=2), mandatory=True)
            self.count += 1
            time.sleep(0.001)
        channel.connection.close()

    def leave(self, url: str) -> None:
        """Its last message there is confirmed when this returns; it publishes to `url` when `go` was called."""
        self._wanted = url
        assert self._quiet.wait(60)

    def go(self) -> None:
        self._go.set()
        assert self.moved.wait(60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


class Consumer:
    """Takes and acks until it is stopped."""

    def __init__(self, url: str, bodies: list[bytes]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, bodies), daemon=True)
        self._thread.start()

    def _run(self, url: str, bodies: list[bytes]) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.05):
            if method is not None:
                bodies.append(body)
                channel.basic_ack(method.delivery_tag)
            if self._stop.is_set():
                break
        channel.cancel()
        connection.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.fixture
def rabbit() -> Iterator[str]:
    try:
        with servers.rabbitmq() as server:
            yield f"amqp://guest:guest@127.0.0.1:{server.port}/%2F"
    except servers.Unavailable as reason:
        pytest.skip(str(reason))


def depth(url: str) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return int(connection.channel().queue_declare(QUEUE, passive=True).method.message_count)
    finally:
        connection.close()


def test_a_queue_moves_and_nobody_stops(rabbit: str, tmp_path: Path) -> None:
    with sides(1, data_dir=str(tmp_path)) as (here,):
        move(rabbit, here)


def move(rabbit: str, here: Side) -> None:
    for url in (rabbit, here.url):
        connection = pika.BlockingConnection(pika.URLParameters(url))
        connection.channel().queue_declare(QUEUE, durable=True)
        connection.close()
    bodies: list[bytes] = []
    publisher = Publisher(rabbit)
    consumer = Consumer(rabbit, bodies)
    until(lambda: len(bodies) > 100)
    # 1: the consumer moves
    consumer.stop()
    consumer = Consumer(here.url, bodies)
    # 2: the shovel
    here.shovel(src_uri=rabbit, src_queue=QUEUE, dest_uri="amqp://", dest_queue=QUEUE)
    before = len(bodies)
    until(lambda: len(bodies) > before + 100)
    # 3: the publisher, when what it sent there has been moved
    publisher.leave(here.url)
    until(lambda: depth(rabbit) == 0 and here.status()["moved"] and here.depth(QUEUE) == 0 and len(bodies) == publisher.count)
    publisher.go()
    before = len(bodies)
    until(lambda: len(bodies) > before + 100)
    # 4: the end
    assert depth(rabbit) == 0
    here.api.delete("shovels/vhost/%2F/s")
    publisher.stop()
    until(lambda: len(bodies) >= publisher.count)
    consumer.stop()
    assert bodies == [b"%d" % number for number in range(publisher.count)]
