"""A broker's end of the socket pairs and a codec of a few lines: the Flight service runs against them with real sockets and real gRPC.

in: functions call name -> answer. out: a service that listens; what was asked of the "broker".
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Self

import pyarrow as pa

from flintmq.config import Limits
from flintmq.dataplane.wire import Channel, ChannelClosed, Refused, WireError
from flintmq.flight.client import DataPlane
from flintmq.flight.link import Link
from flintmq.flight.server import FlightService

ROW = struct.Struct("<QQQIHBx")
SCHEMA = pa.schema([("queue", pa.string()), ("position", pa.int64()), ("body", pa.binary())])
Answer = tuple[Any, bytes]


class Moved(Exception):
    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"{len(rows)} moved")
        self.rows = rows


class Unreadable(ValueError):
    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"{len(rows)} unreadable")
        self.rows = rows


class EncodeError(ValueError):
    pass


class Codec:
    """Bodies are made of queue and position, as many bytes as the row says. `where` 13 is a record that moved, 14 one whose content
    contradicts itself."""

    moved = Moved
    unreadable = Unreadable
    encode_error = EncodeError

    def schema(self, columns: list[str] | None) -> pa.Schema:
        if columns is None:
            return SCHEMA
        for name in columns:
            if name not in SCHEMA.names:
                raise ValueError(f"no such column: {name}")
        return pa.schema([field for field in SCHEMA if field.name in columns])

    def body_limit(self, body: str | None) -> int:
        if body not in (None, "none"):
            raise ValueError("body must be full, none or prefix:N")
        return 0

    def open(self) -> Any:
        class Reader:
            def close(self) -> None: ...

        return Reader()

    def decode(
        self, reader: Any, payload: Any, queues: list[Any], columns: list[str] | None, body: str | None, left_out: Collection[int]
    ) -> list[Any]:
        at, batches = 0, []
        wrong: list[int] = []
        for queue, rows, *_ in queues:
            positions, bodies = [], []
            for _ in range(rows):
                position, _, where, length, _, _ = ROW.unpack_from(payload, at * ROW.size)
                at += 1
                if at - 1 in left_out:
                    continue
                if where == 13:
                    raise Moved([at - 1])
                if where == 14:
                    wrong.append(at - 1)
                positions.append(position)
                bodies.append(body_of(queue, position, length))
            names = pa.array([queue] * len(positions), pa.string())
            table = pa.record_batch([names, pa.array(positions, pa.int64()), pa.array(bodies, pa.binary())], schema=SCHEMA)
            batches.append(table.select(columns) if columns else table)
        if wrong:
            raise Unreadable(wrong)
        return batches

    def options(self, arguments: dict[str, Any]) -> Any:
        if set(arguments) - {"exchange", "routing_key", "constants"}:
            raise TypeError(f"unexpected {min(arguments)}")
        return arguments

    def encode(self, batch: Any, options: Any, first_row: int) -> Iterator[tuple[list[Any], Any]]:
        bodies = batch.column("body").to_pylist()
        for row, body in enumerate(bodies):
            if body is None:
                raise EncodeError(f"row {first_row + row}, column body: null")
        yield [["", "key"]], b"".join(bodies)


def body_of(queue: str, position: int, length: int) -> bytes:
    return f"{queue}-{position}".encode().ljust(length, b".")[:length]


def table_of(rows: list[tuple[int, int]], where: int = 64) -> bytes:
    """Rows of the `rows` call: (position, body length)."""
    return b"".join(ROW.pack(position, 64, where, length, 0, 0) for position, length in rows)


class FakeBroker:
    """Answers calls from threads, one per channel. Attributes: heads: every request; answers: call -> function(head, payload)."""

    def __init__(self, channels: int = 3) -> None:
        self.users = {"ann": "secret", "guest": "guest"}
        self.heads: list[dict[str, Any]] = []
        self.payloads: list[bytes] = []
        self.answers: dict[str, Callable[[dict[str, Any], bytes], Any]] = {"auth": self._auth, "token": self._token}
        self.tokens: dict[str, str] = {}
        self._pairs = [socket.socketpair() for _ in range(channels)]
        self.servers = [Channel(ours) for ours, _ in self._pairs]
        self.children = [theirs for _, theirs in self._pairs]
        self._threads = [threading.Thread(target=self._serve, args=(channel,), daemon=True) for channel in self.servers]
        for thread in self._threads:
            thread.start()

    def _auth(self, head: dict[str, Any], payload: bytes) -> Any:
        if self.users.get(head["user"]) != head["password"]:
            raise Refused("UNAUTHENTICATED", "no")
        token = f"token-{len(self.tokens)}"
        self.tokens[token] = head["user"]
        return {"user": head["user"], "tags": [], "loopback_only": head["user"] == "guest", "token": token}

    def _token(self, head: dict[str, Any], payload: bytes) -> Any:
        if head["token"] not in self.tokens:
            raise Refused("UNAUTHENTICATED", "no")
        return {"user": self.tokens[head["token"]], "loopback_only": False}

    def _serve(self, channel: Channel) -> None:
        try:
            while True:
                head, payload = channel.receive()
                self.heads.append(head)
                try:
                    answer = self.answers[head["call"]](head, bytes(payload))
                    content = b""
                    if isinstance(answer, tuple):
                        answer, content = answer
                    channel.send({"ok": answer}, content)
                except Refused as error:
                    channel.send({"error": error.code, "text": error.text})
        except (ChannelClosed, WireError):
            return

    def calls(self, name: str) -> list[dict[str, Any]]:
        return [head for head in self.heads if head["call"] == name]

    def close(self) -> None:
        for channel in self.servers:
            channel.close()
        for thread in self._threads:
            thread.join(10)


class Plane:
    """A service on a fake broker; a context manager. Args: limits: changed ones; tls: (certificate, key) paths; port; codec: not ours."""

    def __init__(
        self,
        *,
        channels: int = 3,
        tls: tuple[str, str] | None = None,
        port: int = 0,
        vault: Any = None,
        codec: Any = None,
        broker: FakeBroker | None = None,
        **limits: Any,
    ) -> None:
        self.limits = Limits(**limits)
        self.broker = broker or FakeBroker(channels)
        self.tls = tls
        self.lost = threading.Event()
        self.link = Link([Channel(sock, self.limits) for sock in self.broker.children], self.limits, self.lost.set)
        pair = None
        if tls is not None:
            with open(tls[0], "rb") as certificate, open(tls[1], "rb") as key:
                pair = (certificate.read(), key.read())
        self.service = FlightService("127.0.0.1", port, self.link, codec or Codec(), self.limits, pair, vault)
        self.port = int(self.service.port)

    def client(self, **options: Any) -> DataPlane:
        options = {"user": "ann", "password": "secret", "timeout_s": 10.0, **options}
        return DataPlane("127.0.0.1", self.port, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.service.close()
        self.link.close()
        self.broker.close()
