"""Who calls: Basic credentials, a token of OAuth 2 (Bearer, or the password of Basic), or the Bearer token of a Flight handshake. The
broker checks all of them.

in: headers of a call, then the address of its peer. out: a Caller, or UNAUTHENTICATED before a handler does anything.

A1  A password is held until its check is over and never after: what is remembered is a MAC under a key that exists only in this process,
    for `flight_auth_cache_ms`, and only of answers that were yes.
A2  All refusals say the same: not which part was wrong, nor whether the user exists.
A3  Checks are slow (argon2): at most two run at once and few wait, of one address a part of them, so strangers can't keep channels or
    places from those who are known. Those who bring the same credentials at once wait for one check, and take its answer. The broker counts
    what was wrong by address: gRPC tells that to a handler, so a password that is not known is checked when the handler asks who calls. A
    handshake has no handler, and what the one of get_schema raises reaches the caller as a Python trace (pyarrow): both are checked before,
    and are one source.
A4  Tokens are made and read by the broker: nothing in this process, which reads what clients send, could make one. A token grants
    nothing: permissions are the broker's, asked at each call.
A5  Who was let in by a token of OAuth 2 or a directory is known here by the handle that the broker gave (`outside`): what such a user may
    stays in the broker, and a login that the broker does not take any more is forgotten at once.
A6  A handler learns who calls when the call has a place among those of its kind (line.py), and by no other way: no verb passes the line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyarrow import flight

from flintmq.access.token_user import is_token
from flintmq.config import Limits
from flintmq.flight.headers import QUERY_HEADER, VHOST_HEADER
from flintmq.flight.line import Line, Lines, Pass
from flintmq.flight.link import Caller, Link
from flintmq.flight.plane_error import BAD_ARGUMENT, FORBIDDEN, UNAUTHENTICATED, UNAVAILABLE, PlaneError, to_flight

log = logging.getLogger("flintmq.flight")

# name of the middleware
KEY = "flintmq"
MAC_BYTES = 32
# characters of the address of a peer
SOURCE_MAX = 255
REFUSED = "login was refused: user or password is wrong, or the token is too old"
# the source of calls that are checked before a handler runs: their peers have no address there
HANDSHAKES = "flight handshakes"
WITHOUT_ADDRESS = (flight.FlightMethod.HANDSHAKE, flight.FlightMethod.GET_SCHEMA)
# part of the logins in line that one source may be
SOURCE_PART = 4
# times so many, who bring credentials that are being checked, wait for that: each costs a thread, and no check
JOINED_PART = 2
# characters of the name of a query
QUERY_MAX = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified user. loopback_only: may call from this machine only (RabbitMQ's loopback_users); token: the broker's, for a handshake;
    outside: the broker's handle, when a token or a directory named the user (A5)."""

    user: str
    loopback_only: bool
    token: str | None = field(default=None, compare=False, repr=False)
    outside: str = field(default="", repr=False)


class Vault:
    """Credentials and tokens that the broker verified lately, under a key that makes and opens nothing elsewhere. Thread-safe."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = limits.flight_auth_cache_ms / 1000
        self._most = limits.flight_auth_cache_max
        self._clock = clock
        self._key = os.urandom(MAC_BYTES)
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[Identity, float]] = {}

    def mac(self, user: str, password: str) -> bytes:
        """The mark of the credentials in memory."""
        name = user.encode()
        return self._mac(len(name).to_bytes(4, "big") + name + password.encode(), b"credentials")

    def mac_of_token(self, token: str) -> bytes:
        """The mark of a token in memory."""
        return self._mac(token.encode("utf-8", "surrogatepass"), b"token")

    def find(self, mac: bytes) -> Identity | None:
        """Whose credentials these are, when they were verified lately."""
        with self._lock:
            entry = self._known.get(mac)
            if entry is None:
                return None
            if self._clock() >= entry[1]:
                del self._known[mac]
                return None
            return entry[0]

    def remember(self, mac: bytes, identity: Identity) -> None:
        with self._lock:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[mac] = (identity, self._clock() + self._keep_s)

    def forget(self, outside: str) -> None:
        """The login of this handle is over. O(what is remembered), once for each login that ends."""
        with self._lock:
            for mac in [mac for mac, (identity, _) in self._known.items() if outside and identity.outside == outside]:
                del self._known[mac]

    def _mac(self, content: bytes, use: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=MAC_BYTES, person=use).digest()


class Session(flight.ServerMiddleware):  # type: ignore[misc]
    """One call. Args: identity: who calls, or how to find out for a peer's address; token: for the answer; place: see `caller`;
    query: as the client names it, "" for a client that knows no turns. Attributes: entered: its place there."""

    def __init__(
        self,
        identity: Identity | Callable[[str], Identity],
        vhost: str,
        token: str | None,
        done: Callable[[], None],
        place: tuple[Line, bool],
        query: str = "",
    ) -> None:
        self._identity = identity
        self.vhost = vhost
        self._token = token
        self._done = done
        self._place = place
        self.query = query
        self.entered: Pass | None = None

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token is not None else {}

    def call_completed(self, exception: Any) -> None:
        if self.entered is not None:
            self.entered.release()
        self._done()

    def caller(self, peer: str, place: tuple[Line, bool] | None = None) -> Caller:
        """Who the broker is told, when it is this call's turn (A6).

        Args: peer: of gRPC's context, `ipv4:127.0.0.1:50000`; place: where it stands in line, and whether it goes on with something; by
        default that of its method.

        Raises: PlaneError UNAUTHENTICATED, BUSY, FORBIDDEN.
        """
        if not isinstance(self._identity, Identity):
            self._identity = self._identity(address_of(peer))
        identity = self._identity
        if identity.loopback_only and not from_this_machine(peer):
            raise PlaneError(FORBIDDEN, f"user '{identity.user}' can only connect via localhost")
        if self.entered is None:
            line, goes_on = place or self._place
            self.entered = line.enter(identity.user, self.query, goes_on)
        return Caller(identity.user, self.vhost, identity.outside)

    def move(self, line: Line, caller: Caller) -> None:
        """To a place among calls of another kind. Raises: PlaneError BUSY."""
        entered, self.entered = self.entered, line.enter(caller.user, self.query)
        if entered is not None:
            entered.release()


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Verifies every call before its handler runs, and bounds how many run. Args: link; limits; vault: by default one of its own."""

    def __init__(self, link: Link, limits: Limits, vault: Vault | None = None) -> None:
        self._link = link
        self._limits = limits
        self._vault = vault or Vault(limits)
        link.on_over = self._vault.forget
        self._checks = threading.BoundedSemaphore(min(limits.password_checks_max, max(1, link.size - 1)))
        self._lock = threading.Lock()
        self._running = 0
        self._in_line: Counter[str] = Counter()  # source -> logins that wait
        # credentials that are being checked: those who bring the same ones wait for it, and its answer
        self._asking: dict[bytes, _Check] = {}
        self._joined = 0
        self.lines = Lines(limits)
        self._places = {flight.FlightMethod.DO_GET: (self.lines.reads, False), flight.FlightMethod.DO_PUT: (self.lines.writes, True)}

    @property
    def running(self) -> int:
        """Calls that run now."""
        return self._running

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> Session:
        try:
            self._enter()
            try:
                claimed, basic = self._identify(headers)
                token = None
                if info.method in WITHOUT_ADDRESS:
                    identity = claimed if isinstance(claimed, Identity) else claimed(HANDSHAKES)
                    claimed, token = identity, identity.token if basic and info.method == flight.FlightMethod.HANDSHAKE else None
                vhost = _one(headers, VHOST_HEADER, self._limits.flight_header_max) or "/"
                place = self._places.get(info.method, (self.lines.actions, False))
                return Session(claimed, unquote(vhost), token, self._leave, place, _one(headers, QUERY_HEADER, QUERY_MAX))
            except BaseException:
                self._leave()
                raise
        except Exception as error:
            if not isinstance(error, PlaneError):
                log.exception("a call could not be verified")
            raise to_flight(error, self._limits.flight_busy_ms) from None

    def _enter(self) -> None:
        with self._lock:
            if self._running >= self._limits.flight_calls_max:
                raise self.lines.actions.busy(f"{self._running} calls run or stand in line")
            self._running += 1

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1

    def _identify(self, headers: Mapping[str, list[Any]]) -> tuple[Identity | Callable[[str], Identity], bool]:
        """The caller; of a password or token that is not known, the check of it, which wants to be told where it comes from. And whether it
        gave a password."""
        header = _one(headers, "authorization", self._limits.flight_header_max)
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "bearer":
            token = value.strip()
            if not is_token(token):
                return self._holder(token), False
            mac = self._vault.mac("", token)
            return self._vault.find(mac) or partial(self._ask, mac, "", token), False
        if scheme.lower() != "basic":
            raise PlaneError(
                UNAUTHENTICATED, "user and password are missing (authorization: Basic; or Bearer, of a handshake or of OAuth 2)"
            )
        user, password = _basic(value.strip())
        mac = self._vault.mac(user, password)
        return self._vault.find(mac) or partial(self._ask, mac, user, password), True

    def _holder(self, token: str) -> Identity:
        """Whose token it is, says the broker (A4), which is asked again when `flight_auth_cache_ms` are over."""
        mac = self._vault.mac_of_token(token)
        known = self._vault.find(mac)
        if known is not None:
            return known
        try:
            answer, _ = self._link.call("token", None, {"token": token})
        except PlaneError as error:
            if error.code not in (UNAUTHENTICATED, FORBIDDEN, BAD_ARGUMENT):
                raise
            raise PlaneError(UNAUTHENTICATED, REFUSED) from None
        identity = _identity(answer)
        self._vault.remember(mac, identity)
        return identity

    def _ask(self, mac: bytes, user: str, password: str, source: str) -> Identity:
        with self._lock:
            check = self._asking.get(mac)
            first = check is None
            if check is None:
                self._stand_in_line(source)
                check = self._asking[mac] = _Check()
            elif self._joined >= JOINED_PART * self._limits.flight_waiting_max:
                raise self._too_many()
            else:
                self._joined += 1
        if not first:
            try:
                if not check.done.wait(self._limits.flight_wait_ms / 1000):
                    raise self._too_many()
                return check.answer()
            finally:
                with self._lock:
                    self._joined -= 1
        try:
            check.identity = self._check(mac, user, password, source)
        except BaseException as error:
            check.error = error
            raise
        finally:
            with self._lock:
                del self._asking[mac]
            check.done.set()
        return check.identity

    def _stand_in_line(self, source: str) -> None:
        """Under the lock. Raises: PlaneError BUSY."""
        most = self._limits.flight_waiting_max
        if self._in_line.total() >= most or self._in_line[source] >= max(1, most // SOURCE_PART):
            raise self._too_many()
        self._in_line[source] += 1

    def _too_many(self) -> PlaneError:
        return self.lines.actions.busy("too many logins at once")

    def _leave_line(self, source: str) -> None:
        with self._lock:
            self._in_line[source] -= 1
            if not self._in_line[source]:
                del self._in_line[source]

    def _check(self, mac: bytes, user: str, password: str, source: str) -> Identity:
        """The broker's word for these credentials, for a caller in line. Raises: PlaneError UNAUTHENTICATED, BUSY, UNAVAILABLE."""
        try:
            admitted = self._checks.acquire(timeout=self._limits.flight_wait_ms / 1000)
        finally:
            self._leave_line(source)
        if not admitted:
            raise self._too_many()
        try:
            known = self._vault.find(mac)  # a check of the same credentials ended a moment ago
            if known is not None:
                return known
            try:
                answer, _ = self._link.call("auth", None, {"user": user, "password": password, "source": source})
            except PlaneError as error:
                if error.code not in (UNAUTHENTICATED, FORBIDDEN, BAD_ARGUMENT):
                    raise
                log.debug("login refused for user %.80r at %s", user, source)  # the broker's audit has a line, bounded by user
                raise PlaneError(UNAUTHENTICATED, REFUSED) from None
            identity = _identity(answer)
        finally:
            self._checks.release()
        self._vault.remember(mac, identity)
        return identity


class _Check:
    """One check of credentials, for all who bring the same ones meanwhile."""

    __slots__ = ("done", "error", "identity")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.identity: Identity | None = None
        self.error: BaseException | None = None

    def answer(self) -> Identity:
        """Of a check that is done. Raises: PlaneError, as the one who asked got it."""
        if self.identity is not None:
            return self.identity
        code, text = (
            (self.error.code, self.error.text) if isinstance(self.error, PlaneError) else (UNAVAILABLE, "the login was not checked")
        )
        raise PlaneError(code, text)


class NoHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Flight answers a handshake only with a handler; what it asks is done by the Gate, whose reply header carries the token."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Nothing to exchange."""

    def is_valid(self, token: Any) -> bytes:
        return b""


def _identity(answer: Mapping[str, Any]) -> Identity:
    """Whom the broker let in: its name may be another one than the client said, a token's or the directory's spelling."""
    token, outside = answer.get("token"), answer.get("outside")
    return Identity(
        str(answer["user"]),
        bool(answer.get("loopback_only", True)),
        token if isinstance(token, str) else None,
        outside if isinstance(outside, str) else "",
    )


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer; all of the name where there is none."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer[:SOURCE_MAX]
    return address.rpartition(":")[0].strip("[]")[:SOURCE_MAX]


def from_this_machine(peer: str) -> bool:
    """Whether gRPC's name of a peer (`ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`, `unix:`) is this machine."""
    from flintmq.access.users import is_loopback

    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind == "unix"
    host = address.rpartition(":")[0].strip("[]")
    return bool(host) and is_loopback(host)


def _one(headers: Mapping[str, list[Any]], name: str, most: int) -> str:
    """The one value of a header, "" without; most: characters. Raises: PlaneError UNAUTHENTICATED."""
    values = headers.get(name) or [""]
    value = values[0]
    if len(values) > 1 or not isinstance(value, str) or len(value) > most:
        raise PlaneError(UNAUTHENTICATED, f"header {name} must be given once, with at most {most} characters")
    return value


def _basic(value: str) -> tuple[str, str]:
    try:
        user, colon, password = base64.b64decode(value.encode("ascii"), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        raise PlaneError(UNAUTHENTICATED, REFUSED) from None
    if not colon:
        raise PlaneError(UNAUTHENTICATED, REFUSED)
    return user, password
