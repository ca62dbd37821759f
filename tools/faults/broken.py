"""A tiny AMQP broker inside the test process that keeps its promises, or breaks exactly one of them: what the checker is tested with.

in: a defect's name (or none) and a seed. out: a port; `crash()` forgets all that was not "on disk" and drops every connection.

The disk is a dict of entries per queue that only `_flush` writes, once per batch of methods read from a socket, before confirms and
commit-ok go out (the right order). Plain acks reach it with the next flush but one, so that a crash brings acked messages back, flagged.
B1  Without a defect the checker must stay quiet; with one it must name it (DEFECTS maps each to the verdicts that may be given).
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.rawcodec import (
    BODY,
    CONTENT_HEADER,
    HEADER,
    METHOD,
    Method,
    frame,
    header_frame,
    method_frame,
    parse_header,
    parse_method,
)

DEFECTS: dict[str, set[str]] = {
    "confirms-without-storing": {"lost"},
    "confirms-early-then-dies": {"lost"},
    "drops-redelivered-flag": {"unflagged"},
    "swaps-two": {"reorder"},
    "duplicates": {"unflagged", "duplicate", "resurrected"},
    "corrupts-body": {"corrupt"},
    "loses-tx-half": {"torn"},
    "resurrects-tx-ack": {"resurrected"},
    "phantom": {"phantom"},
    "reorders-after-restart": {"reorder"},
    "loses-on-requeue": {"lost"},
    "confirms-past-unstored": {"lost"},
    # beyond the twelve
    "tears-unknown-tx": {"torn"},
    "recovers-unflagged": {"unflagged"},
    "forgets-queue-end": {"undrained", "stalled"},
    "forgets-binding": {"lost", "definition"},
}
THE_TWELVE = tuple(DEFECTS)[:12]


@dataclass(slots=True)
class _Entry:
    position: int
    properties: dict[str, Any]
    body: bytes
    redelivered: bool = False


@dataclass(slots=True)
class _Channel:
    confirm: bool = False
    tx: bool = False
    published: int = 0
    delivered: int = 0
    prefetch: int = 0
    confirms: list[int] = field(default_factory=list)
    unacked: dict[int, tuple[str, _Entry]] = field(default_factory=dict)
    buffered: list[tuple[list[str], dict[str, Any], bytes]] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    consumers: dict[str, str] = field(default_factory=dict)  # tag -> queue


class FakeBroker:
    """See the module. `rate`: probability that a chance to do wrong is taken."""

    def __init__(self, defect: str = "", seed: int = 1, rate: float = 0.03) -> None:
        assert not defect or defect in DEFECTS, defect
        self.defect, self.rng, self.rate = defect, random.Random(seed), rate
        self.lock = threading.RLock()
        self.queues: dict[str, list[_Entry]] = {}
        self.disk: dict[str, dict[int, _Entry]] = {}
        self.late: list[tuple[str, int]] = []  # plain acks that are not on disk yet
        self.unsynced: list[tuple[str, _Entry]] = []  # of the early confirmer
        self.bindings: dict[str, list[str]] = {}
        self.next_position = 0
        self.life = 0
        self.connections: list[_Connection] = []
        self.listener: socket.socket | None = None
        self.port = 0
        self.broken = 0  # times the defect struck

    # --- life -------------------------------------------------------------------------------------------------------
    def start(self) -> int:
        """Listens on a free port, which is returned; recovers what the disk holds."""
        with self.lock:
            self.life += 1
            for name, stored in self.disk.items():
                entries = [stored[position] for position in sorted(stored)]
                flag = self.defect != "recovers-unflagged"
                if not flag:
                    self.broken += bool(entries)
                if self.defect == "reorders-after-restart" and len(entries) > 1:
                    self.rng.shuffle(entries)
                    self.broken += 1
                self.queues[name] = [replace(entry, redelivered=flag) for entry in entries]
            listener = self.listener = socket.create_server(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self.port

    def crash(self) -> None:
        """As kill -9: connections end, memory is forgotten."""
        with self.lock:
            if self.listener is not None:
                with contextlib.suppress(OSError):
                    self.listener.shutdown(socket.SHUT_RDWR)  # close alone would leave a waiting accept alive
                self.listener.close()
            gone = self.connections
            self.connections = []
            self.life += 1
            self.late.clear()
            self.unsynced.clear()
            self.queues = {name: [] for name in self.disk}
            for connection in gone:
                connection.dead = True
                connection.drop()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(self, peer)
                with self.lock:
                    if listener is not self.listener or listener.fileno() < 0:
                        connection.drop()
                        return
                    self.connections.append(connection)
                threading.Thread(target=connection.run, daemon=True).start()

    def strikes(self, name: str) -> bool:
        """Whether the defect `name` is ours and does its wrong now."""
        struck = self.defect == name and self.rng.random() < self.rate
        self.broken += struck
        return struck

    # --- queues (lock held) -----------------------------------------------------------------------------------------
    def targets(self, exchange: str, key: str) -> list[str]:
        """Queues of a publish."""
        if exchange:
            names = list(self.bindings.get(exchange, ()))
            if self.defect == "forgets-binding" and self.life > 2 and names:
                names.pop()
                self.broken += 1
            return names
        return [key] if key in self.queues else []

    def enqueue(self, queues: list[str], properties: dict[str, Any], body: bytes, *, store: bool = True) -> None:
        """Puts a message at the end of the queues and, unless a defect forbids, on disk."""
        for name in queues:
            self.next_position += 1
            if self.strikes("corrupts-body") and body:
                body = body[:-1] + bytes([body[-1] ^ 1])
            entry = _Entry(self.next_position, properties, body)
            self.queues[name].append(entry)
            if self.strikes("swaps-two") and len(self.queues[name]) > 1:
                self.queues[name][-2:] = reversed(self.queues[name][-2:])
            if self.strikes("duplicates"):
                self.queues[name].append(entry)
            if store:
                if self.defect == "confirms-early-then-dies":
                    self.unsynced.append((name, entry))
                    self.broken += 1
                    if len(self.unsynced) > 100:
                        late, old = self.unsynced.pop(0)
                        self.disk[late][old.position] = old
                else:
                    self.disk[name][entry.position] = entry

    def settle(self, name: str, entry: _Entry, *, now: bool) -> None:
        """Takes an entry off the disk, now or (a plain ack) a little later."""
        self.late.append((name, entry.position))
        while self.late and (now or len(self.late) > 20):
            queue, position = self.late.pop(0)
            self.disk[queue].pop(position, None)
        self.unsynced = [pair for pair in self.unsynced if pair[1] is not entry]

    def requeue(self, name: str, entry: _Entry) -> None:
        """Puts an entry back where it was."""
        if self.strikes("loses-on-requeue"):
            self.disk[name].pop(entry.position, None)
            return
        entries = self.queues[name]
        at = next((i for i, other in enumerate(entries) if other.position > entry.position), len(entries))
        entries.insert(at, replace(entry, redelivered=True))

    def pump(self) -> None:
        """Delivers to whoever has room, in turn."""
        moved = True
        while moved:
            moved = False
            for connection in list(self.connections):
                for channel in connection.channels.values():
                    for tag, name in channel.consumers.items():
                        entries = self.queues.get(name)
                        if not entries or connection.dead or (channel.prefetch and len(channel.unacked) >= channel.prefetch):
                            continue
                        if self.defect == "forgets-queue-end" and len(entries) == 1:
                            self.broken += 1
                            continue
                        entry = entries.pop(0)
                        channel.delivered += 1
                        channel.unacked[channel.delivered] = (name, entry)
                        flag = entry.redelivered and self.defect != "drops-redelivered-flag"
                        self.broken += entry.redelivered and not flag
                        connection.deliver(tag, channel.delivered, flag, entry.properties, entry.body)
                        moved = True


class _Connection:
    """One client. All methods but `run` and the writer are called with the broker's lock held."""

    def __init__(self, broker: FakeBroker, peer: socket.socket) -> None:
        self.broker, self.peer = broker, peer
        self.channels: dict[int, _Channel] = {}
        self.dead = False
        self.partial: tuple[Method, int, dict[str, Any], bytes] | None = None
        self.output = bytearray()
        self.writable = threading.Condition()
        threading.Thread(target=self._write, daemon=True).start()

    def drop(self) -> None:
        """Ends the socket; the writer ends with it."""
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)
        with self.writable:
            self.dead = True
            self.writable.notify()

    def _write(self) -> None:
        while True:
            with self.writable:
                while not self.output and not self.dead:
                    self.writable.wait()
                if self.dead:
                    break
                data, self.output = self.output, bytearray()
            try:
                self.peer.sendall(data)
            except OSError:
                break

    def send(self, data: bytes) -> None:
        """Queues bytes for the writer thread: nothing here ever waits for a client."""
        with self.writable:
            self.output += data
            self.writable.notify()

    def deliver(self, tag: str, number: int, flag: bool, properties: dict[str, Any], body: bytes) -> None:
        """One basic.deliver with its content."""
        out = method_frame(1, "basic.deliver", consumer_tag=tag, delivery_tag=number, redelivered=flag, exchange="", routing_key="")
        out += header_frame(1, len(body), **properties)
        for start in range(0, len(body), 100_000):
            out += frame(BODY, 1, body[start : start + 100_000])
        self.send(out)

    def run(self) -> None:
        """Reads until the end; every read is one batch: methods, flush, answers."""
        data = bytearray()
        try:
            while len(data) < 8:
                data += self._receive()
            assert data[:8] == HEADER
            del data[:8]
            self.send(method_frame(0, "connection.start", version_minor=9, mechanisms=b"PLAIN", locales=b"en_US"))
            while True:
                with self.broker.lock:
                    if self.dead:
                        break
                    while len(data) >= 7:
                        kind, number, size = struct.unpack_from(">BHI", data)
                        if len(data) < size + 8:
                            break
                        payload = bytes(data[7 : 7 + size])
                        del data[: size + 8]
                        self._frame(kind, number, payload)
                    for each in self.channels.values():
                        self._confirm(each)
                    self.broker.pump()
                data += self._receive()
        except (OSError, EOFError):
            pass
        finally:
            with self.broker.lock:
                if self in self.broker.connections:
                    self._gone()
            self.drop()
            self.peer.close()

    def _receive(self) -> bytes:
        data = self.peer.recv(65536)
        if not data:
            raise EOFError
        return data

    def _gone(self) -> None:
        """Gives everything unacked back."""
        if self not in self.broker.connections:
            return
        self.broker.connections.remove(self)
        for channel in self.channels.values():
            for name, entry in channel.unacked.values():
                self.broker.requeue(name, entry)
        self.channels.clear()
        self.broker.pump()

    # --- methods ----------------------------------------------------------------------------------------------------
    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == METHOD:
            method = parse_method(number, payload)
            if method.name == "basic.publish":
                self.partial = (method, -1, {}, b"")
            else:
                self._method(number, method)
            return
        if kind == CONTENT_HEADER:
            assert self.partial is not None
            size, properties = parse_header(payload)
            self.partial = (self.partial[0], size, properties, b"")
        elif kind == BODY:
            assert self.partial is not None
            method, size, properties, body = self.partial
            self.partial = (method, size, properties, body + payload)
        if self.partial is not None and len(self.partial[3]) == self.partial[1]:
            method, _, properties, body = self.partial
            self.partial = None
            self._publish(self.channels[number], method, properties, body)

    def _method(self, number: int, method: Method) -> None:
        broker, name = self.broker, method.name
        answers: dict[str, dict[str, Any]] = {}
        channel = self.channels.get(number, _Channel())
        if name == "connection.start-ok":
            self.send(method_frame(0, "connection.tune", channel_max=16, frame_max=131072, heartbeat=0))
        elif name == "connection.close":
            self._gone()
        elif name == "channel.open":
            self.channels[number] = channel
        elif name == "confirm.select":
            channel.confirm = True
        elif name == "tx.select":
            channel.tx = True
        elif name == "tx.commit":
            if not self._commit(channel):
                return
        elif name == "tx.rollback":
            if channel.buffered and broker.strikes("phantom"):
                for queues, properties, body in channel.buffered:
                    broker.enqueue(queues, properties, body)
            channel.buffered.clear()
            channel.acks.clear()
        elif name == "queue.declare":
            entries = broker.queues.setdefault(method.queue, [])
            broker.disk.setdefault(method.queue, {})
            answers = {"queue.declare": {"queue": method.queue, "message_count": len(entries)}}
        elif name == "exchange.declare":
            broker.bindings.setdefault(method.exchange, [])
        elif name == "queue.bind":
            broker.bindings[method.exchange].append(method.queue)
        elif name == "basic.qos":
            channel.prefetch = method.prefetch_count
        elif name == "basic.consume":
            channel.consumers[method.consumer_tag] = method.queue
            answers = {name: {"consumer_tag": method.consumer_tag}}
        elif name == "basic.cancel":
            channel.consumers.pop(method.consumer_tag, None)
            answers = {name: {"consumer_tag": method.consumer_tag}}
        elif name == "basic.ack":
            for tag in [t for t in channel.unacked if t == method.delivery_tag or (method.multiple and t <= method.delivery_tag)]:
                if channel.tx:
                    channel.acks.append(tag)
                else:
                    queue, entry = channel.unacked.pop(tag)
                    broker.settle(queue, entry, now=False)
        elif name == "basic.nack":
            queue, entry = channel.unacked.pop(method.delivery_tag)
            broker.requeue(queue, entry)
        if name not in ("connection.start-ok", "connection.tune-ok", "basic.ack", "basic.nack"):
            self.send(method_frame(number, name + "-ok", **answers.get(name, {})))

    def _publish(self, channel: _Channel, method: Method, properties: dict[str, Any], body: bytes) -> None:
        broker = self.broker
        queues = broker.targets(method.exchange, method.routing_key)
        if channel.tx:
            channel.buffered.append((queues, properties, body))
            return
        channel.published += 1
        if not broker.strikes("confirms-without-storing"):
            skip = broker.strikes("confirms-past-unstored")
            if not skip:
                broker.enqueue(queues, properties, body)
        if channel.confirm:
            channel.confirms.append(channel.published)

    def _confirm(self, channel: _Channel) -> None:
        if not channel.confirms:
            return
        self.send(method_frame(1, "basic.ack", delivery_tag=channel.confirms[-1], multiple=len(channel.confirms) > 1))
        channel.confirms.clear()

    def _commit(self, channel: _Channel) -> bool:
        """Applies the transaction. False: the connection "dies" before the answer."""
        broker = self.broker
        tear = len(channel.buffered) > 1 and broker.strikes("tears-unknown-tx")
        for number, (queues, properties, body) in enumerate(channel.buffered):
            if tear and number:
                break
            lose = number > 0 and broker.strikes("loses-tx-half")
            if not lose:
                broker.enqueue(queues, properties, body)
        for tag in () if tear else channel.acks:
            if tag in channel.unacked:
                queue, entry = channel.unacked.pop(tag)
                if not broker.strikes("resurrects-tx-ack"):
                    broker.settle(queue, entry, now=True)
        channel.buffered.clear()
        channel.acks.clear()
        if tear:
            self.drop()
        return not tear
