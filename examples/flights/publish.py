"""Publishing many messages with pika and publisher confirms, a window of them on their way at a time.

In: an AMQP URL, a topology, messages. Out: the number confirmed. Invariant: returns only when the broker has confirmed every message;
one that is refused (nack) or that no queue takes (return) is an error, never skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
from pika.adapters.select_connection import SelectConnection

from examples.flights.dataset import EXIT_UNAVAILABLE, Message
from flintmq.errors import OperatorError

# Messages sent and not confirmed yet: enough to keep the broker busy during a round trip, little enough to stay in socket buffers.
WINDOW = 4_000
# Messages sent in one go before the connection gets to read confirms.
BURST = 250


class Publisher:
    """Declares a topic exchange and a queue bound with `#`, then publishes. Use `run` once."""

    def __init__(self, url: str, exchange: str, queue: str, messages: Iterator[Message], progress: Callable[[int], None]) -> None:
        self._parameters = pika.URLParameters(url)
        self._exchange = exchange
        self._queue = queue
        self._messages = messages
        self._progress = progress
        self._connection: SelectConnection | None = None
        self._channel: Any = None
        # Tags on their way, in order: a dict keeps it, and gives a single ack in one step.
        self._outstanding: dict[int, None] = {}
        self._sent = 0
        self._confirmed = 0
        self._exhausted = False
        self._error: str | None = None

    def run(self) -> int:
        """Publishes all; returns how many.

        Raises: OperatorError (69) when the broker is not there, refuses something or goes away.
        """
        self._connection = SelectConnection(
            self._parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _connection, error: self._stop(f"cannot connect to {self._where}: {_line(error)}"),
            on_close_callback=lambda _connection, error: self._stop(f"connection to {self._where} ended: {_line(error)}"),
        )
        try:
            self._connection.ioloop.start()
        finally:
            self._connection.ioloop.close()
        if self._error is None and not self._is_done:
            self._error = f"connection to {self._where} ended early"
        if self._error is not None:
            raise OperatorError(self._error, EXIT_UNAVAILABLE)
        return self._confirmed

    @property
    def _where(self) -> str:
        return f"{self._parameters.host}:{self._parameters.port}"

    @property
    def _is_done(self) -> bool:
        return self._exhausted and not self._outstanding

    # --- topology -----------------------------------------------------------------------------------------------------

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(lambda _c, method, _p, _b: self._fail(f"no queue takes {method.routing_key}: {method.reply_text}"))
        channel.exchange_declare(self._exchange, "topic", durable=True, callback=self._exchange_there)

    def _exchange_there(self, _frame: Any) -> None:
        self._channel.queue_declare(self._queue, durable=True, callback=self._queue_there)

    def _queue_there(self, frame: Any) -> None:
        if frame.method.message_count:
            self._fail(f"queue {self._queue} already holds {frame.method.message_count} messages: empty it, or use another broker")
            return
        self._channel.queue_bind(self._queue, self._exchange, "#", callback=self._bound)

    def _bound(self, _frame: Any) -> None:
        self._channel.confirm_delivery(self._confirm, callback=lambda _frame: self._pump())

    # --- messages -----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        room = min(BURST, WINDOW - len(self._outstanding))
        for _ in range(room):
            message = next(self._messages, None)
            if message is None:
                self._exhausted = True
                break
            properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, message_id=message.message_id)
            self._channel.basic_publish(self._exchange, message.routing_key, message.body, properties, mandatory=True)
            self._sent += 1
            self._outstanding[self._sent] = None
        if self._is_done:
            self._finish()
        elif room == BURST and not self._exhausted and self._connection is not None:
            # The window may have more room; let the loop write and read in between.
            self._connection.ioloop.add_callback(self._pump)

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._fail(f"the broker refused message {method.delivery_tag} (basic.nack)")
            return
        full = len(self._outstanding) > WINDOW - BURST
        if method.multiple:
            confirmed = 0
            for tag in self._outstanding:
                if tag > method.delivery_tag:
                    break
                confirmed += 1
            for _ in range(confirmed):
                del self._outstanding[next(iter(self._outstanding))]
        else:
            confirmed = 0 if self._outstanding.pop(method.delivery_tag, 0) == 0 else 1
        self._confirmed += confirmed
        self._progress(self._confirmed)
        if self._is_done:
            self._finish()
        elif full and len(self._outstanding) <= WINDOW - BURST:
            self._pump()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self._connection is not None and not (self._connection.is_closing or self._connection.is_closed):
            self._connection.close()

    def _channel_closed(self, _channel: Any, error: Exception) -> None:
        if not self._is_done:
            self._fail(f"{self._where} closed the channel: {_line(error)}")

    def _fail(self, text: str) -> None:
        self._error = self._error or text
        self._finish()

    def _stop(self, text: str) -> None:
        if not self._is_done:
            self._error = self._error or text
        if self._connection is not None:
            self._connection.ioloop.stop()


def queue_state(url: str, queue: str) -> tuple[int, int]:
    """(messages ready, consumers) of `queue`.

    Raises: OperatorError (69).
    """
    with _channel(url, f"ask for the state of queue {queue}") as channel:
        method = channel.queue_declare(queue, passive=True).method
        return int(method.message_count), int(method.consumer_count)


def declare_empty(url: str, queue: str) -> None:
    """Declares a durable queue. Raises: OperatorError (69) also when it holds messages."""
    with _channel(url, f"declare queue {queue}") as channel:
        count = channel.queue_declare(queue, durable=True).method.message_count
    if count:
        raise OperatorError(f"queue {queue} already holds {count} messages: empty it, or use another broker", EXIT_UNAVAILABLE)


def drain(url: str, queue: str) -> list[bytes]:
    """The bodies of all messages of `queue`, in order; they are acknowledged. Raises: OperatorError (69)."""
    bodies: list[bytes] = []
    with _channel(url, f"read queue {queue}") as channel:
        while True:
            method, _, body = channel.basic_get(queue)
            if method is None:
                return bodies
            bodies.append(body)
            channel.basic_ack(method.delivery_tag)


@contextlib.contextmanager
def _channel(url: str, role: str) -> Iterator[Any]:
    try:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        try:
            yield connection.channel()
        finally:
            connection.close()
    except pika.exceptions.AMQPError as e:
        raise OperatorError(f"cannot {role}: {_line(e)}", EXIT_UNAVAILABLE) from e


def _line(error: BaseException | str) -> str:
    text = str(error) or repr(error)
    return text.strip().splitlines()[0]
