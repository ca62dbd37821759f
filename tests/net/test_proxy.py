"""The PROXY protocol: a trusted proxy says who its client is, and nobody else can."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.access.users import is_loopback
from flintmq.core.checksum import crc32c_of
from flintmq.errors import OperatorError
from flintmq.net.proxy import ProxyError, ProxyLayer, is_trusted, networks, parse
from flintmq.ports import PermissionRecord, UserRecord
from tests.support.rawamqp import HEADER
from tests.support.relay import Relay

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL = ("127.0.0.0/8", "::1")


def v2(source: str = "192.0.2.7", port: int = 1234, *, command: int = 0x21, values: bytes = b"", family: int = 0, cut: int = 0) -> bytes:
    address = ipaddress.ip_address(source)
    raw = address.packed + ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1").packed + struct.pack("!HH", port, 5672)
    raw = raw[: len(raw) - cut] + values
    return SIGNATURE + struct.pack("!BBH", command, family or (0x21 if address.version == 6 else 0x11), len(raw)) + raw


GOOD = [
    (b"PROXY TCP4 192.0.2.7 127.0.0.1 1234 5672\r\n", ("192.0.2.7", 1234)),
    (b"PROXY TCP6 2001:db8::7 ::1 0 65535\r\n", ("2001:db8::7", 0)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n", None),
    (v2(), ("192.0.2.7", 1234)),
    (v2("2001:db8::7", 65535), ("2001:db8::7", 65535)),
    (v2(values=b"\x04\0\x02ab\x01\0\0"), ("192.0.2.7", 1234)),
    (v2(command=0x20), None),
    (SIGNATURE + b"\x20\0\0\0", None),
    (SIGNATURE + b"\x21\0\0\0", None),
    (SIGNATURE + b"\x21\x31" + struct.pack("!H", 216) + bytes(216), None),
]


@pytest.mark.parametrize(("header", "source"), GOOD)
def test_good_headers(header: bytes, source: tuple[str, int] | None) -> None:
    assert parse(header + b"AMQP", 4096) == (len(header), source)
    for end in range(len(header)):
        assert parse(header[:end], 4096) is None


def with_checksum(values: bytes, wrong: int = 0) -> bytes:
    header = v2(values=values + b"\x03\0\x04" + bytes(4))
    return header[:-4] + (crc32c_of(header) ^ wrong).to_bytes(4, "big")


def test_checksums() -> None:
    assert parse(with_checksum(b"\x04\0\x02ab"), 4096)
    with pytest.raises(ProxyError):
        parse(with_checksum(b"", 1), 4096)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01",
        b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n",
        b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        b"PROXY TCP4 1.2.3.4.5 1.2.3.4 1 1\r\n",
        b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n",
        b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 1\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n",
        b"PROXY " + b"U" * 200,
        v2(command=0x31),
        v2(command=0x22),
        v2(family=0x12),
        v2(family=0x13),
        v2(family=0x21),
        v2(cut=1),
        v2(values=b"\x04\0"),
        v2(values=b"\x04\0\x03ab"),
        v2(values=b"\x03\0\x02ab"),
        v2(values=b"\x04\x0f\xff" + bytes(4095)),
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_bad_headers(header: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(header, 4096)


@given(st.binary(max_size=200), st.sampled_from([b"", SIGNATURE, SIGNATURE + b"\x21\x11\0\x10", b"PROXY ", b"PROXY TCP4 "]))
def test_no_bytes_make_anything_else_happen(data: bytes, before: bytes) -> None:
    try:
        found = parse(before + data, 128)
    except ProxyError:
        return
    assert found is None or found[0] <= len(before + data)


def test_what_is_behind_the_header_passes() -> None:
    told: list[Any] = []
    layer = ProxyLayer(told.append, "192.0.2.1", 4096, is_loopback)
    header = v2()
    for index in range(len(header)):
        assert layer.receive(header[index : index + 1] + (b"AMQP" if index == len(header) - 1 else b"")) == (
            b"AMQP" if index == len(header) - 1 else b""
        )
    assert told == [("192.0.2.7", 1234)] and layer.over
    assert layer.receive(header) == header  # a second one is not read


def test_who_is_on_this_machine() -> None:
    """A proxy elsewhere does not make its client local; one here may say so."""
    for source in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"):
        with pytest.raises(ProxyError, match="says that its client"):
            ProxyLayer(lambda _: None, "192.0.2.1", 4096, is_loopback).receive(v2(source))
        told: list[Any] = []
        ProxyLayer(told.append, "127.0.0.1", 4096, is_loopback).receive(v2(source))
        assert told[0][1] == 1234


def test_who_is_trusted() -> None:
    trusted = networks(("10.0.0.0/8", "192.0.2.1", "2001:db8::/32"))
    assert all(is_trusted(one, trusted) for one in ("10.1.2.3", "192.0.2.1", "2001:db8::5", "::ffff:10.1.2.3"))
    assert not any(is_trusted(one, trusted) for one in ("11.0.0.1", "192.0.2.2", "2001:db9::", "unix-uid-0", "", "10.1.2.3.4"))
    for bad in ("10.0.0.1/8", "proxy.example", ""):
        with pytest.raises(OperatorError):
            networks((bad,))


def through(broker: Any, header: bytes, user: str = "ann", password: str = "pw") -> pika.BlockingConnection:
    """pika by way of a proxy that says `header` first."""
    relay = Relay(("127.0.0.1", broker.port), lambda data: data, lambda data: data, first=header)
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", relay.port, credentials=credentials, connection_attempts=1))


@pytest.fixture
def serve(start: Callable[..., Any]) -> Callable[..., Any]:
    def make(limits: dict[str, Any] | None = None, proxy_from: tuple[str, ...] = LOCAL, **options: Any) -> Any:
        broker = start(limits, proxy_from=proxy_from, **options)
        broker.node.users.put(UserRecord("ann"))
        broker.node.users.set_password("ann", "pw")
        broker.node.permissions.set_permissions(PermissionRecord("ann", "/", ".*", ".*", ".*"))
        return broker

    return make


@pytest.mark.parametrize("header", [b"PROXY TCP4 192.0.2.7 127.0.0.1 1234 5672\r\n", v2(), v2("2001:db8::7")])
def test_a_client_behind_a_proxy(serve: Callable[..., Any], header: bytes) -> None:
    broker = serve()
    connection = through(broker, header)
    (handler,) = broker.node.broker.connections.values()
    assert (handler.peer_host, handler.peer_port) in (("192.0.2.7", 1234), ("2001:db8::7", 1234))
    assert handler.name.startswith(("192.0.2.7:1234 -> ", "[2001:db8::7]:1234 -> "))
    assert handler.socket.tls is None  # what comes now is read as on any connection
    channel: Any = connection.channel()
    channel.queue_declare("q")
    body = bytes(range(256)) * 4096
    channel.basic_publish("", "q", body)
    assert channel.basic_get("q", auto_ack=True)[2] == body
    connection.close()


def test_the_client_counts_and_not_the_proxy(serve: Callable[..., Any]) -> None:
    """guest is local; who comes from elsewhere by way of a local proxy is not. A health check of the proxy itself is."""
    broker = serve()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        through(broker, v2(), "guest", "guest")
    through(broker, v2(command=0x20), "guest", "guest").close()
    through(broker, b"PROXY UNKNOWN\r\n", "guest", "guest").close()
    for _ in range(3):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            through(broker, v2("192.0.2.9"), "ann", "wrong")
    failures = broker.node.users.throttle._failures
    assert ("ann", "192.0.2.9") in failures and ("ann", "127.0.0.1") not in failures


def test_no_header_no_service(serve: Callable[..., Any]) -> None:
    """From a trusted address: its clients could write their own, if the proxy does not."""
    broker = serve()
    for first in (HEADER, b"GET / HTTP/1.1\r\n\r\n", v2()[:-1].replace(SIGNATURE, SIGNATURE[::-1])):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as sock:
            sock.sendall(first)
            assert gone(sock)
    assert not broker.node.broker.connections


def test_from_elsewhere_no_header_is_read(serve: Callable[..., Any]) -> None:
    broker = serve(proxy_from=("192.0.2.0/24",))
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    for header in (b"PROXY TCP4 192.0.2.7 127.0.0.1 1234 5672\r\n", v2("192.0.2.7")):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as sock:
            sock.sendall(header + HEADER)
            assert sock.recv(100)[:8] in (HEADER, b"")
            assert not broker.node.broker.connections


def test_a_second_header_is_none(serve: Callable[..., Any]) -> None:
    broker = serve()
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as sock:
        sock.sendall(v2("192.0.2.7") + v2("192.0.2.8") + HEADER)
        assert sock.recv(100)[:8] in (HEADER, b"")
        assert not broker.node.broker.connections


def test_a_header_that_does_not_come_is_not_waited_for(serve: Callable[..., Any]) -> None:
    broker = serve({"tls_handshake_ms_max": 100})
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as sock:
        sock.sendall(v2()[:20])
        assert gone(sock)


def test_a_header_for_a_place_in_the_line_of_logins(serve: Callable[..., Any]) -> None:
    """Handshakes that are not complete count for the client's address, so that one client loses its own."""
    broker = serve({"unauthenticated_connections_max": 6})
    socks = []
    for source in ["192.0.2.7"] * 5 + ["192.0.2.8"]:
        sock = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        sock.sendall(v2(source) + HEADER)
        assert sock.recv(100000)
        socks.append(sock)
    newcomer = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
    newcomer.sendall(v2("192.0.2.9") + HEADER)
    assert newcomer.recv(100000)
    assert gone(socks[0])
    for sock in (*socks, newcomer):
        sock.close()


def gone(sock: socket.socket) -> bool:
    """Whether the broker hangs up before anything else."""
    try:
        return sock.recv(100) == b""
    except ConnectionError:
        return True


def test_with_tls_the_header_comes_first(serve: Callable[..., Any], tmp_path: Any) -> None:
    from tests.net.test_external import Authority, NameOID

    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("server", (NameOID.COMMON_NAME, "localhost"))
    broker = serve(tls_cert=cert, tls_key=key, tls_port=0)
    relay = Relay(("127.0.0.1", broker.node.amqps_port), lambda data: data, lambda data: data, first=v2("192.0.2.7"))
    context = ssl.create_default_context(cafile=str(authority.path))
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            relay.port,
            credentials=pika.PlainCredentials("ann", "pw"),
            ssl_options=pika.SSLOptions(context, "localhost"),
            connection_attempts=1,
        )
    )
    (handler,) = broker.node.broker.connections.values()
    assert handler.peer_host == "192.0.2.7" and handler.secure
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x" * 300_000)
    assert len(channel.basic_get("q", auto_ack=True)[2]) == 300_000
    connection.close()
