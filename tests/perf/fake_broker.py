"""A broker that misbehaves on purpose: enough AMQP 0-9-1 for one run of `flintmq perf`, and a fault for chosen messages.

in: a fault, called with (number of the message, queue name, message). out: the deliveries it returns, instead of the one expected.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from flintmq.perf import wire


@dataclass(frozen=True)
class Delivery:
    queue: str
    header: bytes
    body: bytes
    redelivered: bool = False


class Close(Exception):
    """Raised by a fault: the broker closes the publisher's connection."""


Fault = Callable[[int, Delivery], list[Delivery]]


def faithful(number: int, delivery: Delivery) -> list[Delivery]:
    return [delivery]


def _shortstr(data: bytes, at: int) -> tuple[str, int]:
    return data[at + 1 : at + 1 + data[at]].decode(), at + 1 + data[at]


class FakeBroker:
    """Context manager; `port` is a free loopback port. `nack`: numbers of messages that are refused instead of confirmed."""

    def __init__(self, fault: Fault = faithful, nack: frozenset[int] = frozenset()) -> None:
        self.fault = fault
        self.nack = nack
        self.lock = threading.Lock()
        self.published = 0
        self.consumers: dict[str, socket.socket] = {}
        self.tags: dict[str, int] = {}
        self.waiting: dict[str, list[Delivery]] = {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> FakeBroker:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the thread in accept; close alone would not
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)
        for each in self.sockets:
            each.close()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.sockets.append(peer)
                self._spawn(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            stream = peer.makefile("rb")
            stream.read(8)
            peer.sendall(
                wire.method(0, wire.CONNECTION_START, b"\x00\x09" + wire.table({}) + wire.longstr(b"PLAIN") + wire.longstr(b"en_US"))
            )
            confirms = 0
            selected = False
            target = ""
            header = b""
            while True:
                head = stream.read(7)
                if len(head) < 7:
                    return
                kind, _, size = struct.unpack(">BHI", head)
                payload = stream.read(size + 1)[:-1]
                if kind == wire.FRAME_HEADER:
                    header = payload
                elif kind == wire.FRAME_BODY:
                    confirms += 1
                    refused = self._publish(peer, Delivery(target, header, payload))
                    if selected:
                        method = struct.pack(">I", 60 << 16 | (120 if refused else 80))
                        peer.sendall(wire.frame(wire.FRAME_METHOD, 1, method + struct.pack(">QB", confirms, 0)))
                else:
                    (method_id,) = struct.unpack_from(">I", payload)
                    if method_id == wire.BASIC_PUBLISH:
                        _, at = _shortstr(payload, 6)
                        target, _ = _shortstr(payload, at)
                    elif method_id == wire.BASIC_CONSUME:
                        queue, _ = _shortstr(payload, 6)
                        peer.sendall(wire.method(1, wire.BASIC_CONSUME_OK, wire.shortstr("c")))
                        with self.lock:
                            self.consumers[queue] = peer
                            for consumer, data in self._pieces(self.waiting.pop(queue, [])).items():
                                consumer.sendall(data)
                    else:
                        selected = selected or method_id == wire.CONFIRM_SELECT
                        peer.sendall(self._answer(method_id))

    def _answer(self, method_id: int) -> bytes:
        if method_id == wire.CONNECTION_START_OK:
            return wire.method(0, wire.CONNECTION_TUNE, struct.pack(">HIH", 2047, 131072, 60))
        answers = {
            wire.CONNECTION_OPEN: (0, wire.CONNECTION_OPEN_OK, b"\x00"),
            wire.CONNECTION_CLOSE: (0, wire.CONNECTION_CLOSE_OK, b""),
            wire.CHANNEL_OPEN: (1, wire.CHANNEL_OPEN_OK, b"\x00\x00\x00\x00"),
            wire.QUEUE_DECLARE: (1, wire.QUEUE_DECLARE_OK, wire.shortstr("q") + struct.pack(">II", 0, 0)),
            wire.QUEUE_DELETE: (1, wire.QUEUE_DELETE_OK, b"\x00\x00\x00\x00"),
            wire.CONFIRM_SELECT: (1, wire.CONFIRM_SELECT_OK, b""),
            wire.BASIC_QOS: (1, wire.BASIC_QOS_OK, b""),
        }
        return wire.method(*answers[method_id]) if method_id in answers else b""

    def _publish(self, publisher: socket.socket, delivery: Delivery) -> bool:
        with self.lock:
            number = self.published
            self.published += 1
            try:
                # In one piece: who has the first of them and looks has the others, too.
                for consumer, data in self._pieces(self.fault(number, delivery)).items():
                    consumer.sendall(data)
            except Close:
                publisher.sendall(wire.method(0, wire.CONNECTION_CLOSE, struct.pack(">H", 320) + wire.shortstr("on purpose") + b"\0\0\0\0"))
            return number in self.nack

    def _pieces(self, deliveries: list[Delivery]) -> dict[socket.socket, bytes]:
        """What each consumer gets of them; one whose queue has no consumer yet waits for it."""
        pieces: dict[socket.socket, bytes] = {}
        for delivery in deliveries:
            consumer = self.consumers.get(delivery.queue)
            if consumer is None:
                self.waiting.setdefault(delivery.queue, []).append(delivery)
                continue
            self.tags[delivery.queue] = self.tags.get(delivery.queue, 0) + 1
            arguments = wire.shortstr("c") + struct.pack(">QB", self.tags[delivery.queue], delivery.redelivered)
            arguments += wire.shortstr("") + wire.shortstr(delivery.queue)
            pieces[consumer] = (
                pieces.get(consumer, b"")
                + wire.method(1, 60 << 16 | 60, arguments)
                + wire.frame(wire.FRAME_HEADER, 1, delivery.header)
                + wire.frame(wire.FRAME_BODY, 1, delivery.body)
            )
        return pieces


__all__ = ["Close", "Delivery", "FakeBroker", "faithful", "replace"]
