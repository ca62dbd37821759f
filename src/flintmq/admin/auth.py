"""Which requests are let in: none that a web page of another site made a browser send; then Basic authentication with the broker's users,
Bearer with a token (docs/ACCESS.md, OAuth 2), and what they may.

in: the head of a request, the peer's address. out: a user name, or a refusal (400, 401, 403, 415, 421, 503).

A1  A password is checked by argon2id in the line that AMQP logins use (access.checks), remembered as a keyed MAC as theirs; the event loop
    never waits for a check. At most Limits.http_logins_max requests wait for one (shared by source), besides those that wait for one
    that another started.
    A client that leaves meanwhile waits no more, and a check that nobody waits for leaves the line.
A2  Every verb asks `Caller.authorize` (or `require_tag`) once, before it does anything.

A page can make a browser send requests to any address, with credentials that the browser remembers; it can't read the answers of another
origin, and without asking first (CORS preflight, which nobody here answers) it can set neither a JSON content type nor a header of its own.
Such a request is refused before anything is looked up, the password included.

W1  Host names this broker: a loopback name, an address, this machine's name, `--host` or one of `--http-host`. Another name is a page's
    own, pointed at us (DNS rebinding). An address as Host is never a page's trick: the page's origin would be that address.
W2  Origin, when there is one, is this origin; Sec-Fetch-Site, when there is one, says that no other site asked.
W3  A request that changes something is not GET; and it is a PUT or DELETE, has a JSON or octet-stream content type, or, without a body, the
    header X-FlintMQ-Request. GET changes something in one case, a pull, and needs the header there (`require_header`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from flintmq.access.checks import Check, source_of
from flintmq.access.hashes import hash_of
from flintmq.access.secret import Secret
from flintmq.access.token_user import TokenUser, is_token
from flintmq.admin.http_refusals import HttpError, busy, closing, of_peer_error
from flintmq.admin.sessions import CHALLENGE, PATH, Session, Sessions, token_of
from flintmq.admin.sessions import HEADER as CONSOLE
from flintmq.broker.counters import HTTP
from flintmq.config import Limits
from flintmq.core.shares import Pool, Who
from flintmq.errors import PeerError

_CHALLENGE = {"www-authenticate": 'Basic realm="FlintMQ", charset="UTF-8"'}
MONITORING_TAGS = frozenset({"administrator", "monitoring"})


def _unauthenticated(reason: str) -> HttpError:
    return HttpError(
        401, "unauthenticated", reason, "send 'Authorization: Basic ...' of a user of the broker (curl -u user:password)", _CHALLENGE
    )


def parse_basic(header: str | None, limits: Limits) -> tuple[str, Secret]:
    """User and password of an Authorization header (RFC 7617, UTF-8). Raises: HttpError 401."""
    if header is None:
        raise _unauthenticated("the request has no Authorization header")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        raise _unauthenticated("the only authentication scheme is Basic")
    try:
        text = base64.b64decode(token.strip(), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise _unauthenticated("the Basic credentials are not base64 of UTF-8 text") from None
    user, colon, password = text.partition(":")
    if not colon or not 1 <= len(user) <= limits.login_name_max or len(password) > limits.login_password_max:
        raise _unauthenticated("the Basic credentials are not of the form user:password")
    return user, Secret(password)


def parse_bearer(header: str | None) -> Secret | None:
    """The token of an Authorization header (RFC 6750). None: it is of another scheme."""
    scheme, _, token = (header or "").partition(" ")
    return Secret(token.strip()) if scheme.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user. born, password: what it was when it was authenticated (Users.born, the hash of its password). session: the
    login of the console by whose cookie it came; None: it sent credentials."""

    user: str
    broker: Any
    born: int = 0
    password: str = field(default="", repr=False)
    session: Session | None = field(default=None, repr=False)

    @staticmethod
    def of(user: str, broker: Any) -> Caller:
        """The user as it is now."""
        record = broker.users.get(user)
        return Caller(user, broker, broker.users.born(user), "" if record is None else hash_of(record.password_hash))

    @property
    def is_current(self) -> bool:
        """Whether it is still who was authenticated: neither deleted, nor made anew, nor another password; no token, no session over."""
        if self.session is not None and self.session.is_over:
            return False
        record = self.broker.users.get(self.user)
        same = record is not None and hash_of(record.password_hash) == self.password
        return same and self.broker.users.born(self.user) == self.born

    def authorize(self, vhost: str, method: str, **names: str | None) -> Any:
        """Everything that `method` (access.permissions.NEEDS) needs, and the virtual host itself, which is returned.

        Raises: HttpError 403; 404 for a virtual host that is not there.
        """
        permissions = self.broker.permissions
        try:
            permissions.authorize_vhost(self.user, vhost)
            permissions.authorize_method(self.user, vhost, method, names)
        except PeerError as error:
            raise of_peer_error(error) from None
        known = self.broker.vhosts.get(vhost)
        if known is None:
            raise HttpError(404, "not_found", f"there is no virtual host '{vhost}'", "percent-encode its name in the path: / is %2F")
        return known

    def require_tag(self, tags: frozenset[str] = MONITORING_TAGS) -> None:
        """Raises: HttpError 403 when the user has none of the tags."""
        record = self.broker.users.get(self.user)
        if record is None or not tags & set(record.tags):
            names = " or ".join(sorted(tags))
            raise HttpError(403, "forbidden", f"this needs a user with the tag {names}", "give the user the tag, or use another one")


@dataclass(slots=True)
class _Shared:
    """A check that requests with the same credentials, from the same peer, wait for."""

    answer: asyncio.Future[bool | TokenUser | str | None]
    check: Check
    waiting: int = 0


class Authenticator:
    """Args: broker: of this node; logins: of those who wait for a check. For one event loop."""

    def __init__(self, broker: Any, logins: Pool) -> None:
        self._broker = broker
        self._limits: Limits = broker.limits
        self._logins = logins
        self._checks: dict[tuple[str, Secret, str], _Shared] = {}  # those under way
        self.sessions = Sessions(broker)
        self.refused = 0

    async def of_request(self, request: Any, peer: str, gone: asyncio.Future[None] | None = None) -> Caller:
        """The caller: by its session when the console asks (sessions.C2), else by its credentials. Raises: HttpError 401, 503."""
        header = request.headers.get("authorization")
        if CONSOLE not in request.headers:
            return await self.caller(header, peer, gone)
        try:
            if request.scope["path"] == PATH and request.method == "POST":
                return await self.caller(header, peer, gone)
            session = self.sessions.find(token_of(request.scope))
            if session is None:
                raise _unauthenticated("there is no session of the console, or it is over")
            caller: Caller = session.caller
            if request.headers[CONSOLE] not in ("1", quote(caller.user, safe="")):
                raise _unauthenticated("the session is of another user: somebody else signed in with this browser")
            if self._broker.users.refused_from(caller.user, peer):
                raise _unauthenticated(f"user '{caller.user}' can only connect from this machine")
            return replace(caller, session=session)
        except HttpError as error:
            if error.status == 401:
                error.headers = CHALLENGE
            raise

    async def caller(self, header: str | None, peer: str, gone: asyncio.Future[None] | None = None) -> Caller:
        """The caller. Args: peer: its address; gone: is done when its connection is lost. Raises: HttpError 401, 503."""
        user = ""
        before: Caller | None = None
        try:
            tokens = self._broker.tokens
            bearer = None if tokens is None else parse_bearer(header)
            user, password = ("", bearer) if bearer is not None else parse_basic(header, self._limits)
            if tokens is not None and is_token(password):
                known = await self._token_caller(password, peer, gone)
                self._broker.counters.login(HTTP, True)
                return known
            if bearer is not None:
                raise _unauthenticated("the Bearer credentials are no token")
            users = self._broker.users
            before = Caller.of(user, self._broker)  # a password that changes while it is checked is the old one
            if users.refused_from(user, peer):
                raise _unauthenticated(f"user '{user}' can only connect from this machine")
            login = users.login_cached(user, password) or await self._checked(user, password, peer, gone)
            if not isinstance(login, str):
                raise _unauthenticated("wrong user or password")
            if login != user and users.refused_from(login, peer):
                raise _unauthenticated(f"user '{login}' can only connect from this machine")
        except HttpError as error:
            self.refused += error.status == 401
            if header is not None and error.status == 401:
                self._broker.counters.login(HTTP, False)
                reason = ": ".join((error.reason, *getattr(error, "__notes__", ())))
                self._broker.audit.refused(user, f"login over HTTP: {reason}", peer)
            raise
        self._broker.counters.login(HTTP, True)
        return before if type(login) is str and login == user else Caller.of(login, self._broker)

    async def _token_caller(self, token: Secret, peer: str, gone: asyncio.Future[None] | None) -> Caller:
        login = self._broker.tokens.cached(token) or await self._checked("", token, peer, gone)
        if not isinstance(login, TokenUser):
            refused = _unauthenticated("the token was refused")
            refused.add_note(str(login))  # for the audit: who has the token need not learn about keys and users
            raise refused
        return Caller.of(login, self._broker)

    async def _checked(self, user: str, password: Secret, peer: str, gone: asyncio.Future[None] | None) -> bool | TokenUser | str:
        """One check, however many requests with the same credentials wait for it: 2,000 pollers come back at once."""
        key = user, password, peer
        shared = self._checks.get(key)
        place = None
        if shared is None:
            place = self._logins.take(Who("", source_of(peer)))
            if place is None:
                raise busy("too many logins at once")
            try:
                shared = self._checks[key] = self._submit(key)
            except BaseException:
                place.release()
                raise
        shared.waiting += 1
        try:
            ends: set[asyncio.Future[Any]] = {shared.answer} if gone is None else {shared.answer, gone}
            await asyncio.wait(ends, timeout=self._limits.password_check_s, return_when=asyncio.FIRST_COMPLETED)
            good = shared.answer.result() if shared.answer.done() else None
        finally:
            shared.waiting -= 1
            if place is not None:
                place.release()
            if not shared.waiting and not shared.answer.done():
                shared.check.cancel()
                if self._checks.get(key) is shared:
                    del self._checks[key]
        if good is None:
            raise busy("too many logins at once")
        return good

    def _submit(self, key: tuple[str, Secret, str]) -> _Shared:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool | TokenUser | str | None] = loop.create_future()

        def tell(good: bool | TokenUser | str | None) -> None:
            known = self._checks.get(key)
            if known is not None and known.answer is answer:
                del self._checks[key]
            if not answer.done():
                answer.set_result(good)

        def done(good: bool | TokenUser | str | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(tell, good)

        user, password, peer = key
        try:
            if self._broker.tokens is not None and is_token(password):
                return _Shared(answer, self._broker.tokens.submit(password, peer, done))
            return _Shared(answer, self._broker.users.submit_login(user, password, done, peer))
        except RuntimeError:
            raise closing() from None


# --- requests of web pages ------------------------------------------------------------------------------------------------------------

HEADER = "x-flintmq-request"
JSON, OCTETS = "application/json", "application/octet-stream"
# the one entry of `--http-host` that stands for all names
ANY = "*"
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
# a browser asks first (CORS preflight) before it sends one of these for a page of another site, and nobody here says yes
_ASKED_FIRST = ("PUT", "PATCH", "DELETE")
# POST that changes nothing (one node has no leaders to move), which rabbitmqadmin sends without a content type
_NO_CHANGE = ("/api/rebalance/queues",)
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
        if scope.get("path", "") in _NO_CHANGE:
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
