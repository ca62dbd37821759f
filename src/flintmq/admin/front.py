"""The beginning of a connection, before HTTP: the header of a trusted proxy (PROXY protocol), which says whom it speaks for; then TLS.

in: connections of the HTTP listener, with their Links. out: the HTTP protocol on them, with the client's address.

F1  A connection from elsewhere has no header: none is read, and the peer is who connected.
F2  Header and handshake have Limits.tls_handshake_ms_max each to come. Without a header that is owed the connection is cut (net.proxy, P1).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, Protocol

from flintmq.access.checks import source_of
from flintmq.admin.links import Link

log = logging.getLogger("flintmq.http")

# (host, port) of the client; None: the proxy speaks for itself
OnSource = Callable[[tuple[str, int] | None], None]


class Reader(Protocol):
    """net.proxy.ProxyLayer."""

    established: bool

    def receive(self, data: bytes) -> bytes:
        """The octets behind the header. Raises: OSError: it is no header."""


# the reader of a peer's header; None: the peer is no trusted proxy
ReaderOf = Callable[[str, OnSource], Reader | None]


class _Secure(sslproto.SSLProtocol):
    """TLS that tells the connection's Link of its end: during a handshake the protocol behind it is told nothing."""

    link: Link

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.link.end()


class Front(asyncio.Protocol):
    """Args: link; make: makes a BoundedProtocol; reader_of: None: there are no proxies; tls: begins behind the header; header_s: the time
    that header and handshake have."""

    def __init__(
        self, link: Link, make: Callable[[], Any], reader_of: ReaderOf | None, tls: ssl.SSLContext | None, header_s: float
    ) -> None:
        self._link = link
        self._make = make
        self._reader_of = reader_of
        self._tls = tls
        self._header_s = header_s
        self._reader: Reader | None = None
        self._client: tuple[str, int] | None = None
        self._transport: Any = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = self._link.transport = transport
        if self._link.cut:  # it made room for another one meanwhile
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        if self._reader_of is not None and isinstance(peer, tuple) and peer:
            self._reader = self._reader_of(str(peer[0]), self._on_source)
        if self._reader is None:
            self._hand_on(b"")
        else:
            self._late = asyncio.get_running_loop().call_later(self._header_s, transport.abort)

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
        self._link.end()

    def _on_source(self, client: tuple[str, int] | None) -> None:
        self._client = client
        if client is not None:
            self._link.move(source_of(client[0]))

    def _over(self) -> None:
        """No front any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hand_on(self, rest: bytes) -> None:
        """The connection is HTTP's, or TLS's, from now on."""
        http = self._make()
        http.proxied, http.link = self._client, self._link
        if self._tls is None:
            self._transport.set_protocol(http)
            http.connection_made(self._transport)
            if rest:
                http.data_received(rest)
            return
        loop = asyncio.get_running_loop()
        make: Any = _Secure
        secure = make(loop, http, self._tls, None, server_side=True, ssl_handshake_timeout=self._header_s)
        secure.link = self._link
        self._transport.set_protocol(secure)
        secure.connection_made(self._transport)
        while rest:
            room = secure.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            secure.buffer_updated(size)
            rest = rest[size:]
