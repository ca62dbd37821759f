"""A cache of routes that is dropped by the hooks alone never gives a route that differs from a fresh walk."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.errors import PeerError
from flintmq.routing.exchange import Exchange

from .fakes import World

EXCHANGES = ("x1", "x2", "x3", "amq.topic")
QUEUES = ("q1", "q2")
KEYS = (b"a", b"q1", b"a.b")

exchange_names = st.sampled_from(EXCHANGES)
queue_names = st.sampled_from(QUEUES)
binding_keys = st.sampled_from((*KEYS, b"a.#", b"*"))


class CachedRoutes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.vhost = self.world.vhost
        self.cache: dict[tuple[str, bytes], set[str]] = {}
        self.cacheable: dict[str, bool] = {}
        self.vhost.on_routes_changed = self._drop
        self.vhost.on_default_route_changed = lambda queue: self.cache.pop(("", queue.encode()), None)

    def _drop(self, exchange: Exchange) -> None:
        for key in [key for key in self.cache if key[0] == exchange.name]:
            del self.cache[key]
        self.cacheable.pop(exchange.name, None)

    @rule(
        name=exchange_names,
        kind=st.sampled_from(("direct", "fanout", "topic", "headers", "x-modulus-hash")),
        alternate=st.sampled_from((None, "", *EXCHANGES)),
        auto_delete=st.booleans(),
    )
    def declare_exchange(self, name: str, kind: str, alternate: str | None, auto_delete: bool) -> None:
        if name not in self.vhost.exchanges:
            arguments = {} if alternate is None else {"alternate-exchange": alternate}
            self.vhost.run(self.vhost.declare_exchange(name, kind, auto_delete=auto_delete, arguments=arguments))

    @rule(name=exchange_names)
    def delete_exchange(self, name: str) -> None:
        if not name.startswith("amq."):
            self.vhost.run(self.vhost.delete_exchange(name))

    @rule(name=queue_names)
    def declare_queue(self, name: str) -> None:
        self.vhost.run(self.vhost.declare_queue(name))

    @rule(name=queue_names)
    def delete_queue(self, name: str) -> None:
        self.vhost.run(self.vhost.delete_queue(name))

    @rule(queue=queue_names, exchange=exchange_names, key=binding_keys, bind=st.booleans())
    def change_queue_binding(self, queue: str, exchange: str, key: bytes, bind: bool) -> None:
        try:
            self.vhost.run((self.vhost.bind_queue if bind else self.vhost.unbind_queue)(queue, exchange, key))
        except PeerError as error:
            assert error.text.startswith("no ")

    @rule(destination=exchange_names, source=exchange_names, key=binding_keys, bind=st.booleans())
    def change_exchange_binding(self, destination: str, source: str, key: bytes, bind: bool) -> None:
        try:
            self.vhost.run((self.vhost.bind_exchange if bind else self.vhost.unbind_exchange)(destination, source, key))
        except PeerError as error:
            assert error.text.startswith("no ")

    @invariant()
    def cached_is_fresh(self) -> None:
        for exchange in ("", *EXCHANGES):
            if exchange not in self.vhost.exchanges:
                continue
            cacheable = self.vhost.route_is_cacheable(exchange)
            assert self.cacheable.setdefault(exchange, cacheable) is cacheable
            for key in KEYS:
                names = [queue.name for queue in self.vhost.route(exchange, key)]
                assert len(names) == len(set(names))
                assert self.cache.setdefault((exchange, key), set(names)) == set(names)

    @invariant()
    def counts_agree(self) -> None:
        bindings = [binding for exchange in self.vhost.exchanges.values() for binding in exchange.bindings.values()]
        assert self.vhost.binding_count == len(bindings)
        for binding in bindings:
            ends = self.vhost.queues if binding.destination.destination_kind == "queue" else self.vhost.exchanges
            assert ends.get(binding.destination.name) is binding.destination
        for queue in self.vhost.queues.values():
            assert queue.binding_count == sum(binding.destination is queue for binding in bindings)


CachedRoutes.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCachedRoutes = CachedRoutes.TestCase
