"""What stands before HTTP on a connection of a trusted proxy: a header of the PROXY protocol, which says whom the proxy speaks for.

in: connections of the HTTP listener. out: the HTTP protocol on them, with the client's address; TLS begins behind the header.

F1  A connection from elsewhere is handed on as it is: no header is read, and the peer is who connected.
F2  The header has Limits.tls_handshake_ms_max to come, and counts as a connection meanwhile. Without one the connection is cut
    (net.proxy, P1).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger("flintmq.http")

# (host, port) of the client; None: the proxy speaks for itself
Told = Callable[[tuple[str, int] | None], None]


class Reader(Protocol):
    """net.proxy.ProxyLayer."""

    established: bool

    def receive(self, data: bytes) -> bytes:
        """What is behind the header. Raises: OSError for what is none."""


# the reader of a peer's header; None: the peer is no trusted proxy
ReaderOf = Callable[[str, Told], Reader | None]


class Front(asyncio.Protocol):
    """Args: make: makes a BoundedProtocol; reader_of; tls: begins behind the header; header_s: the header's time to come; open_fronts: one
    cell: how many fronts of the server wait for a header."""

    def __init__(
        self,
        make: Callable[[], Any],
        reader_of: ReaderOf,
        tls: ssl.SSLContext | None,
        header_s: float,
        open_fronts: list[int],
    ) -> None:
        self._make = make
        self._reader_of = reader_of
        self._tls = tls
        self._header_s = header_s
        self._open_fronts = open_fronts
        self._reader: Reader | None = None
        self._client: tuple[str, int] | None = None
        self._transport: Any = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._reader = self._reader_of(str(peer[0]), self._told) if isinstance(peer, tuple) and peer else None
        if self._reader is None:
            self._hand_on(b"")
            return
        self._open_fronts[0] += 1
        self._late = asyncio.get_running_loop().call_later(self._header_s, transport.abort)
        http = self._make()
        if len(http.connections) + self._open_fronts[0] > http.connections_max:
            http.refused[0] += 1
            transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._reader is not None
        try:
            rest = self._reader.receive(data)
        except OSError as error:
            log.warning("HTTP: %s", error)
            self._transport.abort()
            return
        if self._reader.established:
            self._over()
            self._hand_on(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over()

    def _told(self, client: tuple[str, int] | None) -> None:
        self._client = client

    def _over(self) -> None:
        """No front any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
            self._open_fronts[0] -= 1

    def _hand_on(self, rest: bytes) -> None:
        """The connection is HTTP's, or TLS's, from now on."""
        http = self._make()
        http.proxied = self._client
        if self._tls is None:
            self._transport.set_protocol(http)
            http.connection_made(self._transport)
            if rest and not self._transport.is_closing():  # one connection too many was cut
                http.data_received(rest)
            return
        loop = asyncio.get_running_loop()
        make: Any = sslproto.SSLProtocol
        secure = make(loop, http, self._tls, None, server_side=True, ssl_handshake_timeout=self._header_s)
        self._transport.set_protocol(secure)
        secure.connection_made(self._transport)
        while rest:
            room = secure.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            secure.buffer_updated(size)
            rest = rest[size:]
