"""Logins by token (OAuth 2, JWT), as rabbitmq_auth_backend_oauth2 has them: the token is the password.

in: a token and where it came from. out: a TokenUser, or why there is none.

O1  A token is checked in a line of its own (access.checks): bounded, fair by source, slowed by source after failures. A verified token
    is remembered under a keyed MAC until it is over, Limits.credential_cache_ms at most; no token is kept.
O2  The key decides the algorithm, and the operator's list bounds it (oauth_keys.K2); `none` is in neither.
O3  The token must name this broker in `aud`, its issuer when one is configured, and its end. A name that a user of the broker has is
    refused: nobody is two users.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jwt

from flintmq.access.checks import Check, Checks, source_of
from flintmq.access.oauth_keys import ALGORITHMS, KeySet
from flintmq.access.secret import Secret
from flintmq.access.throttle import Throttle
from flintmq.access.token_user import TokenUser
from flintmq.arguments import is_number
from flintmq.clock import Clock
from flintmq.config import Config, Limits
from flintmq.errors import OperatorError

log = logging.getLogger("flintmq.access")

# a user; a reason why not; None: too many wait
TokenAnswer = Callable[[TokenUser | str | None], None]
# claims that say no name, as they would be another's or nobody's
_NO_NAME = ""
# seconds since 1970 that a claim may say (the year 9999)
_TIME_MAX = 253_402_300_800
_UNCHECKED = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False, "verify_jti": False}


class BadToken(Exception):
    """The token lets nobody in. `str` is for the log."""


def scope_texts(claims: Mapping[str, Any], config: Config) -> list[str]:
    """The scopes of a token that are meant for this broker, without their prefix."""
    prefix = config.oauth_scope_prefix
    if prefix is None:
        prefix = f"{config.oauth_resource_server_id}."
    texts = [*_texts(claims.get("scope"), config)]
    for claim in config.oauth_scopes_claims:
        texts += _texts(claims.get(claim), config)
    return [text[len(prefix) :] for text in texts if text.startswith(prefix)]


def _texts(value: Any, config: Config) -> Iterable[str]:
    """Words of a text, texts of a list; of an object, those of this broker's member."""
    if isinstance(value, dict):
        value = value.get(config.oauth_resource_server_id or "")
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else ()


class OAuth:
    """Args: config: its oauth_* fields; clock; is_user: whether a user of the broker has this name. Raises: OperatorError (78)."""

    def __init__(self, config: Config, clock: Clock, is_user: Callable[[str], bool]) -> None:
        unknown = [name for name in config.oauth_algorithms if name not in ALGORITHMS]
        if unknown:
            raise OperatorError(f"--oauth-algorithm {unknown[0]}: it is one of {', '.join(ALGORITHMS)}")
        if not config.oauth_jwks:
            raise OperatorError("--oauth-resource-server-id needs --oauth-jwks: the keys that tokens are signed with")
        self._config = config
        self._clock = clock
        self._limits: Limits = config.limits
        self._is_user = is_user
        self.keys = KeySet(config.oauth_jwks, config.oauth_ca, clock, config.limits)
        self.throttle = Throttle(clock, config.limits)
        self.checks = Checks(lambda label, token: self.check(token), lambda label, token: self._known(token), clock, config.limits)
        self._mac_key = os.urandom(32)
        self._lock = threading.Lock()
        self._verified: OrderedDict[bytes, tuple[TokenUser, int]] = OrderedDict()  # MAC -> user, end of validity (wall ms)
        self._reasons: OrderedDict[bytes, str] = OrderedDict()  # of the last failures, until they are told

    def start(self) -> None:
        self.keys.start()

    def close(self) -> None:
        self.checks.close()
        self.keys.stop()

    def cached(self, token: Secret | str) -> TokenUser | None:
        """The user of a token that was verified lately. Fast, any thread."""
        mac = self._mac(token)
        with self._lock:
            user, until_ms = self._verified.get(mac, (None, 0))
            if user is None or self._clock.wall_ms() >= until_ms:
                self._verified.pop(mac, None)
                return None
            self._verified.move_to_end(mac)
        return None if self._is_user(str(user)) else user

    def submit(self, token: Secret | str, source: str, answer: TokenAnswer) -> Check:
        """Checks when its turn comes. Cancel what is returned when the caller leaves. Raises: RuntimeError after `close`."""
        where, mac = source_of(source), self._mac(token)
        label = f"token {mac[:8].hex()}"

        def answered(good: bool | None) -> None:
            if good is None:
                answer(None)
                return
            user = self.cached(token) if good else None
            (self.throttle.failed if user is None else self.throttle.passed)(label, where)
            with self._lock:
                reason = self._reasons.pop(mac, "the token was refused")
            answer(reason if user is None else user)

        if self.throttle.refuses(label, where):
            answer(None)
            return Check(self.checks, where, answered)
        return self.checks.submit(label, token, mac, where, answered)

    def check(self, token: Secret | str) -> bool:
        """The check itself, in this thread: half a millisecond or so."""
        mac = self._mac(token)
        try:
            user = self.verify(token)
        except BadToken as error:
            with self._lock:
                self._reasons[mac] = str(error)
                if len(self._reasons) > self._limits.password_waiting_max:
                    self._reasons.popitem(last=False)
            return False
        until_ms = min(user.expires_ms, self._clock.wall_ms() + self._limits.credential_cache_ms)
        with self._lock:
            self._verified[mac] = user, until_ms
            if len(self._verified) > self._limits.token_cache_max:
                self._verified.popitem(last=False)
        return True

    def verify(self, token: Secret | str) -> TokenUser:
        """Raises: BadToken."""
        if len(token) > self._limits.token_bytes_max:
            raise BadToken(f"the token has more than {self._limits.token_bytes_max} characters")
        try:
            claims = self._claims(str(token))
        except jwt.InvalidAudienceError:
            raise BadToken("the token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise BadToken("the token is of another issuer") from None
        except jwt.InvalidSignatureError:
            raise BadToken("the signature of the token is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BadToken(f"the token can't be read: {type(error).__name__}") from None
        now_ms = self._clock.wall_ms()
        expires_ms = _time_ms(claims, "exp")
        if expires_ms <= now_ms:
            raise BadToken("the token is expired")
        if "nbf" in claims and _time_ms(claims, "nbf") > now_ms + self._limits.token_leeway_s * 1000:
            raise BadToken("the token is not valid yet")
        name = next((claims[one] for one in self._config.oauth_username_claims if one in claims), _NO_NAME)
        if not isinstance(name, str) or not 1 <= len(name) <= self._limits.login_name_max or not name.isprintable():
            raise BadToken("the token has no user name in " + " or ".join(self._config.oauth_username_claims))
        if self._is_user(name):
            raise BadToken(f"a user of the broker is called {name!r}, too: a token is for others")
        return TokenUser(name, scope_texts(claims, self._config), expires_ms, self._clock)

    def _claims(self, token: str) -> dict[str, Any]:
        """What a token says, when its signature is right."""
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._config.oauth_algorithms:
            raise BadToken(f"the algorithm {str(algorithm)[:20]!r} is not accepted")
        if "crit" in header or "b64" in header:
            raise BadToken("the token has a critical extension")
        if key_id is not None and not isinstance(key_id, str):
            raise BadToken("the id of its key is no text")
        keys = [one for one in self.keys.find(key_id) if algorithm in one.algorithms]
        if not keys:
            raise BadToken(f"there is no key {str(key_id)[:80]!r} for {algorithm}; the keys are looked at anew")
        if key_id is None and len(keys) > 1:
            raise BadToken("the token does not say which of several keys it is signed with")
        config = self._config
        options: dict[str, Any] = {**_UNCHECKED, "verify_aud": config.oauth_verify_audience, "require": ["exp"]}
        audience = config.oauth_resource_server_id if config.oauth_verify_audience else None
        claims: dict[str, Any] = jwt.decode(
            token, keys[0].key, algorithms=[algorithm], audience=audience, issuer=config.oauth_issuer, options=options
        )
        return claims

    def _known(self, token: Secret | str) -> bool | None:
        return True if self.cached(token) is not None else None

    def _mac(self, token: Secret | str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), key=self._mac_key, digest_size=32, person=b"oauth-token").digest()


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value = claims[name]
    if not is_number(value) or not -_TIME_MAX < value < _TIME_MAX:
        raise BadToken(f"its {name} is no time")
    return int(value * 1000)
