"""AMQP over WebSocket: an unmodified client behind a WebSocket works, and what is no WebSocket of ours ends without harm."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.net.websocket import WebSocketError, WebSocketLayer
from tests.support.rawamqp import HEADER
from tests.support.relay import Relay

# RFC 6455, 1.3
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def request(change: Callable[[str], str] = lambda text: text, **fields: str) -> bytes:
    named = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt, amqp",
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    text = "GET /amqp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items() if value) + "\r\n"
    return change(text).encode()


def masked(body: bytes, opcode: int = 2, final: bool = True, mask: bytes | None = None) -> bytes:
    mask = os.urandom(4) if mask is None else mask
    size = len(body)
    if size < 126:
        head = bytes((0x80 * final | opcode, 0x80 | size))
    elif size < 65536:
        head = bytes((0x80 * final | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 * final | opcode, 0xFF)) + size.to_bytes(8, "big")
    return head + mask + bytes(one ^ mask[index % 4] for index, one in enumerate(body))


class Reader:
    """What a client makes of the broker's frames."""

    def __init__(self) -> None:
        self.data = b""
        self.controls: list[tuple[int, bytes]] = []

    def __call__(self, data: bytes) -> bytes:
        self.data += data
        clear = b""
        while len(self.data) >= 2:
            first, size = self.data[0], self.data[1]
            assert not first & 0x70 and not size & 0x80
            at = 2 + {126: 2, 127: 8}.get(size, 0)
            if len(self.data) < at:
                break
            length = int.from_bytes(self.data[2:at], "big") if at > 2 else size
            if len(self.data) < at + length:
                break
            body, self.data = self.data[at : at + length], self.data[at + length :]
            if first & 0x0F == 2:
                clear += body
            else:
                self.controls.append((first & 0x0F, body))
        return clear


def greet(sock: Any, **fields: str) -> bytes:
    sock.sendall(request(**fields))
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(4096) or b"\r\n\r\n"
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head
    assert f"sec-websocket-accept: {ACCEPT}".encode() in head and b"sec-websocket-protocol: amqp" in head
    return rest


def open_layer(**arguments: Any) -> WebSocketLayer:
    layer = WebSocketLayer(8192, **arguments)
    assert layer.receive(request()) == b""
    assert layer.pending().startswith(b"HTTP/1.1 101 ") and layer.established
    return layer


def work(connection: pika.BlockingConnection) -> None:
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    for size in (0, 1, 125, 126, 65_535, 65_536, 700_000):
        body = os.urandom(size)
        channel.basic_publish("", "q", body)
        assert channel.basic_get("q", auto_ack=True)[2] == body
    connection.close()


def test_a_client_over_a_websocket(start: Callable[..., Any]) -> None:
    broker = start(websocket_port=0)
    relay = Relay(("127.0.0.1", broker.node.websocket_port), masked, Reader(), greet=greet)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", relay.port, connection_attempts=1))
    (handler,) = broker.node.broker.connections.values()
    assert (handler.peer_host, handler.secure) == ("127.0.0.1", False)
    work(connection)
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()


def test_over_tls_and_behind_a_proxy(start: Callable[..., Any], tmp_path: Any) -> None:
    from flintmq.ports import PermissionRecord, UserRecord
    from tests.net.test_external import Authority, NameOID

    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("server", (NameOID.COMMON_NAME, "localhost"))
    broker = start(tls_cert=cert, tls_key=key, tls_port=0, websocket_port=0, proxy_from=("127.0.0.1",))
    broker.node.users.put(UserRecord("ann"))
    broker.node.users.set_password("ann", "pw")
    broker.node.permissions.set_permissions(PermissionRecord("ann", "/", ".*", ".*", ".*"))
    context = ssl.create_default_context(cafile=str(authority.path))

    outer = Relay(
        ("127.0.0.1", broker.node.websocket_port), lambda data: data, lambda data: data, first=b"PROXY TCP4 192.0.2.7 192.0.2.1 7 7\r\n"
    )

    class Tls:
        """The client's TLS, in two threads of a relay."""

        def __init__(self) -> None:
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

        def greet(self, sock: Any) -> bytes:
            while True:
                try:
                    self.object.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(self.outgoing.read())
                    self.incoming.write(sock.recv(65536))
            outer_self = self

            class Clear:
                def sendall(self, data: bytes) -> None:
                    sock.sendall(outer_self.there(data))

                def recv(self, size: int) -> bytes:
                    while not (clear := outer_self.clear(sock.recv(65536))):
                        pass
                    return clear

            return greet(Clear())

        def there(self, data: bytes) -> bytes:
            self.object.write(data)
            return self.outgoing.read()

        def clear(self, data: bytes) -> bytes:
            self.incoming.write(data)
            pieces = []
            while True:
                try:
                    pieces.append(self.object.read(65536))
                except ssl.SSLWantReadError:
                    return b"".join(pieces)

    import threading

    tls, reader, lock = Tls(), Reader(), threading.Lock()

    def there(data: bytes) -> bytes:
        with lock:
            return tls.there(masked(data))

    def back(data: bytes) -> bytes:
        with lock:
            return reader(tls.clear(data))

    relay = Relay(("127.0.0.1", outer.port), there, back, greet=tls.greet)
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", relay.port, credentials=pika.PlainCredentials("ann", "pw"), connection_attempts=1)
    )
    (handler,) = broker.node.broker.connections.values()
    assert (handler.peer_host, handler.secure) == ("192.0.2.7", True)
    work(connection)


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, b"POST / HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/1.0\r\n\r\n"),
        (400, b"nonsense\r\n\r\n"),
        (400, request(lambda text: text.replace("Host: ", "Host : "))),
        (400, request(lambda text: text.replace("Host: localhost", "Host"))),
        (426, request(Upgrade="")),
        (426, request(Upgrade="h2c")),
        (426, request(Connection="close")),
        (426, request(Sec_WebSocket_Version="8")),
        (400, request(Sec_WebSocket_Key="")),
        (400, request(Sec_WebSocket_Key="dGhl")),
        (400, request(Sec_WebSocket_Key="é" * 16)),
        (400, request(lambda text: text.replace("Upgrade:", f"Sec-WebSocket-Key: {KEY}\r\nUpgrade:"))),
        (400, request(Sec_WebSocket_Protocol="")),
        (400, request(Sec_WebSocket_Protocol="mqtt")),
        (403, request(Origin="http://localhost")),
        (403, request(Origin="null")),
        (431, b"GET / HTTP/1.1\r\nx: " + b"y" * 9000),
    ],
)
def test_requests_that_are_refused(status: int, data: bytes) -> None:
    layer = WebSocketLayer(8192, ("https://good.example",))
    with pytest.raises(WebSocketError):
        layer.receive(data)
    assert layer.pending().startswith(f"HTTP/1.1 {status} ".encode()) and not layer.established


def test_pages_that_an_operator_named() -> None:
    for origins, origin in ((("https://Good.example",), "https://good.example"), (("*",), "null")):
        layer = WebSocketLayer(8192, origins)
        layer.receive(request(Origin=origin))
        assert layer.established


def test_the_request_in_pieces() -> None:
    layer = WebSocketLayer(8192)
    data = request() + masked(b"AMQP")
    got = b"".join(layer.receive(data[at : at + 1]) for at in range(len(data)))
    assert got == b"AMQP"


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans(), st.booleans()), max_size=6), st.integers(1, 50))
def test_frames_cut_anywhere(messages: list[tuple[bytes, bool, bool]], step: int) -> None:
    """Messages in one frame or two, pings in between, read in pieces of any size."""
    layer = open_layer(clock=lambda: 0.0)
    data, clear = b"", b""
    for body, cut, ping in messages:
        if cut:
            data += masked(body, final=False)
            data += masked(b"?", opcode=9) if ping else b""
            data += masked(body, opcode=0)
            clear += body + body
        else:
            data += masked(body, mask=bytes(4))
            clear += body
    assert b"".join(layer.receive(data[at : at + step]) for at in range(0, len(data), step)) == clear


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (1002, b"\x82\x01a"),  # not masked
        (1002, masked(b"x", opcode=0x42)),
        (1002, masked(b"x", opcode=3)),
        (1002, masked(b"x", opcode=0)),
        (1002, masked(b"x", final=False) + masked(b"x")),
        (1002, masked(b"x" * 126, opcode=9)),
        (1002, masked(b"x", opcode=9, final=False)),
        (1002, b"\x82\xff" + b"\xff" * 8 + bytes(4)),
        (1003, masked(b"x", opcode=1)),
    ],
)
def test_frames_that_are_refused(code: int, data: bytes) -> None:
    layer = open_layer()
    with pytest.raises(WebSocketError):
        layer.receive(data)
    reader = Reader()
    reader(layer.pending())
    assert reader.controls[0][0] == 8 and reader.controls[0][1][:2] == code.to_bytes(2, "big")


@given(st.binary(max_size=300))
def test_no_bytes_make_anything_else_happen(data: bytes) -> None:
    layer = open_layer()
    with contextlib.suppress(WebSocketError):
        layer.receive(data)
    assert len(layer._data) < 14 and len(layer._control) <= 125


def test_a_frame_that_is_said_to_be_huge_takes_no_memory() -> None:
    layer = open_layer()
    assert layer.receive(b"\x82\xff" + (2**62).to_bytes(8, "big") + bytes(4) + b"AMQP") == b"AMQP"
    assert layer.receive(b"more") == b"more"


def test_pings_and_the_end() -> None:
    now = [0.0]
    layer = open_layer(clock=lambda: now[0])
    reader = Reader()
    assert layer.receive(b"".join(masked(b"%d" % number, opcode=9) for number in range(100))) == b""
    reader(layer.pending())
    assert reader.controls == [(10, b"0")]  # the others had no answer: nobody makes us write for nothing
    now[0] = 1.0
    layer.receive(masked(b"again", opcode=9) + masked(b"pong", opcode=10))
    reader(layer.pending())
    layer.receive(masked((1000).to_bytes(2, "big") + b"bye", opcode=8) + masked(b"late"))
    reader(layer.pending())
    assert reader.controls[1:] == [(10, b"again"), (8, (1000).to_bytes(2, "big"))] and layer.eof


def test_the_client_hangs_up_with_a_close_frame(start: Callable[..., Any]) -> None:
    broker = start(websocket_port=0)
    with socket.create_connection(("127.0.0.1", broker.node.websocket_port), timeout=60) as sock:
        greet(sock)
        sock.sendall(masked(HEADER) + masked(b"\x03\xe8", opcode=8))
        reader, data = Reader(), b"?"
        while data:
            data = sock.recv(65536)
            reader(data)
        assert reader.controls == [(8, b"\x03\xe8")]


def test_who_does_not_upgrade_is_told_and_cut(start: Callable[..., Any]) -> None:
    broker = start({"tls_handshake_ms_max": 100}, websocket_port=0)
    for first, expected in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 "),
        (HEADER + b"\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /", b""),
    ):
        with socket.create_connection(("127.0.0.1", broker.node.websocket_port), timeout=60) as sock:
            sock.sendall(first)
            answer = b""
            while data := sock.recv(65536):
                answer += data
            assert answer.startswith(expected) and (answer or not expected)


def test_the_key_of_the_standard() -> None:
    digest = hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
    assert base64.b64encode(digest).decode() == ACCEPT
