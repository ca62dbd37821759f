"""Stand-ins for what a virtual host is given."""

from __future__ import annotations

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.routing.exchange import Exchange
from flintmq.store.definitions import MemoryDefinitions
from flintmq.vhost.queue import QueueSpec
from flintmq.vhost.virtual_host import VirtualHost


class FakeCore:
    """A QueueCore whose figures a test sets."""

    def __init__(self, queue_id: int, spec: QueueSpec) -> None:
        self.queue_id = queue_id
        self.spec = spec
        self.ready = 0
        self.consumers = 0
        self.deletions = 0
        self.held = False

    def ready_count(self) -> int:
        return self.ready

    def consumer_count(self) -> int:
        return self.consumers

    def purge(self) -> int:
        purged, self.ready = self.ready, 0
        return purged

    def hold_arrivals(self, held: bool) -> None:
        self.held = held

    def mark_deleted(self) -> None:
        self.deletions += 1


class World:
    """A virtual host with recording hooks. `routes_changed` holds exchange names, `defaults_changed` queue names."""

    def __init__(self, definitions: MemoryDefinitions | None = None, **limits: int) -> None:
        self.definitions = definitions or MemoryDefinitions()
        self.clock = ManualClock()
        self.vhost = VirtualHost("/", self.definitions, FakeCore, Limits(**limits), self.clock)  # type: ignore[arg-type]
        self.routes_changed: set[str] = set()
        self.defaults_changed: list[str] = []
        self.vhost.on_routes_changed = self._routes
        self.vhost.on_default_route_changed = self.defaults_changed.append

    def _routes(self, exchange: Exchange) -> None:
        self.routes_changed.add(exchange.name)

    def names(self, exchange: str, key: bytes = b"", headers: dict[str, object] | None = None) -> list[str]:
        """Sorted names of the queues a message is routed to; a duplicate shows."""
        return sorted(queue.name for queue in self.vhost.route(exchange, key, headers))

    def forget(self) -> None:
        """Starts recording anew."""
        self.routes_changed.clear()
        self.defaults_changed.clear()
