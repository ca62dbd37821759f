"""Every kind of exchange, by the name that clients give it.

in: nothing. out: EXCHANGE_KINDS.
"""

from __future__ import annotations

from flintmq.routing.deduplication import DeduplicationExchange
from flintmq.routing.delayed import BASES, DelayedMessageExchange
from flintmq.routing.exchange import DirectExchange, Exchange, FanoutExchange, HeadersExchange, TopicExchange
from flintmq.routing.history import RecentHistoryExchange
from flintmq.routing.spread import ConsistentHashExchange, LocalRandomExchange, ModulusHashExchange, RandomExchange

_KINDS: tuple[type[Exchange], ...] = (
    DirectExchange,
    FanoutExchange,
    TopicExchange,
    HeadersExchange,
    ConsistentHashExchange,
    ModulusHashExchange,
    RandomExchange,
    LocalRandomExchange,
    RecentHistoryExchange,
    DeduplicationExchange,
)
BASES.update({kind.kind: kind for kind in _KINDS})
EXCHANGE_KINDS: dict[str, type[Exchange]] = {**BASES, DelayedMessageExchange.kind: DelayedMessageExchange}
