"""Clients of a shared queue on three brokers: pika, which goes to the next broker when its own is lost. Each is a thread.

in: a cluster. out: records for the checker (shared_checker.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika

from tools.faults.shared_checker import Key, Seen, Sent
from tools.faults.shared_cluster import AMQP_PORT, Cluster

QUEUE = "campaign"
# seconds after which a broker that says nothing is given up
_HEARTBEAT_S = 4
LOST = (pika.exceptions.AMQPError, OSError)


class Clients:
    """Records of all clients. Any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sent: list[Sent] = []
        self.seen: list[Seen] = []
        self.drained: list[Key] = []
        self.errors: list[BaseException] = []
        self.reconnects = 0
        self.publishing, self.consuming = threading.Event(), threading.Event()
        self.publishing.set()
        self.consuming.set()
        self._threads: list[threading.Thread] = []

    def start(self, publishers: int, consumers: int) -> None:
        for number in range(publishers):
            self._thread(self._publish, number)
        for number in range(consumers):
            self._thread(self._consume, number)

    def _thread(self, body: Callable[[int], None], number: int) -> None:
        def run() -> None:
            try:
                body(number)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether all of them have ended."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- connections ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def channel(self, number: int) -> Iterator[Any]:
        """On a broker: the calling thread is on its machine from here on, as guest is let in from there alone."""
        self.cluster.brokers[number % len(self.cluster.brokers)].machine.enter()
        parameters = pika.ConnectionParameters(
            "127.0.0.1", AMQP_PORT, heartbeat=_HEARTBEAT_S, socket_timeout=3, stack_timeout=6, blocked_connection_timeout=30
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(*LOST):
                connection.close()

    def _channels(self, first: int, wanted: threading.Event) -> Iterator[Any]:
        number = first
        while wanted.is_set():
            with contextlib.suppress(*LOST), self.channel(number) as channel:
                yield channel
            number += 1
            self.reconnects += 1
            time.sleep(0.1)

    def declare(self) -> None:
        with self.channel(0) as channel:
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "shared"})

    # --- roles ------------------------------------------------------------------------------------------------------

    def _publish(self, publisher: int) -> None:
        """Each number once. What has no confirm when its connection ends may be there or not."""
        number = 0
        properties = pika.BasicProperties(delivery_mode=2)
        for channel in self._channels(publisher, self.publishing):
            with contextlib.suppress(*LOST):
                channel.confirm_delivery()
                while self.publishing.is_set():
                    record = Sent((publisher, number), time.monotonic())
                    self.sent.append(record)
                    number += 1
                    try:
                        channel.basic_publish("", QUEUE, b"%d %d" % record.key, properties, mandatory=True)
                    except (pika.exceptions.NackError, pika.exceptions.UnroutableError):
                        # refused, or not known in time; a broker that just came back may not have the queue yet
                        time.sleep(0.05)
                        continue
                    record.confirmed_s = time.monotonic()

    def _consume(self, consumer: int) -> None:
        for channel in self._channels(consumer, self.consuming):
            with contextlib.suppress(*LOST):
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
                    if method is not None:
                        self._note(consumer, method, body)
                        channel.basic_ack(method.delivery_tag)
                    if not self.consuming.is_set():
                        channel.cancel()
                        break

    def _note(self, consumer: int, method: Any, body: bytes) -> Key:
        publisher, number = body.split()
        key = (int(publisher), int(number))
        self.seen.append(Seen(key, method.redelivered, consumer, time.monotonic()))
        return key

    def drain(self, quiet_s: float, until_s: float) -> None:
        """One consumer takes all that is left, until nothing came for `quiet_s`. The order is noted."""
        for attempt in range(10):
            try:
                with self.channel(attempt) as channel:
                    channel.basic_qos(prefetch_count=100)
                    for method, _, body in channel.consume(QUEUE, inactivity_timeout=quiet_s):
                        if method is None or time.monotonic() > until_s:
                            return
                        key = self._note(-1, method, body)
                        if key not in self.drained:
                            self.drained.append(key)
                        channel.basic_ack(method.delivery_tag)
            except LOST:
                time.sleep(1)
