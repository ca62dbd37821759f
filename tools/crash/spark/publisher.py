"""The publisher: numbered messages over several queues, each confirmed before the next is sent, for as long as the campaign lasts.

in: AMQP port, keys. out: `sent`. A number is used once: what was not confirmed (the broker was killed) is not sent again, as nobody could
tell the two apart. Every message goes to a queue of each query: `a.KEY` and `b.KEY`.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pika
import pika.exceptions

from tools.crash.spark.check import Sent, body_of

EXCHANGE = "crash"
# where the sink writes: the exchange leads to the queue `copy` and to this stream
COPIES, STREAM = "copies", "copied"
TRANSIENT = 0.1  # share of messages with delivery mode 1
RETRY_S = 0.1


def connect(port: int, seconds: float = 60.0) -> Any:
    """A connection; the broker is waited for. Raises: pika's error of the last try."""
    until = time.monotonic() + seconds
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, blocked_connection_timeout=60, socket_timeout=10)
    while True:
        try:
            return pika.BlockingConnection(parameters)
        except (pika.exceptions.AMQPError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_S)


def declare(port: int, keys: Sequence[str]) -> None:
    """Exchange, queues of both queries, the sink's exchange with a queue and a stream."""
    with contextlib.closing(connect(port)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "direct", durable=True)
        channel.exchange_declare(COPIES, "fanout", durable=True)
        channel.queue_declare("copy", durable=True)
        channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        for name in ("copy", STREAM):
            channel.queue_bind(name, COPIES)
        for key in keys:
            for letter in "ab":
                channel.queue_declare(f"{letter}.{key}", durable=True)
                channel.queue_bind(f"{letter}.{key}", EXCHANGE, key)


def drain(port: int, queue: str) -> list[tuple[bytes, str]]:
    """Takes all messages of a queue: (body, message id)."""
    found: list[tuple[bytes, str]] = []
    with contextlib.closing(connect(port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        depth = channel.queue_declare(queue, passive=True).method.message_count
        while depth:
            for method, properties, body in channel.consume(queue, inactivity_timeout=5):
                if method is None:
                    break
                found.append((body, properties.message_id))
                if len(found) % 500 == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                last = method.delivery_tag
                depth -= 1
                if depth == 0:
                    channel.basic_ack(last, multiple=True)
                    break
            channel.cancel()
            depth = channel.queue_declare(queue, passive=True).method.message_count
    return found


def kept(port: int, stream: str, least: int) -> list[tuple[bytes, str]]:
    """All messages of a stream, which keeps them: (body, message id). What was committed comes soon: `least` are waited for."""
    until = time.monotonic() + 60
    found: list[tuple[bytes, str]] = []
    with contextlib.closing(connect(port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        depth = channel.queue_declare(stream, passive=True).method.message_count
        while depth < least and time.monotonic() < until:
            time.sleep(RETRY_S)
            depth = channel.queue_declare(stream, passive=True).method.message_count
        if not depth:
            return found
        for method, properties, body in channel.consume(stream, arguments={"x-stream-offset": "first"}):
            found.append((body, properties.message_id))
            if len(found) % 500 == 0 or len(found) == depth:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(found) == depth:
                break
        channel.cancel()
    return found


def depths(port: int, queues: Sequence[str]) -> dict[str, int]:
    """Ready messages of each queue."""
    with contextlib.closing(connect(port)) as connection:
        channel = connection.channel()
        return {queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues}


class Publisher(threading.Thread):
    """See module. Args: port; keys; seed; rate: messages per second."""

    def __init__(self, port: int, keys: Sequence[str], seed: int, rate: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self.sent = Sent()
        self.error: BaseException | None = None
        self._port, self._keys, self._rate = port, list(keys), rate
        self._random = random.Random(seed)
        self._numbers = dict.fromkeys(keys, 0)
        self._going = threading.Event()
        self._idle = threading.Event()
        self._end = threading.Event()
        self._extra = 0

    def run(self) -> None:
        try:
            while not self._end.is_set():
                if not self._going.is_set():
                    self._idle.set()
                    self._going.wait(0.05)
                    continue
                with contextlib.suppress(pika.exceptions.AMQPError, OSError), contextlib.closing(connect(self._port, 120)) as connection:
                    self._publish(connection)
                time.sleep(RETRY_S)
        except BaseException as e:
            self.error = e
            raise
        finally:
            self._idle.set()

    def _publish(self, connection: Any) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        began, count = time.monotonic(), 0
        while self._going.is_set() and not self._end.is_set():
            self._one(channel)
            count += 1
            ahead = count / self._rate - (time.monotonic() - began)
            if ahead > 0.02:
                connection.sleep(ahead)

    def _one(self, channel: Any) -> None:
        key = self._random.choice(self._keys)
        number = self._numbers[key]
        self._numbers[key] += 1
        transient = self._random.random() < TRANSIENT
        # A few are too long to be kept in memory or inline.
        padding = self._random.choice((0, 30, 200, 900)) if self._random.random() < 0.99 else 40_000
        name = (key, number)
        self.sent.maybe.add(name)
        properties = pika.BasicProperties(delivery_mode=1 if transient else 2, message_id=str(number))
        channel.basic_publish(EXCHANGE, key, body_of(key, number, padding), properties)
        if not transient:
            self.sent.sure.add(name)
            self.sent.maybe.discard(name)

    def resume(self) -> None:
        """Sends from now on."""
        self._idle.clear()
        self._going.set()

    def pause(self) -> None:
        """Returns when nothing is sent any more."""
        self._going.clear()
        if self.is_alive():
            self._idle.wait(180)

    def finish(self) -> None:
        """The end of the thread."""
        self._end.set()
        self.pause()
        self.join(10)
