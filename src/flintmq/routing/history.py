"""The exchange that remembers its last messages and gives them to each new binding (x-recent-history).

in: messages on their way. out: all destinations, as a fanout exchange; what it remembers (`kept`), oldest first.

K1  At most `x-recent-history-length` messages (20 unless asked for) and Limits.history_bytes_max bytes of one exchange, and
    Limits.kept_bytes_max of all exchanges of a virtual host, are remembered: the oldest of this exchange go first, and a message for which
    that makes no room is not remembered. A user who has all that one user may have there (routing/kept.py) pushes out own messages only.
    Nothing is remembered over a restart, as on RabbitMQ.
K2  A message is remembered once, when it is routed, unless its header x-recent-history-no-store is true.
Source: names, arguments and texts of RabbitMQ's plugin rabbitmq_recent_history_exchange.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.core.memory_account import MemoryShare
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import Destination
from flintmq.routing.exchange import FanoutExchange, Headers, erlang_term
from flintmq.routing.kept import Kept
from flintmq.routing.message import Content, MessageHeaders

LENGTH = "x-recent-history-length"
NO_STORE = "x-recent-history-no-store"
LENGTH_DEFAULT = 20
# bytes of memory that a message takes beside its octets
_CONTENT_BYTES = 320


class RecentHistoryExchange(FanoutExchange):
    """See the module."""

    kind = "x-recent-history"
    __slots__ = ("_bytes_max", "_kept", "_length", "_limits", "_share", "_total")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.needs_headers = True  # each message is looked at
        asked = self.arguments.get(LENGTH, LENGTH_DEFAULT)
        self._length: int = asked if type(asked) is int and asked > 0 else LENGTH_DEFAULT
        self._kept: collections.deque[tuple[Content, int, object]] = collections.deque()
        self.limit(Limits())

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        asked = arguments.get(LENGTH, LENGTH_DEFAULT)
        if type(asked) is not int or asked < 1:
            shown = f'<<"{asked}">>' if isinstance(asked, str) else erlang_term(asked)[1]
            text = f"Invalid argument {shown}, '{LENGTH}' must be a positive integer"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)

    def limit(self, limits: Limits, total: Kept | None = None) -> None:
        self._length = min(self._length, limits.history_messages_max)
        self._bytes_max = limits.history_bytes_max
        self._limits = limits
        self._total = Kept() if total is None else total
        self._share = MemoryShare("definitions", self._total)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if isinstance(headers, MessageHeaders) and headers.content is not None and not headers.is_replay and self not in headers.decided:
            headers.decided[self] = True
            if headers.get(NO_STORE) is not True:
                self._keep(headers.content(), headers.user)
        return self._all

    def kept(self) -> list[Content]:
        """What it remembers, oldest first."""
        return [content for content, _, _ in self._kept]

    @property
    def kept_bytes(self) -> int:
        """Of memory."""
        return self._share.held

    def forget(self) -> None:
        while self._kept:
            self._drop_oldest()
        self._length = 0

    def _keep(self, content: Content, user: object) -> None:
        size = _CONTENT_BYTES + sum(map(len, content))
        while not self._total.lets(user, size, self._limits):
            if not self._kept or self._kept[0][2] != user:
                return
            self._drop_oldest()
        while self._kept and (len(self._kept) >= self._length or not self._has_room(size)):
            self._drop_oldest()
        if self._length and self._has_room(size):
            self._kept.append((content, size, user))
            self._share.add(size)
            self._total.note(user, size)

    def _drop_oldest(self) -> None:
        _, size, user = self._kept.popleft()
        self._share.add(-size)
        self._total.note(user, -size)

    def _has_room(self, size: int) -> bool:
        if self._share.held + size > self._bytes_max:
            return False
        return self._total.has_room(size, self._limits)
