"""The exchange that routes each value of a header once (x-message-deduplication).

in: messages on their way. out: all destinations, as a fanout exchange, or none when the value of `x-deduplication-header` was there before.
A publish is looked at by the message path (seen.py, by routes that broker/routes plans with a Plan), any other message by `match`.

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

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import Destination
from flintmq.routing.exchange import FanoutExchange, Headers
from flintmq.routing.kept import Kept
from flintmq.routing.message import MessageHeaders, Plan
from flintmq.routing.seen import Seen

HEADER, SIZE, TTL, PERSISTENCE = "x-deduplication-header", "x-cache-size", "x-cache-ttl", "x-cache-persistence"
_TTL_MS_MAX = 2**53


def _number(value: Any) -> int | None:
    """A whole number above 0, or a text that begins with one, as the plugin takes it."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 < value < _TTL_MS_MAX else None


class DeduplicationExchange(FanoutExchange):
    """See the module."""

    kind = "x-message-deduplication"
    remembers = decides = True
    __slots__ = ("_kept", "_seen", "_size", "_ttl_ms", "now_ns")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._size = _number(self.arguments.get(SIZE)) or 1
        self._ttl_ms = _number(self.arguments.get(TTL)) or 0
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
        self._kept = Kept() if total is None else total
        self._seen = Seen(min(self._size, limits.dedup_cache_max), self._ttl_ms, limits, self._kept)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if isinstance(headers, Plan):
            headers.seen = self._seen
            return self._all if headers.passes else ()
        if not isinstance(headers, MessageHeaders) or headers.content is None or headers.is_replay or HEADER not in headers:
            return self._all
        known = headers.decided.get(self)
        if known is None:
            user = None if headers.user is None else self._kept.user(headers.user)
            known, noted = self._seen.is_new(headers.content()[2], user, self.now_ns())
            headers.decided[self] = known
            if noted is not None:
                headers.undo.append(partial(self._seen.forget, noted))
        return self._all if known else ()

    @property
    def dropped(self) -> int:
        """Messages."""
        return self._seen.dropped

    @property
    def values(self) -> int:
        """That are remembered."""
        return self._seen.count

    def forget_some(self) -> bool:
        return self._seen.close()


def _refused(text: str) -> PeerError:
    return PeerError(ReplyCode.PRECONDITION_FAILED, text)
