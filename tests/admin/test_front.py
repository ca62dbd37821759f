"""HTTP behind a proxy that speaks the PROXY protocol: the client is whom the proxy names, and nobody else can name anybody."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker
from tests.admin.conftest import basic
from tests.net.test_proxy import v2
from tests.support.broker import self_signed_certificate

LINE = b"PROXY TCP4 192.0.2.7 127.0.0.1 1234 15672\r\n"
TRUSTED = {"http_port": 0, "http_proxy_from": ("127.0.0.0/8",)}


@contextlib.contextmanager
def connected(broker: Broker, secure: bool = False, header: bytes = b"") -> Iterator[socket.socket]:
    port = broker.node.http_port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        plain.sendall(header)
        if not secure:
            yield plain
            return
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as sock:
            yield sock


def request(path: str = "/api/whoami", user: str = "guest") -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *(f"{a}: {b}" for a, b in basic(user, user).items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(sock: socket.socket) -> tuple[int, Any]:
    """Status and JSON; (0, None): the connection was cut."""
    raw = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65_536):
            raw += data
    head, _, body = raw.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)) if head else (0, None)


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_the_client_is_whom_the_proxy_names(secure: bool, caplog: Any) -> None:
    """guest is let in from this machine only: a client elsewhere is refused, and the audit has its address. The proxy for itself (a health
    check) is who it is. The header may come in one piece with what follows, or byte for byte."""
    with contextlib.ExitStack() as stack:
        tls: dict[str, Any] = {}
        if secure:
            certificate, key = stack.enter_context(self_signed_certificate())
            tls = {"tls_cert": certificate, "tls_key": key}
        broker = stack.enter_context(Broker(**TRUSTED, **tls))
        for header, status in ((LINE, 401), (v2("2001:db8::7"), 401), (b"PROXY UNKNOWN\r\n", 200), (v2(command=0x20), 200)):
            with connected(broker, secure, header) as sock:
                sock.sendall(request())
                assert answer(sock)[0] == status, header
        assert "at 192.0.2.7: login over HTTP" in caplog.text
        if not secure:
            with connected(broker) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for byte in LINE:
                    sock.sendall(bytes([byte]))
                sock.sendall(request("/health"))
                assert answer(sock) == (200, {"status": "ok"})
            with connected(broker, header=b"PROXY UNKNOWN\r\n" + request()) as sock:
                assert answer(sock)[1]["name"] == "guest"


def test_a_proxy_that_sends_no_header_is_cut() -> None:
    """Its clients could write one themselves."""
    with Broker(**TRUSTED) as broker:
        for wrong in (request(), b"PROXY TCP4 here there 1 2\r\n" + request(), b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"[:20] + b"x" * 200):
            with connected(broker, header=wrong) as sock:
                assert answer(sock) == (0, None)
        with connected(broker, header=b"PROXY UNKNOWN\r\n" + request("/health")) as sock:
            assert answer(sock)[0] == 200, "others go on"


def test_from_elsewhere_no_header_is_read() -> None:
    """A client that writes one speaks no HTTP; one that writes none is served as ever."""
    with Broker(http_port=0, http_proxy_from=("192.0.2.1",)) as broker:
        with connected(broker, header=LINE + request()) as sock:
            assert answer(sock)[0] == 400
        with connected(broker, header=request()) as sock:
            assert answer(sock)[0] == 200


def test_a_header_that_does_not_come_is_not_waited_for() -> None:
    """Connections without one count, and end with their time."""
    with Broker(**TRUSTED, limits={"http_connections_max": 2, "tls_handshake_ms_max": 300}) as broker, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connected(broker, header=b"PROX")) for _ in range(2)]
        with connected(broker, header=b"PROXY UNKNOWN\r\n" + request("/health")) as sock:
            assert answer(sock)[0] == 200, "the oldest of them made room"
        for one in waiting:
            assert answer(one) == (0, None)
        with connected(broker, header=b"PROXY UNKNOWN\r\n" + request("/health")) as sock:
            assert answer(sock)[0] == 200, "their places are free again"


def test_what_is_no_address_is_refused_at_the_start() -> None:
    with pytest.raises(OperatorError, match="--http-proxy-from: 'proxy' does not appear"), Broker(http_port=0, http_proxy_from=("proxy",)):
        pass
