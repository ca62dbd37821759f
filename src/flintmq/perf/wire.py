"""The client side of AMQP 0-9-1, as much as a load generator needs: encoding of methods and a small blocking client for set-up.

in: names and numbers. out: wire bytes; a connected socket that the compiled workers take over.

Written apart from flintmq.protocol on purpose: a mistake there would not be seen by a generator that shares it.
Source: AMQP 0-9-1 specification 2.3 (framing), 4.2.5 (values) and the class and method numbers of its XML.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from flintmq.endpoint import endpoint

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_METHOD, FRAME_HEADER, FRAME_BODY = 1, 2, 3
FRAME_END = b"\xce"
# bytes; what the generator offers in tune-ok (RabbitMQ's own limit)
FRAME_MAX = 131_072
# seconds for one answer during set-up
ANSWER_S_MAX = 30.0


def _id(class_id: int, method_id: int) -> int:
    return class_id << 16 | method_id


CONNECTION_START, CONNECTION_START_OK = _id(10, 10), _id(10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = _id(10, 30), _id(10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = _id(10, 40), _id(10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = _id(10, 50), _id(10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = _id(20, 10), _id(20, 11), _id(20, 40)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (_id(40, n) for n in (10, 11, 20, 21))
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_BIND, QUEUE_BIND_OK = (_id(50, n) for n in (10, 11, 20, 21))
QUEUE_DELETE, QUEUE_DELETE_OK = _id(50, 40), _id(50, 41)
BASIC_QOS, BASIC_QOS_OK, BASIC_CONSUME, BASIC_CONSUME_OK = (_id(60, n) for n in (10, 11, 20, 21))
BASIC_PUBLISH, BASIC_GET, BASIC_GET_OK, BASIC_GET_EMPTY = (_id(60, n) for n in (40, 70, 71, 72))
BASIC_DELIVER, BASIC_ACK = _id(60, 60), _id(60, 80)
CONFIRM_SELECT, CONFIRM_SELECT_OK = _id(85, 10), _id(85, 11)


class BrokerError(Exception):
    """The broker refused, closed or was not reachable. The text is for people."""


# --- encoding ---------------------------------------------------------------------------------------------------------
def shortstr(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"a short string holds 255 bytes, not {len(raw)}")
    return bytes([len(raw)]) + raw


def longstr(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def table(values: Mapping[str, object]) -> bytes:
    """A field table of booleans, integers (64 bit), strings and tables."""
    fields = bytearray()
    for name, value in values.items():
        fields += shortstr(name)
        if isinstance(value, bool):
            fields += b"t" + bytes([value])
        elif isinstance(value, int):
            fields += b"l" + struct.pack(">q", value)
        elif isinstance(value, str):
            fields += b"S" + longstr(value.encode())
        elif isinstance(value, Mapping):
            fields += b"F" + table(value)
        else:
            raise TypeError(f"no table field type for {type(value).__name__}")
    return longstr(bytes(fields))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(FRAME_METHOD, channel, struct.pack(">I", method_id) + arguments)


def start_ok(user: str, password: str) -> bytes:
    properties: dict[str, object] = {
        "product": "flintmq perf",
        "capabilities": {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True, "connection.blocked": True},
    }
    login = b"\x00" + user.encode() + b"\x00" + password.encode()
    return method(0, CONNECTION_START_OK, table(properties) + shortstr("PLAIN") + longstr(login) + shortstr("en_US"))


def tune_ok(channel_max: int, frame_max: int) -> bytes:
    """Without heartbeats: a busy generator must not be cut off for missing one."""
    return method(0, CONNECTION_TUNE_OK, struct.pack(">HIH", channel_max, frame_max, 0))


def connection_open(vhost: str) -> bytes:
    return method(0, CONNECTION_OPEN, shortstr(vhost) + b"\x00\x00")


def channel_open() -> bytes:
    return method(1, CHANNEL_OPEN, b"\x00")


def connection_close() -> bytes:
    return method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + shortstr("done") + b"\x00\x00\x00\x00")


def queue_declare(
    name: str, *, durable: bool = False, passive: bool = False, exclusive: bool = False, arguments: Mapping[str, object] | None = None
) -> bytes:
    flags = passive | durable << 1 | exclusive << 2
    return method(1, QUEUE_DECLARE, b"\x00\x00" + shortstr(name) + bytes([flags]) + table(arguments or {}))


def queue_delete(name: str) -> bytes:
    return method(1, QUEUE_DELETE, b"\x00\x00" + shortstr(name) + b"\x00")


def publish_method(exchange: str, routing_key: str, *, mandatory: bool = False) -> bytes:
    return method(1, BASIC_PUBLISH, b"\x00\x00" + shortstr(exchange) + shortstr(routing_key) + bytes([mandatory]))


def content(body: bytes, *, frame_max: int, persistent: bool = False, headers: Mapping[str, object] | None = None) -> bytes:
    """Header and body frames. The last body frame of a split body holds at least 8 bytes, so that its tail is in one piece."""
    flags = 0x2000 * bool(headers) | 0x1000
    properties = (table(headers) if headers else b"") + bytes([2 if persistent else 1])
    frames = [frame(FRAME_HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), flags) + properties)]
    room = frame_max - 8
    if 0 < len(body) % room < 8 and len(body) > room:
        room -= 8
    frames += [frame(FRAME_BODY, 1, body[start : start + room]) for start in range(0, len(body), room)]
    return b"".join(frames)


def basic_get(queue: str) -> bytes:
    return method(1, BASIC_GET, b"\x00\x00" + shortstr(queue) + b"\x01")


# --- a blocking client for set-up -------------------------------------------------------------------------------------
class Client:
    """One connection with channel 1 open. Everything waits for its answer; `release` hands the socket to a worker.

    Raises (every call): BrokerError.
    """

    def __init__(self, host: str, port: int, user: str, password: str, vhost: str) -> None:
        self._input = bytearray()
        try:
            self.socket = socket.create_connection((host, port), ANSWER_S_MAX)
        except OSError as error:
            raise BrokerError(f"can't connect to {endpoint(host, port)}: {error.strerror or error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.send(PROTOCOL_HEADER)
            self.server_properties = self.wait_for(CONNECTION_START)
            tune = self.call(start_ok(user, password), CONNECTION_TUNE)
            self.channel_max, frame_max = struct.unpack_from(">HI", tune)
            self.frame_max: int = min(frame_max or FRAME_MAX, FRAME_MAX)
            self.call(tune_ok(self.channel_max, self.frame_max) + connection_open(vhost), CONNECTION_OPEN_OK)
            self.call(channel_open(), CHANNEL_OPEN_OK)
        except BrokerError:
            self.socket.close()
            raise

    def send(self, data: bytes) -> None:
        """Sends and waits for nothing. Raises: BrokerError."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise BrokerError(f"connection lost: {error.strerror or error}") from error

    def _frame(self) -> tuple[int, bytes]:
        """The next frame: kind and payload."""
        while True:
            if len(self._input) >= 7:
                kind, _, size = struct.unpack_from(">BHI", self._input)
                if len(self._input) >= size + 8:
                    if self._input[size + 7] != 0xCE:
                        raise BrokerError("the broker sent a frame without its end octet")
                    payload = bytes(self._input[7 : size + 7])
                    del self._input[: size + 8]
                    return kind, payload
            try:
                data = self.socket.recv(65_536)
            except TimeoutError as error:
                raise BrokerError(f"no answer within {ANSWER_S_MAX:.0f} s") from error
            except OSError as error:
                raise BrokerError(f"connection lost: {error.strerror or error}") from error
            if not data:
                raise BrokerError("the broker closed the connection (wrong user, password or vhost?)")
            self._input += data

    def wait_for(self, wanted: int) -> bytes:
        """Reads up to the method `wanted`; returns its arguments. Raises: BrokerError, also when the broker closes."""
        while True:
            kind, payload = self._frame()
            if kind != FRAME_METHOD:
                continue
            (got,) = struct.unpack_from(">I", payload)
            if got == wanted:
                return payload[4:]
            if got in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                code, size = struct.unpack_from(">HB", payload, 4)
                raise BrokerError(f"closed by the broker: {code} {payload[7 : 7 + size].decode(errors='replace')}")

    def body(self) -> bytes:
        """The body of the content that is due next (after a get-ok or a deliver). Raises: BrokerError."""
        kind, payload = self._frame()
        if kind != FRAME_HEADER:
            raise BrokerError("the broker sent no content header where one is due")
        (size,) = struct.unpack_from(">Q", payload, 4)
        body = bytearray()
        while len(body) < size:
            kind, payload = self._frame()
            if kind != FRAME_BODY:
                raise BrokerError("the broker sent no body frame where one is due")
            body += payload
        return bytes(body)

    def call(self, data: bytes, answer: int) -> bytes:
        """Sends and waits for the method `answer`; returns its arguments."""
        self.send(data)
        return self.wait_for(answer)

    def declare_queue(
        self, name: str, *, durable: bool = False, passive: bool = False, arguments: Mapping[str, object] | None = None
    ) -> int:
        """Declares a queue; returns the number of messages in it."""
        answer = self.call(queue_declare(name, durable=durable, passive=passive, arguments=arguments), QUEUE_DECLARE_OK)
        messages: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
        return messages

    def delete_queue(self, name: str) -> None:
        self.call(queue_delete(name), QUEUE_DELETE_OK)

    def declare_exchange(self, name: str, kind: str, *, durable: bool = False) -> None:
        self.call(
            method(1, EXCHANGE_DECLARE, b"\x00\x00" + shortstr(name) + shortstr(kind) + bytes([durable << 1]) + table({})),
            EXCHANGE_DECLARE_OK,
        )

    def delete_exchange(self, name: str) -> None:
        self.call(method(1, EXCHANGE_DELETE, b"\x00\x00" + shortstr(name) + b"\x00"), EXCHANGE_DELETE_OK)

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, object] | None = None) -> None:
        self.call(
            method(
                1, QUEUE_BIND, b"\x00\x00" + shortstr(queue) + shortstr(exchange) + shortstr(routing_key) + b"\x00" + table(arguments or {})
            ),
            QUEUE_BIND_OK,
        )

    def confirm_select(self) -> None:
        self.call(method(1, CONFIRM_SELECT, b"\x00"), CONFIRM_SELECT_OK)

    def consume(self, queue: str, *, autoack: bool, prefetch: int = 0) -> None:
        if prefetch:
            self.call(method(1, BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0)), BASIC_QOS_OK)
        self.call(
            method(1, BASIC_CONSUME, b"\x00\x00" + shortstr(queue) + shortstr("c") + bytes([autoack << 1]) + table({})), BASIC_CONSUME_OK
        )

    def release(self) -> tuple[int, bytes]:
        """The socket (now non-blocking, still owned by this object) and the bytes that were read beyond the last answer."""
        rest = bytes(self._input)
        self._input.clear()
        self.socket.setblocking(False)
        return self.socket.fileno(), rest

    def take_back(self, rest: bytes) -> None:
        """Blocking again, after a worker is done; `rest` is what the worker read and did not parse."""
        self._input += rest
        self.socket.settimeout(ANSWER_S_MAX)

    def close(self) -> None:
        """Says good-bye when the broker still listens. Never raises."""
        try:
            self.socket.settimeout(5.0)
            self.call(connection_close(), CONNECTION_CLOSE_OK)
        except (BrokerError, OSError):
            pass
        self.socket.close()
