"""The exchange that routes each value of a header once (x-message-deduplication).

in: messages on their way. out: all destinations, as a fanout exchange, or none when the value of `x-deduplication-header` was there before.

D1  A value is remembered from the first message that has it until its time is over (`x-cache-ttl` of the message, else of the exchange, in
    milliseconds; none: no time) or `x-cache-size` later ones came; Limits.dedup_cache_max values of one exchange and
    Limits.kept_bytes_max of a virtual host at most: the oldest go first, and without room a message is routed and not remembered. A user
    who has all that one user may have there (routing/kept.py) pushes out own values only.
D2  A message that no queue took (no route, or refused) is forgotten again: its publisher may send it once more.
D3  Only messages that are published by themselves take part: those of a transaction or of a Spark stage, which may be taken back, pass.
D4  Nothing is remembered over a restart: `x-cache-persistence: disk` is refused.
Source: names, arguments and texts of noxdafox's rabbitmq-message-deduplication.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from flintmq.config import Limits
from flintmq.core.memory_account import MemoryShare
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import Destination
from flintmq.routing.exchange import FanoutExchange, Headers
from flintmq.routing.kept import Kept
from flintmq.routing.message import MessageHeaders
from flintmq.routing.spread import digest_of_value

HEADER, SIZE, TTL, PERSISTENCE = "x-deduplication-header", "x-cache-size", "x-cache-ttl", "x-cache-persistence"
# bytes of memory that a value takes: its digest, its time, their place
_VALUE_BYTES = 260
# of values at the old end that each new one looks at: two, so that what is over goes faster than new ones come
_LOOKED_AT = 2
# ... and that one of a user at the user's limit looks at for another one of that user
_OWN_LOOKED_AT = 32
_TTL_MS_MAX = 2**53


def _number(value: Any) -> int | None:
    """A whole number above 0, or a text that begins with one, as the plugin takes it."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 < value < _TTL_MS_MAX else None


class DeduplicationExchange(FanoutExchange):
    """See the module."""

    kind = "x-message-deduplication"
    __slots__ = ("_limits", "_seen", "_share", "_size", "_total", "_ttl_ms", "dropped", "now_ns")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.needs_headers = True
        self._size = _number(self.arguments.get(SIZE)) or 1
        self._ttl_ms = _number(self.arguments.get(TTL))
        # digest -> when it is over (0: never), and whose it is
        self._seen: collections.OrderedDict[bytes, tuple[int, object]] = collections.OrderedDict()
        self.dropped = 0  # messages
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self.limit(Limits())

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        if _number(arguments.get(SIZE)) is None:
            raise _refused(f"Missing or invalid argument, '{SIZE}' must be an integer greater than 0")
        if TTL in arguments and _number(arguments[TTL]) is None:
            raise _refused(f"Invalid argument, '{TTL}' must be an integer greater than 0")
        if arguments.get(PERSISTENCE, "memory") not in ("disk", "memory"):
            raise _refused(f"Invalid argument, '{PERSISTENCE}' must be either 'disk' or 'memory'")
        if arguments.get(PERSISTENCE) == "disk":
            raise _refused(f"'{PERSISTENCE}' 'disk' is not supported: values are remembered in memory, and not over a restart")

    def limit(self, limits: Limits, total: Kept | None = None) -> None:
        self._size = min(self._size, limits.dedup_cache_max)
        self._limits = limits
        self._total = Kept() if total is None else total
        self._share = MemoryShare("definitions", self._total)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if not isinstance(headers, MessageHeaders) or headers.content is None or headers.is_replay or HEADER not in headers:
            return self._all
        known = headers.decided.get(self)
        if known is None:
            known = headers.decided[self] = self._is_new(headers)
            self.dropped += not known
        return self._all if known else ()

    @property
    def values(self) -> int:
        """That are remembered."""
        return len(self._seen)

    def forget(self) -> None:
        for _, user in self._seen.values():
            self._total.note(user, -_VALUE_BYTES)
        self._seen.clear()
        self._size = 0
        self._share.add(-self._share.held)

    def _is_new(self, headers: MessageHeaders) -> bool:
        now = self.now_ns()
        digest = digest_of_value(headers[HEADER])
        known = self._seen.get(digest)
        if known is not None and (known[0] == 0 or now < known[0]):
            return False
        if known is not None:
            self._drop(digest)
        for oldest in list(itertools.islice(self._seen, _LOOKED_AT)):  # at once: what was refused goes without the lock
            if 0 < self._seen.get(oldest, (0, None))[0] <= now:
                self._drop(oldest)
        if not self._lets(headers.user):
            return True
        while self._seen and (len(self._seen) >= self._size or not self._has_room()):
            self._drop(next(iter(self._seen)))
        if self._size and self._has_room():
            ttl_ms = _number(headers.get(TTL)) or self._ttl_ms
            self._seen[digest] = (0 if ttl_ms is None else now + ttl_ms * 1_000_000), headers.user
            self._share.add(_VALUE_BYTES)
            self._total.note(headers.user, _VALUE_BYTES)
            headers.undo.append(partial(self._drop, digest))
        return True

    def _has_room(self) -> bool:
        return self._total.has_room(_VALUE_BYTES, self._limits)

    def _lets(self, user: object) -> bool:
        """Whether the user may have one more value; at the user's limit one of the user's oldest here makes room."""
        if not self._total.lets(user, _VALUE_BYTES, self._limits):
            for digest, (_, owner) in list(itertools.islice(self._seen.items(), _OWN_LOOKED_AT)):
                if owner == user:
                    self._drop(digest)
                    break
            return self._total.lets(user, _VALUE_BYTES, self._limits)
        return True

    def _drop(self, digest: bytes) -> None:
        known = self._seen.pop(digest, None)
        if known is not None:
            self._share.add(-_VALUE_BYTES)
            self._total.note(known[1], -_VALUE_BYTES)


def _refused(text: str) -> PeerError:
    return PeerError(ReplyCode.PRECONDITION_FAILED, text)
