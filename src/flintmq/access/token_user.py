"""A user whom a token names: what its scopes let it do, until it is over.

in: scopes of a verified token, without their prefix; a virtual host, a name, a routing key. out: patterns as those of access.permissions.

U1  A TokenUser is an OutsideUser: whoever decides asks the token.
U2  From the token's last millisecond on it may do nothing, whoever still holds it.
U3  Patterns have one wildcard, `*`, and are matched part by part with no way back: no text of a client makes that long.

Source: rabbit_oauth2_scope.erl and wildcard.erl of RabbitMQ (words of scopes; one without a routing key grants none of a topic exchange).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from flintmq.access.outside_user import OutsideUser
from flintmq.access.tags import TAGS
from flintmq.clock import Clock
from flintmq.ports import UserRecord

_VERBS = ("configure", "write", "read")
_TAG = "tag:"
_HEX = frozenset("0123456789abcdefABCDEF")
# virtual hosts whose patterns one token keeps
_KEPT = 16


def is_token(password: str) -> bool:
    """Whether a password looks like a token: three parts, the first of which begins like base64 of a JSON object."""
    return password.startswith("eyJ") and password.count(".") == 2


class Glob:
    """A pattern with wildcards; its parts are percent-encoded. Raises: ValueError for another encoding."""

    __slots__ = ("parts",)

    def __init__(self, text: str) -> None:
        self.parts = tuple(map(_decoded, text.split("*")))

    @property
    def is_any(self) -> bool:
        return len(self.parts) > 1 and not any(self.parts)

    def matches(self, subject: str) -> bool:
        """O(length of both)."""
        first, *others = self.parts
        if not others:
            return subject == first
        last = others.pop()
        if len(subject) < len(first) + len(last) or not subject.startswith(first) or not subject.endswith(last):
            return False
        offset, end = len(first), len(subject) - len(last)
        for part in others:
            offset = subject.find(part, offset, end)
            if offset < 0:
                return False
            offset += len(part)
        return True


def _decoded(part: str) -> str:
    for index, one in enumerate(part):
        if one == "%" and not (len(part) > index + 2 and part[index + 1] in _HEX and part[index + 2] in _HEX):
            raise ValueError(f"{part!r} is not percent-encoded")
    return unquote_to_bytes(part.replace("+", " ")).decode("utf-8", "surrogateescape")


class Scope(NamedTuple):
    """One permission. key: of topic exchanges; None: no routing key of any."""

    verb: str
    vhost: Glob
    name: Glob
    key: Glob | None


def parse_scopes(texts: Iterable[str]) -> tuple[list[Scope], tuple[str, ...]]:
    """Permissions and tags. Any other scope grants nothing."""
    scopes, tags = [], []
    for text in texts:
        if text.startswith(_TAG):
            tags.append(text[len(_TAG) :])
            continue
        verb, _, pattern = text.partition(":")
        parts = pattern.split("/")
        if verb not in _VERBS or len(parts) not in (2, 3):
            continue
        try:
            globs = [Glob(part) for part in parts]
        except ValueError:
            continue
        scopes.append(Scope(verb, globs[0], globs[1], globs[2] if len(globs) == 3 else None))
    return scopes, tuple(tag for tag in TAGS if tag in tags)


class Names:
    """The names that a verb is allowed for, in place of a regular expression."""

    __slots__ = ("_globs",)

    def __init__(self, globs: list[Glob]) -> None:
        self._globs = globs

    def __bool__(self) -> bool:
        return bool(self._globs)

    def has(self, name: str) -> bool:
        return any(one.matches(name) for one in self._globs)

    @property
    def is_any(self) -> bool:
        return any(one.is_any for one in self._globs)


class Rights:
    """What a token allows in one virtual host."""

    __slots__ = ("_names", "everything")

    def __init__(self, scopes: list[Scope]) -> None:
        self._names = {verb: Names([one.name for one in scopes if one.verb == verb]) for verb in _VERBS}
        self.everything = all(names.is_any for names in self._names.values())

    def allows(self, verb: str, kind: str, name: str) -> bool:
        return self._names[verb].has(name)

    def grants(self, verb: str) -> bool:
        return bool(self._names[verb])


class TokenUser(OutsideUser):
    """Args: name; scopes: of the token, without their prefix; expires_ms: wall clock."""

    __slots__ = ("_clock", "_rights", "_scopes", "expires_ms", "texts")

    def __new__(cls, name: str, scopes: Iterable[str], expires_ms: int, clock: Clock) -> TokenUser:
        made = super().__new__(cls, name)
        made.texts = frozenset(scopes)
        made._scopes, made.tags = parse_scopes(sorted(made.texts))
        made.expires_ms = expires_ms
        made.born = cls.birth()
        made._clock = clock
        made._rights = {}
        return made

    texts: frozenset[str]
    expires_ms: int
    _scopes: list[Scope]
    _clock: Clock
    _rights: dict[str, Rights | None]

    @property
    def is_over(self) -> bool:
        return self._clock.wall_ms() >= self.expires_ms

    def record(self) -> UserRecord | None:
        return None if self.is_over else super().record()

    def rights(self, vhost: str) -> Rights | None:
        if self.is_over:
            return None
        if vhost not in self._rights:
            if len(self._rights) >= _KEPT:
                self._rights.clear()
            here = [one for one in self._scopes if one.vhost.matches(vhost)]
            self._rights[vhost] = Rights(here) if here else None
        return self._rights[vhost]

    def may_topic(self, vhost: str, verb: str, exchange: str, key: str) -> bool:
        return not self.is_over and any(
            one.key is not None and one.verb == verb and one.vhost.matches(vhost) and one.name.matches(exchange) and one.key.matches(key)
            for one in self._scopes
        )

    def may_every_key(self, vhost: str, verb: str, exchange: str) -> bool:
        return any(
            one.key is not None and one.key.is_any and one.verb == verb and one.vhost.matches(vhost) and one.name.matches(exchange)
            for one in self._scopes
        )
