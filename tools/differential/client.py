"""One scenario's client: sends single methods and bytes, and writes down all that the broker says, in words that can be compared.

in: method names with arguments, raw bytes. out: `lines`, the transcript: one line for each method that came, with its fields; content with
its properties, each value with its type on the wire.

D1  What differs from run to run is replaced: names that the broker made, of nodes and of connections, times, delivery of the same by
    another consumer tag. FlintMQ's hints are left out.
D2  A step ends when its answer came, or a close; a step without an answer ends with the answer to a basic.qos sent after it, which a
    broker that serves a channel in order gives last.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import time
from typing import Any

from tests.support.rawamqp import ConnectionLost, RawConnection
from tests.support.rawcodec import (
    BODY,
    HEADER,
    Method,
    Reader,
    Typed,
    frame,
    header_frame,
    method_frame,
    publish_bytes,
)

__all__ = ["BODY", "HEADER", "Client", "Typed", "frame", "header_frame", "method_frame", "publish_bytes"]

# seconds; what is waited for, and how long "nothing" is
WAIT_S, QUIET_S = 10.0, 0.3
_SYNCHRONOUS = {
    "channel.open": "channel.open-ok",
    "channel.close": "channel.close-ok",
    "channel.flow": "channel.flow-ok",
    "exchange.declare": "exchange.declare-ok",
    "exchange.delete": "exchange.delete-ok",
    "exchange.bind": "exchange.bind-ok",
    "exchange.unbind": "exchange.unbind-ok",
    "queue.declare": "queue.declare-ok",
    "queue.bind": "queue.bind-ok",
    "queue.unbind": "queue.unbind-ok",
    "queue.purge": "queue.purge-ok",
    "queue.delete": "queue.delete-ok",
    "basic.qos": "basic.qos-ok",
    "basic.consume": "basic.consume-ok",
    "basic.cancel": "basic.cancel-ok",
    "basic.get": "basic.get-ok",
    "basic.recover": "basic.recover-ok",
    "tx.select": "tx.select-ok",
    "tx.commit": "tx.commit-ok",
    "tx.rollback": "tx.rollback-ok",
    "confirm.select": "confirm.select-ok",
    "connection.close": "connection.close-ok",
}
_ENDS = ("channel.close", "connection.close")
# what FlintMQ adds to a reply text of RabbitMQ's (PeerError)
HINT = re.compile(r" \(hint: .*\)$", re.DOTALL)
# the name of a connection
PEERS = re.compile(r"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+")


class _TypedReader(Reader):
    """A reader whose table values keep their type: (letter, value)."""

    def value(self) -> Any:
        kind = chr(self.data[self.at])
        if kind == "F":
            self.at += 1
            return kind, self.table()
        if kind == "A":
            self.at += 1
            inner = _TypedReader(self.take(self.fixed(">I")))
            values = []
            while inner.at < len(inner.data):
                values.append(inner.value())
            return kind, values
        value = super().value()
        return kind, "TIME" if kind == "T" and abs(float(value) - time.time()) < 3600 else value

    def table(self) -> dict[str, Any]:
        inner = _TypedReader(self.take(self.fixed(">I")))
        found = {}
        while inner.at < len(inner.data):
            name = inner.shortstr()
            found[name] = inner.value()
        return found


class Client:
    """See module. Channel 1 is open from the start. After the end of the connection further steps write `(over)`."""

    def __init__(self, port: int, *, user: str = "guest", password: str = "guest", vhost: str = "/", http_port: int = 0) -> None:
        self.port = port
        self.http_port = http_port
        # the last message that came
        self.last: Method | None = None
        self.lines: list[str] = []
        self.over = False
        self._user = (user, password)
        self._vhost = vhost
        self._names: dict[str, str] = {}
        self.connection = self._open()

    def _open(self) -> RawConnection:
        connection = RawConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.header_reader = _TypedReader
        connection.open(*self._user, vhost=self._vhost)
        connection.send(method_frame(1, "channel.open"))
        connection.expect(1, "channel.open-ok")
        return connection

    # --- steps ------------------------------------------------------------------------------------------------------------

    def do(self, name: str, channel: int = 1, **arguments: Any) -> Method | None:
        """A synchronous method and what comes until its answer."""
        return self._step(method_frame(channel, name, **arguments), channel, _SYNCHRONOUS[name])

    def say(self, name: str, channel: int = 1, **arguments: Any) -> None:
        """A method without an answer."""
        self.raw(method_frame(channel, name, **arguments), channel)

    def publish(self, body: bytes = b"x", channel: int = 1, **arguments: Any) -> None:
        """A whole message."""
        self.raw(publish_bytes(channel, body, **arguments), channel)

    def raw(self, data: bytes, channel: int = 1) -> None:
        """Bytes as they are, and then what comes (D2)."""
        self._step(data + method_frame(channel, "basic.qos", prefetch_count=0), channel, "basic.qos-ok", quiet=True)

    def bytes(self, data: bytes) -> None:
        """Bytes as they are, and what comes until the stream ends or nothing comes any more."""
        if self._gone():
            return
        with contextlib.suppress(OSError):
            self.connection.send(data)
        self._drain(QUIET_S * 3)

    def get(self, queue: str, channel: int = 1, *, count: int = 1, no_ack: bool = True) -> None:
        """basic.get, again while the queue is empty, so that what is on its way has come; `count` times."""
        for _ in range(count):
            end = time.monotonic() + 3
            while True:
                before = len(self.lines)
                found = self.do("basic.get", channel, queue=queue, no_ack=no_ack)
                if found is None or found.name != "basic.get-empty" or time.monotonic() > end:
                    break
                del self.lines[before:]
                time.sleep(0.01)

    def deliveries(self, count: int, channel: int = 1) -> None:
        """The next `count` methods of a channel."""
        if self._gone():
            return
        for _ in range(count):
            with contextlib.suppress(TimeoutError):
                self._note(self.connection.recv(channel, WAIT_S))

    def quiet(self) -> None:
        """Whatever else comes for a while."""
        if not self._gone():
            self._drain(QUIET_S)

    def until_closed(self, seconds: float) -> None:
        """Whatever comes until the broker closes a channel or the connection, so long at most."""
        if self._gone():
            return
        end = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                method = self.connection.recv_any(max(0.0, end - time.monotonic()))
                self._note(method)
                if method.name in _ENDS:
                    return  # RabbitMQ repeats it until it is answered

    def pause(self, seconds: float) -> None:
        """For time-outs of the broker."""
        time.sleep(seconds)

    def another(self, *, user: str = "", password: str = "", vhost: str = "") -> Client:
        """A second connection, as another user or to another virtual host; its transcript is this one's."""
        login = (user, password) if user else self._user
        other = Client(self.port, user=login[0], password=login[1], vhost=vhost or self._vhost, http_port=self.http_port)
        other.lines = self.lines
        other._names = self._names
        return other

    def attempt(self, **options: str) -> Client | None:
        """Another connection, which may be refused."""
        try:
            other = self.another(**options)
        except (AssertionError, ConnectionLost, OSError) as error:
            self.lines.append(f"(no connection: {self._stable(str(error))})")
            return None
        self.lines.append("(a connection)")
        return other

    def api(self, method: str, path: str, value: Any = None) -> None:
        """A request to the API; its status is a line. Without an API there is no answer."""
        status = 0
        if self.http_port:
            api = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
            login = base64.b64encode(b"guest:guest").decode()
            api.request(method, f"/api/{path}", json.dumps(value), {"Authorization": f"Basic {login}", "Content-Type": "application/json"})
            status = api.getresponse().status
            api.close()
        self.lines.append(f"{method} {path.partition('/')[0]} {status}")

    def drop(self) -> None:
        """Closes the socket."""
        self.connection.drop()

    # --- what came ----------------------------------------------------------------------------------------------------------

    def _gone(self) -> bool:
        if self.over:
            self.lines.append("(over)")
        return self.over

    def _step(self, data: bytes, channel: int, answer: str, *, quiet: bool = False) -> Method | None:
        if self._gone():
            return None
        answers = ("basic.get-ok", "basic.get-empty") if answer == "basic.get-ok" else (answer,)
        try:
            self.connection.send(data)
            end = time.monotonic() + WAIT_S
            while True:
                method = self.connection.recv_any(max(0.0, end - time.monotonic()))
                if quiet and method.name in answers:
                    return None
                self._note(method)
                if method.name in answers:
                    if answer == "connection.close-ok":
                        self._drain(QUIET_S)
                    return method
                if method.name == "channel.close":
                    # Opened anew: the rest of the scenario goes on.
                    self.connection.send(method_frame(method.channel, "channel.close-ok"))
                    self.connection.send(method_frame(method.channel, "channel.open"))
                    while self.connection.recv_any(WAIT_S).name != "channel.open-ok":
                        pass
                    return None
                if method.name == "connection.close":
                    with contextlib.suppress(OSError):
                        self.connection.send(method_frame(0, "connection.close-ok"))
                    self._end()
                    return None
        except (ConnectionLost, OSError) as error:
            self.lines.append("(nothing)" if isinstance(error, TimeoutError) else "(the stream ends)")
            if not isinstance(error, TimeoutError):
                self.over = True
            return None

    def _drain(self, seconds: float) -> None:
        try:
            while True:
                method = self.connection.recv_any(seconds)
                self._note(method)
                if method.name == "connection.close":
                    with contextlib.suppress(OSError):
                        self.connection.send(method_frame(0, "connection.close-ok"))
                    self._end()
                    return
        except TimeoutError:
            return
        except (ConnectionLost, OSError):
            self.lines.append("(the stream ends)")
            self.over = True

    def _end(self) -> None:
        self.over = True
        with contextlib.suppress(TimeoutError, ConnectionLost, OSError):
            self.connection.recv_until_closed(WAIT_S)

    def _note(self, method: Method) -> None:
        if method.properties or method.name in ("basic.deliver", "basic.get-ok", "basic.return"):
            self.last = method
        elif method.name == "basic.get-empty":
            self.last = None
        fields = {name: self._stable(value) for name, value in method.fields.items()}
        line = f"{method.channel} {method.name} " + " ".join(f"{name}={value!r}" for name, value in fields.items())
        if method.name in ("basic.deliver", "basic.get-ok", "basic.return"):
            properties = {name: self._stable(value) for name, value in method.properties.items()}
            line += f" {properties} {bytes(method.body[:40])!r}{len(method.body)}"
        self.lines.append(line)

    def _stable(self, value: Any) -> Any:
        if isinstance(value, str):
            value = PEERS.sub("(peers)", HINT.sub("", value))
            for prefix in ("amq.gen-", "amq.ctag-", "amq.rabbitmq.reply-to.g", "amq.rabbitmq.reply-to."):
                at = value.find(prefix)
                if at >= 0 and len(value) > at + len(prefix):
                    end = at
                    while end < len(value) and value[end] not in "' ":
                        end += 1
                    return value[:at] + prefix.removesuffix("g") + "*" + self._stable(value[end:])
            return value
        if isinstance(value, dict):
            return {name: "(node)" if name == "node" else self._stable(value[name]) for name in sorted(value)}  # a table has no order
        if isinstance(value, tuple | list):
            return type(value)(self._stable(one) for one in value)
        return value
