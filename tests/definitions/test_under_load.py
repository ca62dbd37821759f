"""A virtual host is deleted, and made anew, under clients that declare, publish and consume on two loops: nothing of it stays."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import AMQPError

from flintmq.definitions.change_line import Actor
from flintmq.testing.broker import Broker
from tests.definitions.test_live import Operator
from tests.support.broker import wait_until

WORKERS, ROUNDS = 3, 6


class Worker(threading.Thread):
    """Works in the virtual host until `stop`; connects again when it is cut off."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.number, self.stop = port, number, stop
        self.done = 0
        self.failures: list[Exception] = []

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with contextlib.suppress(AMQPError):
                    self.work()
            except Exception as error:
                self.failures.append(error)

    def work(self) -> None:
        login = pika.PlainCredentials("guest", "guest")
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, "t", login)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.stop.is_set():
                name = f"q{self.number}-{self.done % 5}"
                # Streams, too: one that ended while the writer looked for a container of it kept the whole log waiting.
                kind = {"x-queue-type": "stream"} if self.done % 5 in (1, 3) else {}
                channel.queue_declare(name, durable=True, arguments=kind)
                channel.queue_bind(name, "amq.topic", "k")
                channel.basic_publish("amq.topic", "k", b"x", pika.BasicProperties(delivery_mode=2))
                channel.queue_declare("", exclusive=True)
                if not kind:
                    channel.basic_consume(name, lambda *_: None, auto_ack=True)
                self.done += 1


def test_a_virtual_host_goes_under_its_clients(tmp_path: Path) -> None:
    stop = threading.Event()
    with Broker(data_dir=tmp_path, io_threads=2) as broker:
        operator, node = Operator(broker), broker.node
        guest = Actor("guest", "here")
        operator.do("put_vhost", "t", {}, actor=guest)
        workers = [Worker(broker.port, number, stop) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        for number in range(ROUNDS):
            before = [worker.done for worker in workers]
            wait_until(lambda before=before: all(worker.done > count for worker, count in zip(workers, before, strict=True)))
            value: dict[str, Any] = {"max-length": number % 3, "message-ttl": 50, "expires": 60_000, "dead-letter-exchange": "amq.fanout"}
            operator.do("put_policy", "t", "p", {"pattern": "^q", "definition": value})
            old = node.broker.vhosts["t"]
            operator.do("delete_vhost", "t")
            assert not old.queues and old.holding.bytes == 0
            operator.do("put_vhost", "t", {}, actor=guest)
        stop.set()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive() and not worker.failures
        wait_until(lambda: not node.broker.connections)
        present = list(node.broker.vhosts["t"].queues.values())
        assert {queue for queue in node.broker.queues.values() if queue.vhost == "t"} == set(present)
        assert node.failure is None
        names = {queue.name for queue in present if queue.durable}
    with Broker(data_dir=tmp_path) as broker:
        assert set(broker.node.broker.vhosts["t"].queues) == names
