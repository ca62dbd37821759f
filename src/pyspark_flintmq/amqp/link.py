"""The AMQP 0-9-1 side of the source: one pika connection, in a thread of its own so that heartbeats go on while Spark works.

In: Options. Out: the `Link` of subscription.py. Invariants: manual acknowledgement only; acknowledgements are a transaction (tx.commit-ok
is the broker's word that it has them); what waits in memory is bounded by the prefetch count and by `_bytes_high`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pika
import pika.exceptions
import pika.spec
from pika.adapters.select_connection import SelectConnection

from pyspark_flintmq.amqp.messages import Delivery, Properties
from pyspark_flintmq.amqp.options import Options
from pyspark_flintmq.errors import ConnectionLost, SourceError

_RETRY_S = 0.25
_DEPTH_POLL_S = 1.0


class ExactProperties(pika.spec.BasicProperties):  # type: ignore[misc]  # pika and pyspark have no types here
    """Basic properties that keep the bytes of the header table: decoding loses integer widths."""

    # Not among the instance's variables: pika makes all properties of this class from now on, other users' as well.
    __slots__ = ("headers_raw",)

    def decode(self, encoded: bytes, offset: int = 0) -> Any:
        result = super().decode(encoded, offset)
        if self.headers is not None:
            # Flags (more words follow while bit 0 is set), then content type and encoding as short strings, if present.
            flags = offset_now = int.from_bytes(encoded[offset : offset + 2], "big")
            offset_now = offset + 2
            word = flags
            while word & 1:
                word = int.from_bytes(encoded[offset_now : offset_now + 2], "big")
                offset_now += 2
            for flag in (self.FLAG_CONTENT_TYPE, self.FLAG_CONTENT_ENCODING):
                if flags & flag:
                    offset_now += 1 + encoded[offset_now]
            self.headers_raw = bytes(encoded[offset_now : offset_now + 4 + int.from_bytes(encoded[offset_now : offset_now + 4], "big")])
        return result


class AmqpLink:
    """One consuming connection. Methods are called by one thread (the reader's); callbacks run in the I/O thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wake = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._buffer_bytes = 0
        self._prefetch = options.prefetch
        self._bytes_high = 2 * options.maxBytesPerTrigger
        self._connection: SelectConnection | None = None
        self._channel: Any = None
        self._thread: threading.Thread | None = None
        self._error: SourceError | None = None
        self._closing = False
        self._ready: int | None = None
        self._depth: int | None = None
        self._tag = "flintmq-spark"
        # open: messages come; pausing: cancelled, not confirmed yet; paused: the queue has back what we did not take.
        self._flow = "open"

    # --- Link ---------------------------------------------------------------------------------------------------------

    def attach(self, prefetch: int) -> int:
        """See Link. Tries again for `timeout` seconds while the broker is away or another consumer holds the queue.

        Raises: ConnectionLost; SourceError LOGIN_REFUSED, QUEUE_MISSING, QUEUE_BUSY, BROKER_REFUSED.
        """
        # pika logs every failed attempt with a traceback; the error that we raise says it in one line.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        pika.spec.props[pika.spec.BasicProperties.INDEX] = ExactProperties
        self._prefetch = prefetch
        deadline = time.monotonic() + self._options.timeout
        last_error: SourceError | None = None
        while True:
            self._start(deadline)
            with self._wake:
                self._wake.wait_for(lambda: self._ready is not None or self._error is not None, max(0.0, deadline - time.monotonic()))
                if self._ready is not None and self._error is None:
                    return self._ready
                # A last attempt that the deadline cuts off says less than the one before it.
                last_error = self._error or last_error
                error = last_error or ConnectionLost(f"{self._options.where}: no answer within {self._options.timeout} s", "UNREACHABLE")
            self.close()
            if error.code not in ("UNREACHABLE", "CONNECTION_LOST", "QUEUE_BUSY") or time.monotonic() + _RETRY_S >= deadline:
                raise error
            time.sleep(_RETRY_S)

    def is_open(self) -> bool:
        return self._error is None and self._connection is not None

    def take(self, messages: int, size: int, wait_s: float) -> list[Delivery]:
        taken: list[Delivery] = []
        total = 0
        with self._wake:
            if not self._buffer:
                self._wake.wait_for(lambda: self._buffer or self._error, wait_s)
            self._raise_error()
            while self._buffer and len(taken) < messages and total < size:
                delivery = self._buffer.popleft()
                total += len(delivery.body)
                taken.append(delivery)
            self._buffer_bytes -= total
            resume = self._flow == "paused" and self._buffer_bytes < self._bytes_high // 2
        if resume:
            self._run(self._resume)
        return taken

    def settle(self, up_to: int, single: Sequence[int]) -> None:
        done = threading.Event()

        def acknowledge() -> None:
            if up_to:
                self._channel.basic_ack(up_to, multiple=True)
            for tag in single:
                self._channel.basic_ack(tag)
            self._channel.tx_commit(callback=lambda _frame: done.set())

        if up_to or single:
            self._run(acknowledge)
            self._wait(done)

    def depth(self) -> int:
        done = threading.Event()
        counts: list[int] = []

        def answered(frame: Any) -> None:
            counts.append(frame.method.message_count)
            done.set()

        self._run(lambda: self._channel.queue_declare(self._options.queue, passive=True, callback=answered))
        self._wait(done)
        return counts[0]

    def backlog(self) -> int | None:
        with self._wake:
            return None if self._depth is None else self._depth + len(self._buffer)

    def close(self) -> None:
        connection, thread = self._connection, self._thread
        self._closing = True
        if connection is not None and thread is not None and thread.is_alive():
            try:
                connection.ioloop.add_callback_threadsafe(self._close_connection)
            except Exception as e:
                logging.getLogger(__name__).debug("close: %s", e)
            thread.join(5.0)
        self._connection = self._thread = self._channel = None
        with self._wake:
            self._buffer.clear()
            self._buffer_bytes = 0

    # --- from the reader's thread -------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        o = self._options
        rest_s = max(1.0, deadline - time.monotonic())
        parameters = pika.ConnectionParameters(
            host=o.host,
            port=o.port,
            virtual_host=o.vhost,
            credentials=pika.PlainCredentials(o.user, o.password),
            heartbeat=o.heartbeat,
            socket_timeout=rest_s,
            stack_timeout=rest_s,
            client_properties={"connection_name": f"Spark source of {o.queue}"},
        )
        self._error = None
        self._ready = None
        self._closing = False
        self._flow = "open"
        self._thread = threading.Thread(target=self._loop, args=(parameters,), name="flintmq-amqp", daemon=True)
        self._thread.start()

    def _run(self, action: Callable[[], None]) -> None:
        """Has `action` done by the I/O thread; an error in it ends the link."""

        def guarded() -> None:
            try:
                action()
            except Exception as e:
                self._fail(ConnectionLost(f"{self._options.where}: {_text(e)}"))
                self._close_connection()

        self._raise_error()
        connection = self._connection
        if connection is None:
            raise ConnectionLost(f"{self._options.where}: not connected")
        try:
            connection.ioloop.add_callback_threadsafe(guarded)
        except Exception as e:
            # The loop was closed in between.
            self._raise_error()
            raise ConnectionLost(f"{self._options.where}: {_text(e)}") from e

    def _wait(self, done: threading.Event) -> None:
        deadline = time.monotonic() + self._options.timeout
        while not done.wait(0.05):
            self._raise_error()
            if time.monotonic() >= deadline:
                raise ConnectionLost(f"{self._options.where}: no answer within {self._options.timeout} s")

    def _raise_error(self) -> None:
        if self._error is not None:
            # A new one each time: an exception object collects tracebacks.
            raise type(self._error)(*self._error.__reduce__()[1])

    # --- in the I/O thread --------------------------------------------------------------------------------------------

    def _loop(self, parameters: pika.ConnectionParameters) -> None:
        try:
            connection = SelectConnection(
                parameters,
                on_open_callback=lambda c: c.channel(on_open_callback=self._channel_open),
                on_open_error_callback=self._open_failed,
                on_close_callback=self._closed,
            )
            self._connection = connection
            try:
                connection.ioloop.start()
            finally:
                self._fail(ConnectionLost(f"{self._options.where}: connection ended"))
                connection.ioloop.close()
        except Exception as e:
            self._fail(ConnectionLost(f"{self._options.where}: {_text(e)}"))

    def _open_failed(self, connection: SelectConnection, error: BaseException | str) -> None:
        o = self._options
        refused = pika.exceptions
        if isinstance(error, refused.ProbableAuthenticationError | refused.AuthenticationError) or "ACCESS_REFUSED" in str(error):
            self._fail(
                SourceError("LOGIN_REFUSED", f"{o.host}:{o.port} refused user '{o.user}': wrong user or password, or not allowed from here")
            )
        elif isinstance(error, refused.ProbableAccessDeniedError) or "NOT_ALLOWED" in str(error):
            self._fail(SourceError("LOGIN_REFUSED", f"{o.host}:{o.port} refused user '{o.user}' in vhost '{o.vhost}': {_text(error)}"))
        else:
            self._fail(ConnectionLost(f"cannot connect to {o.host}:{o.port}: {_text(error)}", "UNREACHABLE"))
        connection.ioloop.stop()

    def _channel_open(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(lambda _frame: self._cancelled_by_broker())
        channel.tx_select(callback=lambda _frame: channel.basic_qos(prefetch_count=self._prefetch, callback=self._qos_set))

    def _qos_set(self, _frame: Any) -> None:
        self._channel.queue_declare(self._options.queue, passive=True, callback=self._declared)

    def _declared(self, frame: Any) -> None:
        if self._options.exclusive and frame.method.consumer_count:
            self._busy()
            return
        self._depth = count = frame.method.message_count
        self._consume(lambda _frame: self._consuming_since(count))

    def _consume(self, callback: Callable[[Any], None]) -> None:
        self._channel.basic_consume(
            self._options.queue,
            self._on_message,
            exclusive=self._options.exclusive,
            consumer_tag=self._tag,
            arguments={"x-no-stream": True},  # FlintMQ refuses it on a stream, where acks take nothing away; RabbitMQ ignores it
            callback=callback,
        )

    def _consuming_since(self, count: int) -> None:
        with self._wake:
            self._ready = count
            self._wake.notify_all()
        assert self._connection is not None
        self._connection.ioloop.call_later(_DEPTH_POLL_S, self._poll_depth)

    def _poll_depth(self) -> None:
        if self._closing or self._error is not None or self._connection is None:
            return

        def answered(frame: Any) -> None:
            self._depth = frame.method.message_count
            if self._connection is not None:
                self._connection.ioloop.call_later(_DEPTH_POLL_S, self._poll_depth)

        self._channel.queue_declare(self._options.queue, passive=True, callback=answered)

    def _on_message(self, _channel: Any, method: Any, p: Any, body: bytes) -> None:
        properties = Properties(
            content_type=p.content_type,
            content_encoding=p.content_encoding,
            headers=p.headers,
            headers_raw=getattr(p, "headers_raw", None),
            delivery_mode=p.delivery_mode,
            priority=p.priority,
            correlation_id=p.correlation_id,
            reply_to=p.reply_to,
            expiration=p.expiration,
            message_id=p.message_id,
            timestamp=p.timestamp,
            type=p.type,
            user_id=p.user_id,
            app_id=p.app_id,
            cluster_id=p.cluster_id,
        )
        delivery = Delivery(method.delivery_tag, method.redelivered, method.exchange, method.routing_key, properties, body)
        with self._wake:
            self._buffer.append(delivery)
            self._buffer_bytes += len(body)
            pause = self._buffer_bytes >= self._bytes_high and self._flow == "open"
            if pause:
                self._flow = "pausing"
            self._wake.notify()
        if pause:
            self._pause()

    def _pause(self) -> None:
        """Stops deliveries when bodies fill the memory. pika rejects what is on its way; the commit makes the queue take it back."""
        self._channel.basic_cancel(self._tag, callback=lambda _frame: self._channel.tx_commit(callback=self._pause_done))

    def _pause_done(self, _frame: Any) -> None:
        with self._wake:
            self._flow = "paused"
            resume = self._buffer_bytes < self._bytes_high // 2
        if resume:
            self._resume()

    def _resume(self) -> None:
        # Only from "paused": earlier, the rejected messages are not back in the queue, and newer ones would overtake them.
        if self._flow == "paused":
            self._flow = "open"
            self._consume(lambda _frame: None)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _cancelled_by_broker(self) -> None:
        self._fail(SourceError("QUEUE_MISSING", f"{self._options.where}: the queue was deleted"))
        self._close_connection()

    def _channel_closed(self, _channel: Any, error: Exception) -> None:
        if self._closing:
            return
        code = getattr(error, "reply_code", 0)
        text = f"{self._options.where}: {_text(error)}"
        if code == 404:
            self._fail(SourceError("QUEUE_MISSING", text))
        elif code in (403, 405) and "exclusive" in str(error):
            self._busy()
            return
        elif code == 406 and "is a stream" in str(error):
            self._fail(SourceError("BROKER_REFUSED", f"{self._options.where} is a stream: read it without transport=amqp"))
        elif code:
            self._fail(SourceError("BROKER_REFUSED", text))
        else:
            # No word from the broker: the channel only went down with its connection.
            self._fail(ConnectionLost(text))
        self._close_connection()

    def _busy(self) -> None:
        self._fail(
            SourceError(
                "QUEUE_BUSY",
                f"{self._options.where} has another consumer: stop it, or set option exclusive=false "
                "and accept that messages may come twice",
            )
        )
        self._close_connection()

    def _closed(self, connection: SelectConnection, error: Exception) -> None:
        self._fail(ConnectionLost(f"{self._options.where}: {_text(error)}"))
        connection.ioloop.stop()

    def _close_connection(self) -> None:
        connection = self._connection
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()

    def _fail(self, error: SourceError) -> None:
        """Keeps the first error: the later ones are its consequences."""
        with self._wake:
            if self._error is None:
                self._error = error
            self._wake.notify_all()


def _text(error: BaseException | str) -> str:
    """One line about an error of pika, whose text may be empty or nested."""
    code, text = getattr(error, "reply_code", None), getattr(error, "reply_text", None)
    if code:
        return f"{code} {text}"
    inner = getattr(error, "exceptions", None) or getattr(error, "args", None)
    first = inner[-1] if inner else error
    line = str(first if isinstance(error, pika.exceptions.AMQPConnectionError) else error).strip().splitlines()
    return line[0] if line else type(error).__name__
