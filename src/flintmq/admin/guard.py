"""What a web page in somebody's browser may make that browser send, and how it is told from a client's own request.

in: the head of a request. out: nothing, or a refusal before anything is looked up, the password included.

A page can make a browser send requests to any address, with credentials that the browser remembers; it can't read the answers of another
origin, and without asking first (CORS preflight, which nobody here answers) it can set neither a JSON content type nor a header of its own.

W1  Host names this broker: a loopback name, an address, this machine's name, `--host` or one of `--http-host`. Another name is a page's
    own, pointed at us (DNS rebinding). An address as Host is never a page's trick: the page's origin would be that address.
W2  Origin, when there is one, is this origin; Sec-Fetch-Site, when there is one, says that no other site asked.
W3  What changes something is not GET; and it is a PUT or DELETE, has a JSON or octet-stream content type, or, without a body, the header
    X-FlintMQ-Request.
    GET changes something in one case, a pull, and needs the header there (`require_header`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

from flintmq.admin.errors import HttpError

HEADER = "x-flintmq-request"
JSON, OCTETS = "application/json", "application/octet-stream"
# the one entry of `--http-host` that stands for all names
ANY = "*"
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
# a browser asks first (CORS preflight) before it sends one of these for a page of another site, and nobody here says yes
_ASKED_FIRST = ("PUT", "DELETE")
_OWN_SITES = (b"same-origin", b"none")


def _forbidden(error: str, reason: str, fix: str, status: int = 403) -> HttpError:
    return HttpError(status, error, reason, fix)


class Guard:
    """Args: host: the address or name that the service listens on; names: further ones (`--http-host`)."""

    def __init__(self, host: str, names: Iterable[str]) -> None:
        self._names = {name.lower().rstrip(".") for name in ("localhost", host, socket.gethostname(), *names)}

    def check(self, scope: Any) -> None:
        """W1 to W3 for an ASGI scope. Raises: HttpError 400, 403, 415, 421."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        host = self._host(headers.get(b"host", []))
        if scope["method"] in ("GET", "HEAD") and _is_page(scope.get("path", "")):
            return  # a link of another site may lead here: nothing of the broker is in these files, and no other site can frame them
        origins = headers.get(b"origin", [])
        if origins and origins != [f"{scope['scheme']}://{host}".encode("latin-1")]:
            raise _cross_site("Origin")
        if any(site not in _OWN_SITES for site in headers.get(b"sec-fetch-site", [])):
            raise _cross_site("Sec-Fetch-Site")
        if scope["method"] in _SAFE or (scope["method"] in _ASKED_FIRST and scope.get("path", "").startswith("/api/")):
            return
        kind = content_type(b", ".join(headers.get(b"content-type", [])))
        if kind in (JSON, OCTETS):
            return
        empty = headers.get(b"content-length", [b"0"]) == [b"0"] and b"transfer-encoding" not in headers
        if kind or not (empty and HEADER.encode() in headers):
            raise _forbidden(
                "content_type",
                f"a {scope['method'][:20]} needs the content type {JSON}" + (f", not {kind[:80]}" if kind else ""),
                f"curl -H 'content-type: {JSON}' (publish: {OCTETS} for a body as it is; without a body: -H 'X-FlintMQ-Request: 1')",
                415,
            )

    def _host(self, values: list[bytes]) -> str:
        host = values[0].decode("latin-1").lower() if len(values) == 1 else ""
        name, colon, port = host.rpartition(":")
        if not colon or "]" in port:
            name, port = host, ""
        if not name or (colon and port and not port.isdigit()):
            raise _forbidden("bad_request", "the request has no Host header, or more than one, or it is no host and port", "send one", 400)
        if name.rstrip(".") not in self._names and not _is_address(name) and ANY not in self._names:
            raise _forbidden(
                "host",
                f"'{name[:80]}' is no name of this broker",
                "use its address or localhost, or start it with --http-host and the name",
                421,
            )
        return host


def _is_page(path: str) -> bool:
    """A file of the console (admin.static)."""
    return path in ("/", "/console") or path.startswith("/console/")


def content_type(value: bytes) -> str:
    """The media type of a Content-Type header, without its parameters, in small letters."""
    return value.decode("latin-1").partition(";")[0].strip().lower()


def require_header(headers: Any) -> None:
    """W3 for a GET that takes messages. Raises: HttpError 403."""
    if HEADER not in headers:
        raise _forbidden(
            "cross_site",
            "a GET that takes messages needs the header X-FlintMQ-Request, which a page of another site can't send",
            "curl -H 'X-FlintMQ-Request: 1', or POST to .../messages/pull",
        )


def _cross_site(header: str) -> HttpError:
    return _forbidden(
        "cross_site", f"the request comes from a page of another site ({header})", "ask the broker from a program, not from a page"
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True
