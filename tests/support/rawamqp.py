"""A small AMQP 0-9-1 client for tests that care about single bytes: sends exactly what it is told, parses what comes back.

One thread, a blocking socket with deadlines. In: method names with keyword arguments, or raw bytes. Out: Frame and Method (rawcodec).
Invariants: content that arrives is assembled per channel and every frame is checked for its end octet and for the negotiated frame_max;
nothing is ever sent by itself except the answers that `open` gives during the handshake.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from typing import Any, Self

from tests.support.rawcodec import (
    BODY,
    CONTENT_HEADER,
    CONTENT_METHODS,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    METHOD,
    Frame,
    Method,
    Reader,
    Typed,
    encode_value,
    frame,
    header_frame,
    longstr,
    method_frame,
    method_payload,
    parse_header,
    parse_method,
    publish_bytes,
    shortstr,
    table,
)

__all__ = [
    "BODY",
    "CONTENT_HEADER",
    "HEADER",
    "HEARTBEAT",
    "METHOD",
    "ConnectionLost",
    "Frame",
    "Method",
    "RawChannel",
    "RawConnection",
    "Typed",
    "encode_value",
    "frame",
    "header_frame",
    "longstr",
    "method_frame",
    "method_payload",
    "publish_bytes",
    "shortstr",
    "table",
]


class ConnectionLost(Exception):
    """The peer closed the socket (end of stream or reset)."""


CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
}


class RawConnection:
    """A socket that speaks frames. `timeout` in seconds holds for every wait; `header_reader` reads properties."""

    header_reader = Reader

    def __init__(self, host: str, port: int, *, timeout: float = 30.0, tls: ssl.SSLContext | None = None) -> None:
        self.timeout = timeout
        self.sock: socket.socket = socket.create_connection((host, port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.buffer = bytearray()
        self.waiting: dict[int, deque[Method]] = {}
        self.partial: dict[int, tuple[Method, int]] = {}
        self.server_properties: dict[str, Any] = {}
        self.mechanisms: list[str] = []
        self.tune: Method | None = None
        self.frame_max = 131072
        self.heartbeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()

    # --- bytes ---
    def send(self, data: bytes) -> None:
        """Sends exactly these bytes."""
        self.sock.settimeout(self.timeout)
        self.sock.sendall(data)

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("nothing arrived in time")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(262144)
        except TimeoutError:
            raise TimeoutError("nothing arrived in time") from None
        except OSError as e:
            raise ConnectionLost(str(e)) from None
        if not data:
            raise ConnectionLost("end of stream")
        self.buffer += data

    def recv_exact(self, count: int, timeout: float | None = None) -> bytes:
        """`count` raw bytes."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while len(self.buffer) < count:
            self._fill(deadline)
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def recv_until_closed(self, timeout: float | None = None) -> bytes:
        """All bytes up to the end of the stream. Raises TimeoutError when the peer keeps the socket open."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        with contextlib.suppress(ConnectionLost):
            while True:
                self._fill(deadline)
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def recv_frame(self, timeout: float | None = None) -> Frame:
        """The next frame of any kind."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= 7:
                kind, channel, size = struct.unpack_from(">BHI", self.buffer)
                assert kind in (METHOD, CONTENT_HEADER, BODY, HEARTBEAT), f"not a frame: {bytes(self.buffer[:16])!r}"
                assert size + 8 <= self.frame_max, f"frame of {size + 8} bytes above frame_max {self.frame_max}"
                if len(self.buffer) >= size + 8:
                    payload = bytes(self.buffer[7 : 7 + size])
                    assert self.buffer[7 + size] == FRAME_END
                    del self.buffer[: size + 8]
                    return Frame(kind, channel, payload)
            self._fill(deadline)

    def drop(self) -> None:
        """Closes the socket without a word, as a killed client does."""
        self.sock.close()

    # --- methods ---
    def recv_any(self, timeout: float | None = None) -> Method:
        """The next complete method of any channel, in order of completion; heartbeats are counted and skipped."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            got = self.recv_frame(max(0.0, deadline - time.monotonic()))
            done = self._assemble(got)
            if done is not None:
                return done

    def _assemble(self, got: Frame) -> Method | None:
        if got.type == HEARTBEAT:
            assert got.channel == 0 and not got.payload
            self.heartbeats += 1
            return None
        if got.type == METHOD:
            assert got.channel not in self.partial, "a method in the middle of content"
            method = parse_method(got.channel, got.payload)
            if method.name in CONTENT_METHODS:
                self.partial[got.channel] = (method, -1)
                return None
            return method
        method, left = self.partial[got.channel]
        if got.type == CONTENT_HEADER:
            assert left < 0, "second content header"
            left, method.properties = parse_header(got.payload, self.header_reader)
        else:
            assert left > 0, "body frame without need"
            method.body += got.payload
            method.body_frames.append(len(got.payload))
            left -= len(got.payload)
        assert left >= 0, "more body than the header said"
        if left == 0:
            del self.partial[got.channel]
            return method
        self.partial[got.channel] = (method, left)
        return None

    def recv(self, channel: int, timeout: float | None = None) -> Method:
        """The next method of one channel; those of others are kept for their channel. connection.close always surfaces."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        mine = self.waiting.setdefault(channel, deque())
        while not mine:
            method = self.recv_any(max(0.0, deadline - time.monotonic()))
            if method.name == "connection.close" and channel != 0:
                raise AssertionError(f"connection.close {method.reply_code} {method.reply_text}")
            self.waiting.setdefault(method.channel, deque()).append(method)
        return mine.popleft()

    def expect(self, channel: int, name: str, timeout: float | None = None) -> Method:
        """The next method of the channel, which must be `name`."""
        method = self.recv(channel, timeout)
        assert method.name == name, f"expected {name}, got {method.name} {method.fields}"
        return method

    # --- handshake ---
    def start(self) -> Method:
        """Sends the protocol header and returns connection.start."""
        self.send(HEADER)
        start = self.expect(0, "connection.start")
        self.server_properties = start.server_properties
        self.mechanisms = start.mechanisms.decode().split()
        return start

    def start_ok(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        product: str = "raw",
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Sends connection.start-ok."""
        properties = {"product": product, "capabilities": CAPABILITIES if capabilities is None else capabilities}
        secret = f"\0{user}\0{password}".encode() if response is None else response
        self.send(
            method_frame(0, "connection.start-ok", client_properties=properties, mechanism=mechanism, response=secret, locale="en_US")
        )

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        vhost: str = "/",
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        product: str = "raw",
        capabilities: dict[str, bool] | None = None,
    ) -> Self:
        """The whole handshake; None takes what the server offers."""
        self.start()
        self.start_ok(user, password, product=product, capabilities=capabilities)
        self.tune = self.expect(0, "connection.tune")
        self.frame_max = self.tune.frame_max if frame_max is None else frame_max
        channels = self.tune.channel_max if channel_max is None else channel_max
        self.send(method_frame(0, "connection.tune-ok", channel_max=channels, frame_max=self.frame_max, heartbeat=heartbeat))
        self.send(method_frame(0, "connection.open", virtual_host=vhost))
        self.expect(0, "connection.open-ok")
        self.frame_max = self.frame_max or 2**31
        return self

    def channel(self, number: int = 1) -> RawChannel:
        """Opens a channel."""
        self.send(method_frame(number, "channel.open"))
        self.expect(number, "channel.open-ok")
        return RawChannel(self, number)

    def close(self) -> None:
        """Orderly close: the server must answer close-ok, and waits for the client to end the stream."""
        self.send(method_frame(0, "connection.close", reply_code=200, reply_text="bye"))
        while self.recv_any().name != "connection.close-ok":
            pass
        self.sock.close()

    def expect_close(self, code: int, text: str = "", timeout: float | None = None) -> Method:
        """connection.close with this code and a text that contains `text`; answered with close-ok; the stream must end."""
        while True:
            method = self.recv_any(timeout)
            if method.name == "connection.close":
                break
        assert method.reply_code == code, f"{method.reply_code} {method.reply_text}"
        assert text in method.reply_text, method.reply_text
        with contextlib.suppress(OSError):
            self.send(method_frame(0, "connection.close-ok"))
        rest = self.recv_until_closed(timeout)
        assert rest == b"", rest
        return method


class RawChannel:
    """One channel of a RawConnection."""

    def __init__(self, connection: RawConnection, number: int) -> None:
        self.connection = connection
        self.number = number

    def send(self, name: str, **arguments: Any) -> None:
        """Sends a method without waiting."""
        self.connection.send(method_frame(self.number, name, **arguments))

    def call(self, name: str, **arguments: Any) -> Method:
        """Sends a synchronous method and returns its answer; deliveries, returns and confirms that come first are kept."""
        self.send(name, **arguments)
        answers = {"basic.get": ("basic.get-ok", "basic.get-empty")}.get(name, (name + "-ok",))
        kept: list[Method] = []
        while True:
            method = self.connection.recv(self.number)
            if method.name in answers:
                break
            if method.name == "channel.close":
                raise AssertionError(f"{name}: channel.close {method.reply_code} {method.reply_text}")
            kept.append(method)
        self.connection.waiting[self.number].extendleft(reversed(kept))
        return method

    def expect(self, name: str, timeout: float | None = None) -> Method:
        """The next method of this channel, which must be `name`."""
        return self.connection.expect(self.number, name, timeout)

    def expect_close(self, code: int, text: str = "") -> Method:
        """channel.close with this code and a text that contains `text`; answered with close-ok."""
        method = self.connection.recv(self.number)
        while method.name in ("basic.deliver", "basic.ack", "basic.return", "basic.cancel"):
            method = self.connection.recv(self.number)
        assert method.name == "channel.close", f"{method.name} {method.fields}"
        assert method.reply_code == code, f"{method.reply_code} {method.reply_text}"
        assert text in method.reply_text, method.reply_text
        self.send("channel.close-ok")
        return method

    def refuse(self, code: int, text: str, name: str, **arguments: Any) -> Method:
        """Sends a method that must close the channel with `code` and `text`; the channel is opened again afterwards."""
        self.send(name, **arguments)
        method = self.expect_close(code, text)
        self.connection.send(method_frame(self.number, "channel.open"))
        self.connection.expect(self.number, "channel.open-ok")
        return method

    def publish(self, body: bytes, *, routing_key: str = "", exchange: str = "", **rest: Any) -> None:
        """Publishes one message; `rest` as in `publish_bytes`."""
        chunk = min(self.connection.frame_max, 131072) - 8
        self.connection.send(publish_bytes(self.number, body, exchange=exchange, routing_key=routing_key, chunk=chunk, **rest))

    def deliveries(self, count: int, timeout: float | None = None) -> list[Method]:
        """Exactly the next `count` methods, all of which must be basic.deliver."""
        return [self.expect("basic.deliver", timeout) for _ in range(count)]

    def nothing(self, seconds: float = 0.15) -> None:
        """Fails when anything arrives on this channel within `seconds`."""
        try:
            method = self.connection.recv(self.number, seconds)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected {method.name} {method.fields} {method.body[:40]!r}")

    def queue(self, name: str = "", **arguments: Any) -> str:
        """Declares a queue and returns its name."""
        return str(self.call("queue.declare", queue=name, **arguments).queue)

    def ready(self, queue: str) -> int:
        """Number of ready messages, by a passive declare."""
        return int(self.call("queue.declare", queue=queue, passive=True).message_count)

    def wait_ready(self, queue: str, count: int, timeout: float = 30.0) -> None:
        """Waits until the queue holds exactly `count` ready messages (RabbitMQ answers a declare before it counts what was published)."""
        deadline = time.monotonic() + timeout
        while (ready := self.ready(queue)) != count:
            assert time.monotonic() < deadline, f"{ready} ready messages, expected {count}"
            time.sleep(0.01)

    def consume(self, queue: str, tag: str = "", **arguments: Any) -> str:
        """Starts a consumer and returns its tag."""
        return str(self.call("basic.consume", queue=queue, consumer_tag=tag, **arguments).consumer_tag)
