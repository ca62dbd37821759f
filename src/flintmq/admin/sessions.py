"""Sessions of the console: one login lasts over reloads and new tabs, by a cookie that the browser keeps and no script reads.

in: a user that has logged in; later the cookie of its browser. out: the Caller that logged in, or nobody. For one event loop.

C1  A token is 256 random bits of this broker, never one of the client: a login makes a new one and ends the one that it came with, so no
    session can be fixed. The broker keeps the SHA-256 of it alone, and looks it up by that: neither the time of a look-up nor a copy of the
    memory shows a token. It is in no log, no error, no body.
C2  A cookie counts with the header X-FlintMQ-Console alone (auth.W1, W2 hold besides). A form, image or link of another site can't send a
    header of its own, and a script of another origin has to ask first (CORS preflight), which nobody here answers: SameSite=Strict, Host,
    Origin and Sec-Fetch-Site are three further walls before it. A request with the header goes by its session alone: never by credentials
    that the browser remembers. Only the login itself reads Authorization. Programs don't send the header, and for them nothing is changed.
C3  The rights of a request are those of the user at that moment. A user that is deleted, made anew, or has another password, and a token
    (OAuth 2) that is over, end their sessions at once; so do an idle time, a life, a logout, and the broker's stop: nothing is on disk.
C4  At most Limits.http_sessions_max, of one user http_sessions_user_max; one more ends the one that was used least lately, of that user, or
    of all. Only a login that was let in makes one, so a flood of wrong passwords keeps nothing. Each operation is O(1) but for the sessions
    of one user.
C5  Under TLS the cookie has the prefix __Host- and is Secure. Cookies have no port: another HTTP service on the host name gets it, too.
    Its name has this broker's port, so that two brokers of one host do not end each other's sessions.
    In a cluster a session is of the node that made it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from itertools import islice
from typing import Any

from flintmq.access.outside_user import OutsideUser
from flintmq.access.token_user import TokenUser
from flintmq.config import Limits

# the console's own header: "1", or the percent-encoded user that the page shows. A page never acts for the user of another tab
HEADER = "x-flintmq-console"
PATH = "/api/v1/session"
# in place of Basic, at which a browser would open a login window of its own
CHALLENGE = {"www-authenticate": 'FlintMQ-Session realm="FlintMQ"'}
_TOKEN_BYTES = 32
# characters of a token as it is sent; a longer text is none
_TOKEN_CHARACTERS = 43
# cookies of one request that are looked at; the browser may send those of other services of this host
_COOKIES_MAX = 100
# sessions that are over and that one login takes out of the memory, about 1 us each: the event loop serves others meanwhile
_SWEEP_MAX = 64


class Session:
    """One login. Args: caller: as it logged in; clock; idle_ms: the time without a request that ends it. Times: monotonic, milliseconds."""

    __slots__ = ("_clock", "_idle_ms", "caller", "closed", "ends_ms", "used_ms")

    def __init__(self, caller: Any, clock: Any, life_ms: int, idle_ms: int) -> None:
        self.caller = caller
        self._clock = clock
        self._idle_ms = idle_ms
        self.used_ms = self._now_ms()
        self.ends_ms = self.used_ms + life_ms
        self.closed = False

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or its life or its idle time has passed: a stream of events asks, too."""
        now = self._now_ms()
        return self.closed or now >= self.ends_ms or now - self.used_ms >= self._idle_ms

    def touch(self) -> None:
        """A request came with it."""
        self.used_ms = self._now_ms()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_ns() // 1_000_000)


class Sessions:
    """See module. Args: broker: of this node."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._limits: Limits = broker.limits
        self._all: OrderedDict[bytes, Session] = OrderedDict()  # the one that was used least lately first
        self._users: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def open(self, caller: Any, before: str | None = None) -> tuple[str, int]:
        """A new session of a caller that has logged in. Args: before: the token that its browser had; its session ends.

        Returns: the token, and the milliseconds that it lasts.
        """
        self.close(before)
        limits = self._limits
        self._sweep()
        own = self._users.setdefault(caller.user, {})
        if len(own) >= limits.http_sessions_user_max:
            self._drop(min(own, key=lambda key: self._all[key].used_ms))
        if len(self._all) >= limits.http_sessions_max:
            self._drop(next(iter(self._all)))
        life_ms = limits.http_session_ms
        if isinstance(caller.user, OutsideUser) and not isinstance(caller.user, TokenUser):
            life_ms = min(life_ms, limits.http_session_outside_ms)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        key = _key(token)
        self._all[key] = Session(caller, self._broker.clock, life_ms, limits.http_session_idle_ms)
        self._users.setdefault(caller.user, {})[key] = None
        return token, life_ms

    def find(self, token: str | None) -> Session | None:
        """The session of a token, used now; None: there is none, or no more."""
        key = _key(token)
        session = self._all.get(key)
        if session is None:
            return None
        if session.is_over or not session.caller.is_current:
            self._drop(key)
            return None
        session.touch()
        self._all.move_to_end(key)
        return session

    def close(self, token: str | None) -> None:
        """A logout. Another one is no error."""
        key = _key(token)
        if key in self._all:
            self._drop(key)

    def _sweep(self) -> None:
        """Those that are idle stand in front: a login takes out more than it adds."""
        for key, session in list(islice(self._all.items(), _SWEEP_MAX)):
            if not session.is_over:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        session = self._all.pop(key)
        session.closed = True
        own = self._users.get(session.caller.user)
        if own is not None:
            own.pop(key, None)
            if not own:
                del self._users[session.caller.user]


def _key(token: str | None) -> bytes:
    return hashlib.sha256((token or "").encode("latin-1", "replace")).digest() if token and len(token) <= _TOKEN_CHARACTERS else b""


# --- the cookie -----------------------------------------------------------------------------------------------------------------------


def cookie_name(scope: Any) -> str:
    """C5. Args: scope: of ASGI, with a Host that was checked (auth.W1)."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    _, colon, port = host.rpartition(":")
    secure = scope["scheme"] == "https"
    if not colon or not port.isdigit():
        port = "443" if secure else "80"
    return f"{'__Host-' if secure else ''}FlintMQ-Session-{port}"


def token_of(scope: Any) -> str | None:
    """The token that the browser sent, of whatever session. None: none."""
    name = cookie_name(scope)
    values = [value.decode("latin-1") for header, value in scope["headers"] if header == b"cookie"]
    for part in "; ".join(values).split("; ", _COOKIES_MAX)[:_COOKIES_MAX]:
        key, _, value = part.partition("=")
        if key.strip() == name:
            return value.strip()
    return None


def cookie(scope: Any, token: str, life_ms: int) -> str:
    """The value of Set-Cookie. Args: token: "": the cookie ends."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    return f"{cookie_name(scope)}={token}; Path=/; Max-Age={life_ms // 1000 if token else 0}; HttpOnly; SameSite=Strict{secure}"
