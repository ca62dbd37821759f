"""Route caches of a node's exchanges: which queues a message goes to, as the routing tables of the virtual hosts say now.

in: exchanges and keys of publishes; changes of bindings, queues and exchanges. out: cores of queues; caches that forget what changed.

R1  Whoever computed a route compares `version` before and after: another object means that a change came between, and the route may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.queue.control import QueueHandle
from flintmq.routing.message import Plan, PlannedRoute
from flintmq.routing.route_cache import ROUTE_BY_CHANCE, ROUTE_BY_CONTENT, ROUTE_BY_MEMORY, RouteCache
from flintmq.vhost.walk import DecidedBy

if TYPE_CHECKING:
    from flintmq.vhost.virtual_host import VirtualHost

# length of a routing key -> what stands before it in a route by the default exchange: that exchange's empty name, and the length
_DEFAULT_ROUTES = tuple(bytes((0, size)) for size in range(256))
# the name that stands for a client's own replies (direct reply-to): a queue that nobody declares; and how hidden queues behind it begin
REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_PREFIX = b"amq.rabbitmq.reply-to."

# what decides a route -> arguments of RouteCache.set_cacheable
_KINDS = {
    DecidedBy.KEY: (True, 0),
    DecidedBy.HEADERS: (True, ROUTE_BY_CONTENT),
    DecidedBy.CHANCE: (True, ROUTE_BY_CHANCE),
    DecidedBy.MEMORY: (True, ROUTE_BY_MEMORY),
    DecidedBy.MESSAGE: (False, 0),
}


class Routes:
    """Any thread. Args: reply_queues: (virtual host, name) -> hidden queue of a direct reply-to."""

    def __init__(self, vhosts: Mapping[str, VirtualHost], reply_queues: Mapping[tuple[str, str], Any], limits: Limits) -> None:
        self._vhosts = vhosts
        self._reply_queues = reply_queues
        self._limits = limits
        self.version = object()
        # (virtual host, exchange) -> its cache
        self.caches: dict[tuple[str, str], RouteCache] = {}
        # the same -> those of its users whose keys are asked for: each has only routes whose keys that user may use, and its connections
        # keep it (session/publishing). Another name than the user's for each that a token or a directory made.
        self._of_users: dict[tuple[str, str], WeakValueDictionary[tuple[str, int], RouteCache]] = {}
        # called with the name of a virtual host whose routes changed; under its lock, and must not wait
        self.followers: list[Callable[[str], object]] = []

    def cache(self, vhost: Any, exchange_name: str) -> RouteCache:
        """The cache of an exchange, made when it is first published to. Raises: PeerError 530: the virtual host is deleted."""
        cache = self.caches.get((vhost.name, exchange_name))
        if vhost.deleted:  # another one may have its name by now
            raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {vhost.name} not found")
        if cache is None:
            fresh = RouteCache(exchange_name.encode("utf-8", "surrogateescape"), self._limits.route_cache_max)
            fresh.resolver = partial(self._resolve, vhost, exchange_name)
            fresh.deciding = partial(vhost.deciding_headers, exchange_name)
            cache = self.caches.setdefault((vhost.name, exchange_name), fresh)
            self._set_kind(vhost, exchange_name, cache, True)
        return cache

    def cache_of_user(self, vhost: Any, exchange_name: str, user: str) -> RouteCache:
        """The cache of an exchange for a user whose routing keys are asked for; the caller keeps it, and asks for each key that it puts.
        Raises: PeerError 530: the virtual host is deleted."""
        if vhost.deleted:
            raise PeerError(ReplyCode.NOT_ALLOWED, f"vhost {vhost.name} not found")
        caches = self._of_users.setdefault((vhost.name, exchange_name), WeakValueDictionary())
        name = (str(user), getattr(user, "born", 0))
        cache = caches.get(name)
        if cache is None:
            fresh = RouteCache(exchange_name.encode("utf-8", "surrogateescape"), self._limits.route_cache_max)
            fresh.deciding = partial(vhost.deciding_headers, exchange_name)
            cache = caches.setdefault(name, fresh)
            self._set_kind(vhost, exchange_name, cache, False)
        return cache

    def _set_kind(self, vhost: Any, exchange_name: str, cache: RouteCache, each_key: bool) -> None:
        version = None
        while version is not self.version:  # R1
            version = self.version
            cache.set_cacheable(*_KINDS[vhost.decided_by(exchange_name, each_key)])

    def _resolve(self, vhost: Any, exchange_name: str, key: bytes) -> list[Any] | None:
        return self.resolve(vhost, exchange_name, key, self.cache(vhost, exchange_name))

    def resolve(self, vhost: Any, exchange_name: str, key: bytes, cache: RouteCache) -> list[Any] | None:
        """What a cache keeps for a key: cores of queues, or one PlannedRoute, or None: headers decide. Raises: as `cores`."""
        if cache.how == ROUTE_BY_CONTENT:
            return None
        if cache.how == ROUTE_BY_CHANCE:
            return [queue.core for queue in vhost.candidates(exchange_name)]
        if cache.how == ROUTE_BY_MEMORY:
            return [self._planned(vhost, exchange_name, key)]
        return self.cores(vhost, exchange_name, key)

    def _planned(self, vhost: Any, exchange_name: str, key: bytes) -> PlannedRoute:
        plan, dropped = Plan(True), Plan(False)
        cores = self.cores(vhost, exchange_name, key, plan)
        other = None if plan.seen is None else PlannedRoute(self.cores(vhost, exchange_name, key, dropped), dropped, None)
        return PlannedRoute(cores, plan, other)

    def cores(self, vhost: Any, exchange_name: str, key: bytes, headers: Mapping[str, object] | None = None) -> list[QueueHandle]:
        """Cores of the queues that a message goes to. Raises: PeerError 404 no exchange, 406 more patterns than may be looked at."""
        if exchange_name == "":  # nothing else is bound to it, and it has no alternate
            name = key.decode("utf-8", "surrogateescape")
            queue = vhost.queues.get(name)
            if key.startswith(REPLY_PREFIX):
                queue = self._reply_queues.get((vhost.name, name))
            return [] if queue is None else [queue.core]
        return [queue.core for queue in vhost.route(exchange_name, key, headers)]

    def learn(self, vhost: Any, exchange_name: str, key: bytes) -> RouteCache:
        """The cache of an exchange, with the route of a key in it if it may be kept. Raises: as `cores`, and as `cache`."""
        cache = self.cache(vhost, exchange_name)
        name = exchange_name.encode("utf-8", "surrogateescape")
        route = bytes((len(name),)) + name + bytes((len(key),)) + key
        version = None
        while version is not self.version and cache.usable and not cache.knows(route):  # R1
            version = self.version
            cache.keep(route, self.resolve(vhost, exchange_name, key, cache))
            if version is not self.version:
                cache.forget(route)
        return cache

    def cores_of_keys(
        self, vhost: Any, exchange_name: str, keys: Iterable[bytes], headers: Mapping[str, object] | None
    ) -> list[QueueHandle]:
        """The same for several keys (CC, BCC), each queue once. An alternate exchange is asked when none of them leads anywhere."""
        cores: dict[QueueHandle, None] = {}
        others = list(keys)
        replies = [key for key in others if key.startswith(REPLY_PREFIX)] if exchange_name == "" else []
        for key in replies:
            cores.update(dict.fromkeys(self.cores(vhost, exchange_name, key, headers)))
        if replies:
            others = [key for key in others if key not in replies]
        if others:
            cores.update(dict.fromkeys(queue.core for queue in vhost.route_keys(exchange_name, others, headers)))
        return list(cores)

    def forget_all(self) -> None:
        """Every route is computed anew when it is next asked for: memory is short."""
        for cache in [*self.caches.values(), *(cache for key in list(self._of_users) for cache in self._users_of(key))]:
            cache.clear()

    def rights_changed(self) -> None:
        """Users or permissions changed: no route of a user is known to be one that it may use. Any thread."""
        self.version = object()
        for key in list(self._of_users):
            self._close_users(key)

    def _users_of(self, key: tuple[str, str]) -> list[RouteCache]:
        caches = self._of_users.get(key)
        return [] if caches is None else [cache for known in caches.valuerefs() if (cache := known()) is not None]

    def _close_users(self, key: tuple[str, str]) -> None:
        closed = self._users_of(key)
        self._of_users.pop(key, None)
        for cache in closed:
            cache.close()

    # --- changes, under the lock of the virtual host ------------------------------------------------------------------

    def _changed(self, vhost_name: str) -> None:
        self.version = object()
        for follower in self.followers:
            follower(vhost_name)

    def exchange_changed(self, vhost: VirtualHost, exchange_name: str) -> None:
        """A binding or the alternate of an exchange changed."""
        self._changed(vhost.name)
        cache = self.caches.get((vhost.name, exchange_name))
        if cache is not None:
            cache.clear()
            if exchange_name in vhost.exchanges:
                cache.set_cacheable(*_KINDS[vhost.decided_by(exchange_name)])
        if self._of_users:
            self._close_users((vhost.name, exchange_name))

    def exchange_deleted(self, vhost_name: str, exchange_name: str) -> None:
        """An exchange is gone."""
        self._changed(vhost_name)
        self._close_users((vhost_name, exchange_name))
        cache = self.caches.pop((vhost_name, exchange_name), None)
        if cache is not None:
            cache.close()

    def queue_changed(self, vhost_name: str, queue_name: str) -> None:
        """A queue came or went: its route by the default exchange is another one."""
        self._changed(vhost_name)
        cache = self.caches.get((vhost_name, ""))
        if cache is not None:
            key = queue_name.encode("utf-8", "surrogateescape")
            cache.forget(_DEFAULT_ROUTES[len(key)] + key)
