"""The virtual host of connections of other nodes: the shared queues that this node owns, by their ids.

in: methods of the session that name a queue by its id; channels that are aimed at one. out: the queue in its own virtual host, or 404.

N1  Only a queue that this node owns is found. When it is lost (`forget`), channels that are aimed at it are closed: their node looks for
    the new owner. Its consumers are cancelled by whoever has it.
N2  What a method does to a queue, the queue's own virtual host does: there is no second implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flintmq.cluster.node_answers import EXCHANGE
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.routing.route_cache import RouteCache
from flintmq.vhost.names import describe

if TYPE_CHECKING:
    from flintmq.cluster.node_answers import Answering
    from flintmq.queue.control import QueueHandle
    from flintmq.vhost.changes import Verb
    from flintmq.vhost.queue import Queue
    from flintmq.vhost.virtual_host import VirtualHost

# how the text of the refusal begins that tells a node to look for the owner again
NOT_OWNED = "not owned here"
_PUBLISH = spec.METHOD_IDS["basic.publish"]
# arguments of a passive declaration by which a client uses the queue
USE: dict[str, object] = {"x-use": True}
# exchanges whose routes one aim keeps; one more, and all are forgotten
_EXCHANGES_MAX = 64


def not_owned(queue_id: str) -> PeerError:
    return PeerError(ReplyCode.NOT_FOUND, f"{NOT_OWNED}: shared queue {queue_id!r}")


class _In:
    """The first step of a verb: the virtual host that performs it."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost


class Aim:
    """The one queue of the channels that are aimed at it: the routes of whatever exchange a message names lead there."""

    def __init__(self, queue_id: str, core: QueueHandle, routes_max: int) -> None:
        self.queue_id = queue_id
        self.core = core
        self.is_over = False
        self._routes_max = routes_max
        self._caches: dict[str, RouteCache] = {}
        self._lock = threading.Lock()

    def cache(self, exchange: str) -> RouteCache:
        """Raises: PeerError 404: the queue is lost."""
        with self._lock:
            if self.is_over:
                raise not_owned(self.queue_id)
            cache = self._caches.get(exchange)
            if cache is None:
                if len(self._caches) >= _EXCHANGES_MAX:
                    self._caches = {}
                cache = self._caches[exchange] = RouteCache(exchange.encode("utf-8", "surrogateescape"), self._routes_max)
                cache.resolver = self._resolve
            return cache

    def _resolve(self, key: bytes) -> list[QueueHandle]:
        if self.is_over:
            raise not_owned(self.queue_id)
        return [self.core]

    def clear(self) -> None:
        """The queue's routes are made anew with the next publishes. Any thread."""
        with self._lock:
            for cache in self._caches.values():
                cache.clear()

    def end(self) -> None:
        """The queue is lost. Any thread."""
        with self._lock:
            self.is_over = True
            caches, self._caches = self._caches, {}
        for cache in caches.values():
            cache.close()


class _Queues(Mapping[str, "Queue"]):
    """Queues by the text of their id."""

    def __init__(self, resolve: Callable[[bytes], Queue | None]) -> None:
        self._resolve = resolve

    def __getitem__(self, name: str) -> Queue:
        queue = self._resolve(name.encode("utf-8", "surrogateescape"))
        if queue is None:
            raise KeyError(name)
        return queue

    def __iter__(self) -> NoReturn:
        raise TypeError("queues of other nodes' connections are not listed: their own virtual hosts list them")

    def __len__(self) -> NoReturn:
        raise TypeError("queues of other nodes' connections are not counted")


class NodeVhost:
    """What session/methods.py needs of a virtual host. Any thread.

    Args: resolve: id -> the queue, if this node owns it; vhosts: those of the node; connections: all that are open; routes_max: routes that
    are kept of one exchange and queue.
    """

    name = ""
    tracing = False
    deleted = False
    keyed: frozenset[str] = frozenset()

    def __init__(
        self,
        resolve: Callable[[bytes], Queue | None],
        vhosts: Mapping[str, VirtualHost],
        connections: Callable[[], Iterable[Any]],
        routes_max: int,
    ) -> None:
        self.queues = _Queues(resolve)
        self.exchanges: dict[str, Any] = {}
        self._vhosts = vhosts
        self._connections = connections
        self._routes_max = routes_max
        self._aims: dict[str, Aim] = {}
        self._lock = threading.Lock()
        # requests of nodes (node_answers.Answering); None: none is answered
        self.answering: Answering | None = None

    # --- looking up -----------------------------------------------------------------------------------------------------

    def describe(self, kind: str, name: str) -> str:
        return describe(kind, name, self.name)

    def queue(self, name: str, connection_id: int | None = None) -> Queue:
        """Raises: PeerError 404."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_owned(name)
        return queue

    def queue_to_purge(self, name: str, *, connection_id: int | None = None) -> Queue:
        """Raises: PeerError 404."""
        return self.queue(name)

    def _home(self, queue: Queue) -> VirtualHost:
        vhost = self._vhosts.get(queue.vhost)
        if vhost is None:
            raise not_owned(queue.name)
        return vhost

    def is_held(self, name: str) -> bool:
        queue = self.queue(name)
        return self._home(queue).is_held(queue.name)

    def touch(self, queue: Queue) -> None:
        self._home(queue).touch(queue)

    def owns_queues(self, connection_id: int) -> bool:
        """Whether the connection has exclusive queues: no shared one is exclusive."""
        return False

    # --- verbs ----------------------------------------------------------------------------------------------------------

    def perform(self, verb: Verb[Any], *asked: Any) -> Any:
        """As VirtualHost.perform, there where the queue is."""
        step: Any = next(verb)
        assert isinstance(step, _In)  # no verb begins otherwise here
        return step.vhost.perform(verb, *asked)

    def _verb(self, queue: Queue, verb: Verb[Any]) -> Verb[Any]:
        yield _In(self._home(queue))  # type: ignore[misc]
        return (yield from verb)

    def settled(self, name: str) -> Verb[None]:
        queue = self.queue(name)
        return self._verb(queue, self._home(queue).settled(queue.name))

    def declare_again(self, name: str, *, passive: bool, **properties: Any) -> Queue:
        """queue.declare. Raises: PeerError 404; 403: it is to make a queue."""
        if not passive:
            self._refuse()
        queue = self.queue(name)
        if properties.get("arguments") == USE:  # else somebody looks at its counts
            self.touch(queue)
        return queue

    def declare_queue(self, name: str = "", *, passive: bool = False, **properties: Any) -> Verb[Queue]:
        """As `declare_again`, when its turn comes."""
        queue = self.declare_again(name, passive=passive, **properties)
        return self._verb(queue, self._home(queue).declare_queue(queue.name, passive=True))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False, connection_id: int | None = None) -> Verb[int]:
        """Raises: PeerError 404."""
        queue = self.queue(name)
        return self._verb(queue, self._home(queue).delete_queue(queue.name, if_unused=if_unused, if_empty=if_empty))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PeerError(ReplyCode.ACCESS_REFUSED, "a connection of another node uses the shared queues that are here, and nothing else")

    declare_exchange = delete_exchange = bind_exchange = unbind_exchange = _refuse
    bind_queue = bind_at_once = unbind_queue = check_publish = open_schedule = _refuse

    # --- requests -------------------------------------------------------------------------------------------------------

    def request_routes(self, exchange: str) -> RouteCache | None:
        """Of a channel without an aim: messages to that exchange are requests, which come to `request`; None: they are refused."""
        return self.answering.cache if self.answering is not None and exchange.encode() == EXCHANGE else None

    def request(self, client: Any, channel: int) -> None:
        """The message that came on a channel is a request. Raises: PeerError 406, 506. On the connection's loop."""
        reply = client.channels[channel].reply_queue
        try:
            _, key, _, body = client.connection.message(channel)
        finally:
            client.connection.discard(channel)
        if self.answering is not None:
            self.answering.came(client.connection_id, None if reply is None else reply.core, key, body)

    # --- aims -----------------------------------------------------------------------------------------------------------

    def aim(self, name: str) -> Aim:
        """What a channel is aimed at. Raises: PeerError 404."""
        queue = self.queue(name)
        with self._lock:
            aim = self._aims.get(name)
            if aim is None or aim.is_over or aim.core is not queue.core:
                aim = self._aims[name] = Aim(name, queue.core, self._routes_max)
        if self.queues.get(name) is not queue:  # else whoever forgets it now finds the aim
            self.forget(name)
            raise not_owned(name)
        return aim

    def routes_changed(self, name: str) -> None:
        """Limits or times of the queue's routes are others (a policy): they are made anew. Any thread."""
        with self._lock:
            aim = self._aims.get(name)
        if aim is not None:
            aim.clear()

    def forget(self, name: str) -> None:
        """This node owns the queue no more (N1). Any thread; the resolver does not give it any more before this is called."""
        with self._lock:
            aim = self._aims.pop(name, None)
        if aim is None:
            return
        aim.end()
        for client in list(self._connections()):
            if client.vhost is self:
                client.loop.call(partial(guarded, "connections of nodes", client.name, _close_aimed, client))


def _close_aimed(client: Any) -> None:
    """On the connection's loop: closes its channels whose queue is lost."""
    if client.ended:
        return
    for number, state in list(client.channels.items()):
        if state.aim is not None and state.aim.is_over:
            client.refuse(number, not_owned(state.aim.queue_id), _PUBLISH)
    if client.socket is not None:
        client.loop.touch(client.socket)
