"""The exchange that remembers its last messages and gives them to each new binding (x-recent-history).

in: messages on their way. out: all destinations, as a fanout exchange; what it remembers (`kept`), oldest first. A publish is remembered by
the message path (recent.py, by routes that broker/routes plans with a Plan), any other message by `match`.

K1  At most `x-recent-history-length` messages (20 unless asked for) and Limits.history_bytes_max bytes of one exchange, and
    Limits.kept_bytes_max of all exchanges of a virtual host, are remembered: the oldest of this exchange go first, and a message for which
    that makes no room is not remembered. A user who has all that one user may have there (routing/kept.py) pushes out own messages only.
    Nothing is remembered over a restart, as on RabbitMQ.
K2  A message is remembered once, when it is routed, unless its header x-recent-history-no-store is true.
Source: names, arguments and texts of RabbitMQ's plugin rabbitmq_recent_history_exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.binding import Destination
from flintmq.routing.exchange import FanoutExchange, Headers, erlang_term
from flintmq.routing.kept import Kept
from flintmq.routing.message import Content, MessageHeaders, Plan
from flintmq.routing.recent import Recent

LENGTH = "x-recent-history-length"
LENGTH_DEFAULT = 20


class RecentHistoryExchange(FanoutExchange):
    """See the module."""

    kind = "x-recent-history"
    remembers = True
    __slots__ = ("_kept", "_length", "_recent")

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        asked = self.arguments.get(LENGTH, LENGTH_DEFAULT)
        self._length: int = asked if type(asked) is int and asked > 0 else LENGTH_DEFAULT
        self.limit(Limits())

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        asked = arguments.get(LENGTH, LENGTH_DEFAULT)
        if type(asked) is not int or asked < 1:
            shown = f'<<"{asked}">>' if isinstance(asked, str) else erlang_term(asked)[1]
            text = f"Invalid argument {shown}, '{LENGTH}' must be a positive integer"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)

    def limit(self, limits: Limits, total: Kept | None = None) -> None:
        self._kept = Kept() if total is None else total
        self._recent = Recent(min(self._length, limits.history_messages_max), limits, self._kept)

    def match(self, routing_key: bytes, headers: Headers | None) -> Collection[Destination]:
        if isinstance(headers, Plan):
            headers.recents.append(self._recent)
        elif isinstance(headers, MessageHeaders) and headers.content is not None and not headers.is_replay and self not in headers.decided:
            headers.decided[self] = True
            self._recent.keep(headers.content(), None if headers.user is None else self._kept.user(headers.user))
        return self._all

    def kept(self) -> list[Content]:
        """What it remembers, oldest first."""
        return self._recent.messages()

    @property
    def kept_bytes(self) -> int:
        """Of memory."""
        return self._recent.held

    def forget_some(self) -> bool:
        self._recent.close()
        return True
