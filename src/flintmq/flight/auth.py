"""Who calls: Basic credentials (checked by the broker, which knows the users) or the Bearer token of a Flight handshake.

in: headers of a call. out: an Identity that the call's handler asks for, or UNAUTHENTICATED before any handler runs.

A1  A password is held while its check runs and never after: what is remembered is a MAC under a key that exists only in this process,
    for `flight_auth_cache_ms`, and only of answers that were yes.
A2  All refusals say the same: not which part was wrong, nor whether the user exists.
A3  Checks are slow (argon2): at most two run at once and few wait, so strangers can't keep channels or places from those who are known.
A4  Tokens are made and read by the broker: nothing in this process, which reads what clients send, could make one. A token grants
    nothing: permissions are the broker's, asked at each call.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyarrow import flight

from flintmq.config import Limits
from flintmq.flight.errors import BAD_ARGUMENT, BUSY, FORBIDDEN, UNAUTHENTICATED, PlaneError, to_flight
from flintmq.flight.headers import VHOST_HEADER
from flintmq.flight.link import Caller, Link

log = logging.getLogger("flintmq.flight")

# name of the middleware
KEY = "flintmq"
MAC_BYTES = 32
REFUSED = "login was refused: user or password is wrong, or the token is too old"


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified user. loopback_only: may call from this machine only (RabbitMQ's loopback_users); token: the broker's, for a handshake."""

    user: str
    loopback_only: bool
    token: str | None = field(default=None, compare=False, repr=False)


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
        """What stands for the credentials in memory."""
        name = user.encode()
        return self._mac(len(name).to_bytes(4, "big") + name + password.encode(), b"credentials")

    def mac_of_token(self, token: str) -> bytes:
        """What stands for a token in memory."""
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

    def _mac(self, content: bytes, use: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=MAC_BYTES, person=use).digest()


class Session(flight.ServerMiddleware):  # type: ignore[misc]
    """One call. Attributes: identity, vhost."""

    def __init__(self, identity: Identity, vhost: str, token: str | None, done: Callable[[], None]) -> None:
        self.identity = identity
        self.vhost = vhost
        self._token = token
        self._done = done

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token is not None else {}

    def call_completed(self, exception: Any) -> None:
        self._done()

    def caller(self, peer: str) -> Caller:
        """Who the broker is told. Args: peer: of gRPC's context, `ipv4:127.0.0.1:50000`. Raises: PlaneError FORBIDDEN."""
        if self.identity.loopback_only and not from_this_machine(peer):
            raise PlaneError(FORBIDDEN, f"user '{self.identity.user}' can only connect via localhost")
        return Caller(self.identity.user, self.vhost)


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Verifies every call before its handler runs, and bounds how many run. Args: link; limits; vault: by default one of its own."""

    def __init__(self, link: Link, limits: Limits, vault: Vault | None = None) -> None:
        self._link = link
        self._limits = limits
        self._vault = vault or Vault(limits)
        self._checks = threading.BoundedSemaphore(min(limits.password_checks_max, max(1, link.size - 1)))
        self._lock = threading.Lock()
        self._running = 0
        self._in_line = 0

    @property
    def running(self) -> int:
        """Calls that run now."""
        return self._running

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> Session:
        try:
            self._enter()
            try:
                identity, basic = self._identify(headers)
                vhost = _one(headers, VHOST_HEADER, self._limits.flight_header_max) or "/"
                token = identity.token if basic and info.method == flight.FlightMethod.HANDSHAKE else None
                return Session(identity, unquote(vhost), token, self._leave)
            except BaseException:
                self._leave()
                raise
        except Exception as error:
            if not isinstance(error, PlaneError):
                log.exception("a call could not be verified")
            raise to_flight(error) from None

    def _enter(self) -> None:
        with self._lock:
            if self._running >= self._limits.flight_calls_max:
                raise PlaneError(BUSY, f"{self._running} calls run already")
            self._running += 1

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1

    def _identify(self, headers: Mapping[str, list[Any]]) -> tuple[Identity, bool]:
        """The caller, and whether it gave a password."""
        header = _one(headers, "authorization", self._limits.flight_header_max)
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "bearer":
            return self._holder(value.strip()), False
        if scheme.lower() != "basic":
            raise PlaneError(UNAUTHENTICATED, "user and password are missing (authorization: Basic, or Bearer of a handshake)")
        user, password = _basic(value.strip())
        mac = self._vault.mac(user, password)
        return self._vault.find(mac) or self._ask(mac, user, password), True

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
        identity = Identity(str(answer["user"]), bool(answer.get("loopback_only", True)))
        self._vault.remember(mac, identity)
        return identity

    def _ask(self, mac: bytes, user: str, password: str) -> Identity:
        with self._lock:
            if self._in_line >= self._limits.flight_waiting_max:
                raise PlaneError(BUSY, "too many logins at once")
            self._in_line += 1
        try:
            admitted = self._checks.acquire(timeout=self._limits.flight_wait_ms / 1000)
        finally:
            with self._lock:
                self._in_line -= 1
        if not admitted:
            raise PlaneError(BUSY, "too many logins at once")
        try:
            known = self._vault.find(mac)  # those who waited with the same credentials need no check of their own
            if known is not None:
                return known
            try:
                answer, _ = self._link.call("auth", None, {"user": user, "password": password})
            except PlaneError as error:
                if error.code not in (UNAUTHENTICATED, FORBIDDEN, BAD_ARGUMENT):
                    raise
                log.warning("login refused for user %r", user)
                raise PlaneError(UNAUTHENTICATED, REFUSED) from None
            token = answer.get("token")
            identity = Identity(user, bool(answer.get("loopback_only", True)), token if isinstance(token, str) else None)
        finally:
            self._checks.release()
        self._vault.remember(mac, identity)
        return identity


class NoHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Flight answers a handshake only with a handler; what it asks is done by the Gate, whose reply header carries the token."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Nothing to exchange."""

    def is_valid(self, token: Any) -> bytes:
        return b""


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
