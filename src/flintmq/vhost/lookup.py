"""Where messages go: the questions that a virtual host answers about its routes.

in: an exchange, routing keys, headers. out: queues; what decides a route, for caches (broker/routes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from flintmq.routing.deciding import Deciding
from flintmq.routing.exchange import Exchange, Headers
from flintmq.routing.spread import RandomExchange
from flintmq.vhost import walk
from flintmq.vhost.queue import Queue
from flintmq.vhost.walk import DecidedBy


class Lookup:
    """The part of VirtualHost. Any thread: each question is answered under its lock."""

    exchanges: dict[str, Exchange]
    exchange: Callable[[str], Exchange]
    keyed: set[str]
    _lock: AbstractContextManager[object]

    def route(self, exchange_name: str, routing_key: bytes, headers: Headers | None = None) -> list[Queue]:
        """Queues that a message goes to: distinct, exchange-to-exchange bindings and alternates followed.

        An exchange whose bindings match nothing hands over to its alternate exchange, if that exists. Raises: PeerError 404.
        """
        with self._lock:
            return walk.queues_of(self.exchanges, self.exchange(exchange_name), (routing_key,), headers)

    def route_keys(self, exchange_name: str, routing_keys: Iterable[bytes], headers: Headers | None = None) -> list[Queue]:
        """`route` for several keys (CC, BCC): each queue once. The alternate is asked only when no key matched anything."""
        with self._lock:
            return walk.queues_of(self.exchanges, self.exchange(exchange_name), tuple(routing_keys), headers)

    def route_is_cacheable(self, exchange_name: str) -> bool:
        """Whether (exchange, routing key) alone decides the route: no headers exchange can be reached. Raises: PeerError 404."""
        return self.decided_by(exchange_name) is DecidedBy.KEY

    def decided_by(self, exchange_name: str, each_key: bool = True) -> DecidedBy:
        """What decides a message's route. each_key False: for a user whose keys were asked for. Raises: PeerError 404."""
        with self._lock:
            first = self.exchange(exchange_name)
            if each_key and first.name in self.keyed and first.kind == "topic" and not first.internal:  # each is asked for
                return DecidedBy.MESSAGE
            return walk.decided_by(self.exchanges, first)

    def deciding_headers(self, exchange_name: str) -> Deciding | None:
        """The headers that decide the routes of an exchange; None: too many, or it is gone."""
        with self._lock:
            first = self.exchanges.get(exchange_name)
            return None if first is None else walk.deciding(self.exchanges, first)

    def candidates(self, exchange_name: str) -> list[Queue]:
        """The queues of which an exchange of DecidedBy.CHANCE chooses one. Raises: PeerError 404."""
        with self._lock:
            exchange = self.exchange(exchange_name)
            return [one for one in exchange.candidates if isinstance(one, Queue)] if isinstance(exchange, RandomExchange) else []
