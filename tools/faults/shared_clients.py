"""Clients of a shared queue on three brokers, which go to the next broker when their own is lost: pika, and publishers that have many
messages under way. Each is a thread.

in: a cluster. out: records for the checker (shared_checker.py).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from tests.support.rawamqp import ConnectionLost, RawConnection, method_frame, publish_bytes
from tools.faults.shared_checker import Key, Seen, Sent
from tools.faults.shared_cluster import AMQP_PORT, QUEUE, Cluster

# seconds after which a broker that says nothing is given up
_HEARTBEAT_S = 4
# the last one: a broker that stands still while it greets; pika has it apart from its other errors
LOST = (pika.exceptions.AMQPError, OSError, AMQPConnectorException)
RAW_LOST = (ConnectionLost, OSError, AssertionError)
# messages that a publisher of many has under way, and seconds that it waits for an answer
_WINDOW, _ANSWER_S = 64, 8.0
# messages that it sends at once, and seconds between: pika's consumers take 1,000 a second and more
_AT_ONCE, _PACE_S = 16, 0.06


class Clients:
    """Records of all clients. Any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sent: list[Sent] = []
        self.seen: list[Seen] = []
        self.drained: list[Key] = []
        self.errors: list[BaseException] = []
        self.reconnects = 0
        self._sessions = itertools.count()
        self.publishing, self.consuming = threading.Event(), threading.Event()
        self.publishing.set()
        self.consuming.set()
        self._threads: list[threading.Thread] = []

    def start(self, publishers: int, crowds: int, consumers: int) -> None:
        """Args: crowds: publishers with many messages under way; their numbers follow those of the others. One more for each broker, with
        the numbers behind, stays with it."""
        roaming = publishers + crowds
        for number in range(roaming, roaming + len(self.cluster.brokers)):
            self.begin(functools.partial(self._publish, home=number - roaming), number)
        for number in range(publishers):
            self.begin(self._publish, number)
        for number in range(publishers, publishers + crowds):
            self.begin(self._publish_many, number)
        for number in range(consumers):
            self.begin(self._consume, number)

    def begin(self, body: Callable[[int], None], number: int) -> None:
        """A thread. What it raises is kept in `errors`."""

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

    def _channels(self, first: int, wanted: threading.Event, step: int = 1) -> Iterator[Any]:
        number = first
        while wanted.is_set():
            with contextlib.suppress(*LOST), self.channel(number) as channel:
                yield channel
            number += step
            self.reconnects += 1
            time.sleep(0.1)

    def declare(self) -> None:
        for number in range(len(self.cluster.brokers)):
            with self.channel(number) as channel:
                channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "shared"})

    # --- roles ------------------------------------------------------------------------------------------------------

    def _publish(self, publisher: int, home: int | None = None) -> None:
        """Each number once. What has no confirm when its connection ends may be there or not. home: the broker that it never leaves."""
        number = 0
        properties = pika.BasicProperties(delivery_mode=2)
        first, step = (publisher, 1) if home is None else (home, 0)
        for channel in self._channels(first, self.publishing, step):
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

    def _publish_many(self, publisher: int) -> None:
        """As `_publish`, with a window of messages whose confirms are not there."""
        numbers = itertools.count()
        for attempt in itertools.count(publisher):
            if not self.publishing.is_set():
                return
            self.cluster.brokers[attempt % len(self.cluster.brokers)].machine.enter()
            with contextlib.suppress(*RAW_LOST), RawConnection("127.0.0.1", AMQP_PORT, timeout=_ANSWER_S) as raw:
                raw.open()
                raw.channel(1).call("confirm.select")
                self._stream(raw, publisher, numbers)
            self.reconnects += 1
            time.sleep(0.1)

    def _stream(self, raw: RawConnection, publisher: int, numbers: Iterator[int]) -> None:
        """Until it is to end. Raises: RAW_LOST."""
        waiting: dict[int, Sent] = {}
        tag, answered, due_s = 0, 0, 0.0
        while self.publishing.is_set() or waiting:
            batch = b""
            if time.monotonic() >= due_s and self.publishing.is_set():
                due_s = time.monotonic() + _PACE_S
                room = min(_AT_ONCE, _WINDOW - len(waiting))
            else:
                room = 0
            for number in itertools.islice(numbers, room):
                tag += 1
                waiting[tag] = record = Sent((publisher, number), time.monotonic())
                self.sent.append(record)
                batch += publish_bytes(1, b"%d %d" % record.key, routing_key=QUEUE, delivery_mode=2, mandatory=True)
            if batch:
                raw.send(batch)
            if not waiting:
                time.sleep(_PACE_S / 4)
                continue
            method = raw.recv_any()
            if method.name == "connection.blocked":
                continue
            if method.name == "connection.close":
                raw.send(method_frame(0, "connection.close-ok"))
                raise ConnectionLost("closed")
            if method.name == "basic.return":
                raise ConnectionLost("the broker does not know the queue")
            if method.name not in ("basic.ack", "basic.nack"):
                continue
            first = answered + 1 if method.multiple else method.delivery_tag
            for one in range(first, method.delivery_tag + 1):
                record = waiting.pop(one, None)  # type: ignore[assignment]
                if record is not None and method.name == "basic.ack":
                    record.confirmed_s = time.monotonic()
            answered = min(waiting, default=tag + 1) - 1
            if method.name == "basic.nack":
                time.sleep(0.002)  # no flood of refusals while there is no owner

    def _consume(self, consumer: int) -> None:
        for channel in self._channels(consumer, self.consuming):
            session = next(self._sessions)
            with contextlib.suppress(*LOST):
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
                    if method is not None:
                        self._note(session, method, body)
                        channel.basic_ack(method.delivery_tag)
                    if not self.consuming.is_set():
                        channel.cancel()
                        break

    def _note(self, session: int, method: Any, body: bytes) -> Key:
        publisher, number = body.split()
        key = (int(publisher), int(number))
        self.seen.append(Seen(key, method.redelivered, session, time.monotonic()))
        return key

    def drain(self, quiet_s: float, until_s: float) -> None:
        """One consumer takes all that is left, until nothing came for `quiet_s`. The order is noted."""
        known: set[Key] = set()
        for attempt in range(10):
            try:
                session = next(self._sessions)
                with self.channel(attempt) as channel:
                    channel.basic_qos(prefetch_count=100)
                    for method, _, body in channel.consume(QUEUE, inactivity_timeout=quiet_s):
                        if method is None or time.monotonic() > until_s:
                            return
                        key = self._note(session, method, body)
                        if key not in known:
                            known.add(key)
                            self.drained.append(key)
                        channel.basic_ack(method.delivery_tag)
            except LOST:
                time.sleep(1)
