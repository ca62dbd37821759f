"""The way of a message over exchanges: exchange-to-exchange bindings and alternates followed, each exchange visited once.

in: the exchanges of a virtual host, the first one, routing keys, headers. out: queues, each once. The caller holds the virtual host's lock.

K1  A message may bring thousands of routing keys (CC, BCC; Limits.message_keys_max). An exchange that does not look at keys is asked once,
    others once for each different key; what all keys take in topic exchanges has a limit (Limits.topic_message_steps_max).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.routing.deciding import Deciding
from flintmq.routing.exchange import Exchange, Headers
from flintmq.vhost.queue import Queue

_STEPS_MAX = Limits().topic_message_steps_max
_DECIDING_MAX = Limits().deciding_headers_max
_TOO_MANY = f"{{}} routing keys of one message take more than {_STEPS_MAX} steps to match with the patterns of exchange '{{}}': send fewer"


def queues_of(exchanges: Mapping[str, Exchange], first: Exchange, routing_keys: tuple[bytes, ...], headers: Headers | None) -> list[Queue]:
    """Queues that a message goes to. The alternate of an exchange is asked when none of the keys matched anything."""
    if not first.downstream and first.alternate is None and len(routing_keys) == 1:
        queues_alone: Iterable[Any] = first.match(routing_keys[0], headers)  # nothing else is bound to it, and each is there once
        return list(queues_alone)
    queues: dict[Queue, None] = {}
    routing_keys = tuple(dict.fromkeys(routing_keys))
    steps = 0
    seen = {first}
    pending = [first]
    while pending:
        exchange = pending.pop()
        matched = False
        for key in routing_keys[:1] if exchange.keyless else routing_keys:
            destinations = exchange.match(key, headers)
            steps += exchange.match_steps
            if steps > _STEPS_MAX:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, _TOO_MANY.format(len(routing_keys), exchange.name))
            for destination in destinations:
                matched = True
                if isinstance(destination, Queue):
                    queues[destination] = None
                elif isinstance(destination, Exchange) and destination not in seen:
                    seen.add(destination)
                    pending.append(destination)
        if not matched and exchange.alternate is not None:
            alternate = exchanges.get(exchange.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                pending.append(alternate)
    return list(queues)


class DecidedBy(enum.Enum):
    """What decides the route of a message, beside its exchange."""

    KEY = 0
    HEADERS = 1  # its key and some of its headers (`deciding`)
    CHANCE = 2  # one of the queues of its exchange (RandomExchange.candidates)
    MESSAGE = 3  # all of it
    MEMORY = 4  # its key, and what its exchanges remember of earlier messages


def reachable(exchanges: Mapping[str, Exchange], first: Exchange) -> Iterator[Exchange]:
    """All exchanges that a message may come to, each once."""
    yield first
    if not first.downstream and first.alternate is None:
        return
    seen = {first}
    pending = [first]
    while pending:
        exchange = pending.pop()
        following = set(exchange.downstream)
        alternate = exchanges.get(exchange.alternate) if exchange.alternate is not None else None
        if alternate is not None:
            following.add(alternate)
        for target in following - seen:
            yield target
            seen.add(target)
            pending.append(target)


def decided_by(exchanges: Mapping[str, Exchange], first: Exchange) -> DecidedBy:
    """What the kinds of all exchanges say that a message may come to. O(these)."""
    if first.by_chance and first.bindings and not first.downstream:
        return DecidedBy.CHANCE
    by = DecidedBy.KEY
    remembers, decide = False, 0
    for exchange in reachable(exchanges, first):
        remembers = remembers or exchange.remembers
        decide += exchange.decides
        if exchange.needs_headers:
            if not exchange.by_headers:
                return DecidedBy.MESSAGE
            by = DecidedBy.HEADERS
    if remembers:
        return DecidedBy.MEMORY if by is DecidedBy.KEY and decide < 2 else DecidedBy.MESSAGE
    return by


def deciding(exchanges: Mapping[str, Exchange], first: Exchange) -> Deciding | None:
    """The headers that decide (DecidedBy.HEADERS). None: more than are worth it."""
    headers = Deciding(_DECIDING_MAX)
    for exchange in reachable(exchanges, first):
        exchange.deciding(headers)
        if headers.too_many:
            return None
    return headers
