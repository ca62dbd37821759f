"""The way of a message over exchanges: exchange-to-exchange bindings and alternates followed, each exchange visited once.

in: the exchanges of a virtual host, the first one, routing keys, headers. out: queues, each once. The caller holds the virtual host's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flintmq.routing.exchange import Exchange, Headers
from flintmq.vhost.queue import Queue


def queues_of(exchanges: Mapping[str, Exchange], first: Exchange, routing_keys: tuple[bytes, ...], headers: Headers | None) -> list[Queue]:
    """Queues that a message goes to. The alternate of an exchange is asked when none of the keys matched anything."""
    if not first.downstream and first.alternate is None and len(routing_keys) == 1:
        queues_alone: Iterable[Any] = first.match(routing_keys[0], headers)  # nothing else is bound to it, and each is there once
        return list(queues_alone)
    queues: dict[Queue, None] = {}
    seen = {first}
    pending = [first]
    while pending:
        exchange = pending.pop()
        matched = False
        for key in routing_keys:
            for destination in exchange.match(key, headers):
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


def is_decided_by_key(exchanges: Mapping[str, Exchange], first: Exchange) -> bool:
    """Whether (exchange, routing key) alone decides the route: no headers exchange can be reached."""
    if not first.downstream and first.alternate is None:
        return not first.needs_headers
    seen = {first}
    pending = [first]
    while pending:
        exchange = pending.pop()
        if exchange.needs_headers:
            return False
        following = set(exchange.downstream)
        alternate = exchanges.get(exchange.alternate) if exchange.alternate is not None else None
        if alternate is not None:
            following.add(alternate)
        for target in following - seen:
            seen.add(target)
            pending.append(target)
    return True
