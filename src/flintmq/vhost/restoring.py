"""The start of a virtual host: exchanges, queues and bindings as Definitions holds them.

in: rows of Definitions, policies. out: the objects, with the hooks called.

I1  What a queue or a binding costs here, a start costs a hundred thousand times: no record is made of a row, no name is reserved, and the
    hook of the default exchange's routes is called once, for nobody has a route yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from flintmq.guard import caught
from flintmq.patterns import Among
from flintmq.ports import Definitions
from flintmq.routing.binding import EXCHANGE, QUEUE, Destination
from flintmq.routing.exchange import Binding, Exchange
from flintmq.routing.kinds import EXCHANGE_KINDS
from flintmq.vhost.names import SCHEDULE
from flintmq.vhost.policies import Policies
from flintmq.vhost.policy import DEFAULT_POLICY, QueuePolicy
from flintmq.vhost.queue import Queue, QueueCore, QueueSpec
from flintmq.vhost.unused import UnusedQueues
from flintmq.vhost.weights import BINDING_BYTES, Holding, binding_bytes, queue_bytes


class Restoring:
    """The part of VirtualHost. Called once, before its first verb."""

    name: str
    queues: dict[str, Queue]
    exchanges: dict[str, Exchange]
    policies: Policies
    holding: Holding
    unused: UnusedQueues
    binding_count: int
    binding_bytes: int
    on_queue_created: Callable[[Queue], None]
    follow_policies: Callable[..., None]
    _definitions: Definitions
    _queue_factory: Callable[[int, QueueSpec], QueueCore]
    _lock: AbstractContextManager[object]
    _add_exchange: Callable[[Exchange], None]
    _add_schedule: Callable[[int], None]
    _queue_policy: Callable[..., QueuePolicy]
    _default_route_changed: Callable[[str], None]

    def restore(self) -> None:
        """Makes the exchanges, queues and bindings that Definitions holds. Hooks are called."""
        with self._lock:
            for exchange in self._definitions.load_exchanges(self.name):
                self._add_exchange(
                    EXCHANGE_KINDS[exchange.kind](
                        exchange.name,
                        durable=True,
                        auto_delete=exchange.auto_delete,
                        internal=exchange.internal,
                        arguments=exchange.arguments,
                    )
                )
            among = self.policies.for_names()
            self._restore_queues(among)
            self._restore_bindings()
            for name in [one.name for one in self.exchanges.values()] if self.policies else ():
                self.follow_policies(EXCHANGE, [name], among)

    def _restore_queues(self, among: Among) -> None:
        queues, make, created, size = self.queues, self._queue_factory, self.on_queue_created, 0
        # what a queue without arguments does, where no policy looks at names
        policy = self.policies.queue_policy("", DEFAULT_POLICY, {}) if not self.policies else None
        for name, queue_id, auto_delete, arguments in self._definitions.queue_rows(self.name):
            if name == SCHEDULE:
                self._add_schedule(queue_id)
                continue
            own = self._queue_policy(name, arguments, among) if arguments or policy is None else policy
            spec = QueueSpec(self.name, name, True, auto_delete, None, arguments, own)
            queue = queues[name] = Queue(queue_id, spec, make(queue_id, spec))
            queue.weight = queue_bytes(spec)
            size += queue.weight
            if own is not DEFAULT_POLICY:
                self.unused.add(queue)
            created(queue)
        self.holding.add(size)
        self._default_route_changed("")

    def _restore_bindings(self) -> None:
        exchanges, queues, size, count = self.exchanges, self.queues, 0, 0
        for source_name, kind, name, key, arguments in self._definitions.binding_rows(self.name):
            source = exchanges.get(source_name)
            destinations: Mapping[str, Destination] = queues if kind == QUEUE else exchanges
            destination = destinations.get(name)
            if source is None or destination is None:
                continue
            binding = Binding(source, destination, key, arguments)
            try:
                source.add(binding)
            except Exception as error:
                caught("bindings that are restored", f"binding of {source_name!r} and {name!r}", error)
                continue
            if kind == QUEUE:
                queue: Any = destination
                if queue.bound is None:
                    queue.bound = binding
                else:
                    queue.bind(binding)
            count += 1
            if arguments or source.kind != "direct":
                self.binding_bytes += binding.arguments_bytes
                size += binding_bytes(binding)
            else:
                size += BINDING_BYTES + 2 * len(key)  # what binding_bytes says
        self.binding_count += count
        self.holding.add(size)
