"""The way of a link to a broker: this node by a socket that it hands over, others by TCP and TLS, as far as the node allows.

in: a URI, a grant of the broker (agent.Grant). out: an open Peer.

D1  A remote address is compared with the allowed hosts after its name was resolved, and that address is the one that is connected to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from flintmq.config import Limits
from flintmq.moves.hosts import HostRules
from flintmq.moves.uri import Uri
from flintmq.shovel.peer import LinkFailure, Peer

# addresses of one name that are tried
ADDRESSES_MAX = 8
Resolve = Callable[[str, int], Awaitable[list[Any]]]


@dataclass(slots=True)
class Grant:
    """What the broker allows. Args: hosts: patterns; None: any host; socket: to the broker itself, for a URI without a host; resolve: host
    and port to the rows of getaddrinfo, for the link's user (Names)."""

    resolve: Resolve
    hosts: tuple[str, ...] | None = None
    socket: socket.socket | None = None


async def connect(side: str, name: str, uri: Uri, grant: Grant, limits: Limits, frame_max: int) -> Peer:
    """Args: side: "source" or "destination"; name: of the connection; frame_max: bytes of a frame that may come. Raises: LinkFailure."""
    loop = asyncio.get_running_loop()
    peer = Peer(side, name, limits)
    try:
        if uri.host is None:
            if grant.socket is None:
                raise LinkFailure(f"{side}: the broker gave no socket")
            sock, secure = grant.socket, None
        else:
            secure = _tls(side, uri) if uri.secure else None
            sock = await _reach(side, uri, grant, limits)
        tls: dict[str, Any] = {}
        if secure is not None:
            tls = {"server_hostname": uri.options.get("server_name_indication", uri.host), "ssl_handshake_timeout": _wait_s(uri, limits)}
        try:
            await loop.create_connection(lambda: peer, sock=sock, ssl=secure, **tls)
        except (OSError, ValueError) as error:
            sock.close()
            raise LinkFailure(f"{side}: {_reason(error)}") from None
        await peer.open(uri, frame_max)
    except BaseException:
        await peer.close()
        raise
    return peer


def _wait_s(uri: Uri, limits: Limits) -> float:
    return max(1, min(int(uri.options.get("connection_timeout", limits.shovel_connect_ms)), limits.shovel_connect_ms)) / 1000


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the broker is not good: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'no TLS there'}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


async def _reach(side: str, uri: Uri, grant: Grant, limits: Limits) -> socket.socket:
    """A connected socket. D1."""
    assert uri.host is not None
    rules = None if grant.hosts is None else HostRules(grant.hosts)
    loop = asyncio.get_running_loop()
    wait_s = _wait_s(uri, limits)
    try:
        addresses = await asyncio.wait_for(grant.resolve(uri.host, uri.port), wait_s)
    except (OSError, UnicodeError, TimeoutError):
        raise LinkFailure(f"{side}: the host's name can't be resolved") from None
    allowed = [one for one in addresses if rules is None or rules.allow_name(uri.host) or rules.allow_address(str(one[4][0]))]
    if not allowed:
        raise LinkFailure(f"{side}: links may not reach this host: an operator allows hosts by --shovel-host")
    why = "no address"
    for family, kind, protocol, _, address in allowed[:ADDRESSES_MAX]:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(sock, address), wait_s)
        except (OSError, TimeoutError) as error:
            sock.close()
            why = _reason(error)
            continue
        except BaseException:
            sock.close()
            raise
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise LinkFailure(f"{side}: can't connect: {why}")


def _tls(side: str, uri: Uri) -> ssl.SSLContext:
    """The certificate is checked unless the URI says verify=verify_none."""
    options = uri.options
    try:
        context = ssl.create_default_context(cafile=options.get("cacertfile"))
        if options.get("verify") == "verify_none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"), options.get("password", ""))
    except (OSError, ValueError):  # of ssl, too; the text would say what is in a file
        raise LinkFailure(f"{side}: cacertfile, certfile or keyfile can't be used: see that the broker may read them") from None
    return context
