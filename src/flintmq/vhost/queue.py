"""A queue as the control plane sees it: name, options, policy, and the opaque core that holds its entries.

in: the virtual host's verbs. out: what sessions, management and the housekeeping read.

I1  A queue has a core as long as it is declared; after deletion the last one's `mark_deleted` was called once. That of a shared queue
    changes with its owner.
I2  An idle queue is cheap: no dict, list or policy of its own when it has no bindings and no arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from flintmq.routing.binding import NO_ARGUMENTS, QUEUE
from flintmq.routing.exchange import Binding
from flintmq.slotted import slotted
from flintmq.vhost.policy import QueuePolicy


@runtime_checkable
class QueueCore(Protocol):
    """What the virtual host needs of a queue's entry list. Thread-safe; never blocks."""

    def ready_count(self) -> int:
        """Messages that a consumer could be given now."""
        ...

    def consumer_count(self) -> int: ...
    def purge(self) -> int:
        """Removes every ready message; returns how many. What consumers hold stays."""
        ...

    def hold_arrivals(self, held: bool) -> None:
        """While held, new messages are refused as by a full queue; whoever looks at `ready_count` then knows that it does not grow."""
        ...

    def mark_deleted(self) -> None:
        """The queue is gone: further messages are refused, consumers are woken no more. Held messages can still be settled."""
        ...


@slotted()
class QueueSpec:
    """What a queue factory is told, and does not change. `exclusive_owner`: connection id, None = not exclusive."""

    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    exclusive_owner: int | None
    arguments: Mapping[str, Any]
    policy: QueuePolicy

    def __init__(
        self,
        vhost: str,
        name: str,
        durable: bool,
        auto_delete: bool,
        exclusive_owner: int | None,
        arguments: Mapping[str, Any],
        policy: QueuePolicy,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.exclusive_owner = exclusive_owner
        self.arguments = arguments
        self.policy = policy


class Queue:
    """A declared queue. Changed by its virtual host only, under its lock."""

    destination_kind = QUEUE

    __slots__ = (
        "arguments",
        "auto_delete",
        "bound",
        "core",
        "deleted",
        "durable",
        "exclusive_owner",
        "followed",
        "had_consumers",
        "name",
        "owned_elsewhere",
        "policy",
        "queue_id",
        "used_ns",
        "vhost",
        "weight",
    )

    def __init__(self, queue_id: int, spec: QueueSpec, core: Any, used_ns: int = 0) -> None:
        self.queue_id = queue_id
        self.vhost = spec.vhost
        self.name = spec.name
        self.durable = spec.durable
        self.auto_delete = spec.auto_delete
        self.exclusive_owner = spec.exclusive_owner
        self.arguments = spec.arguments or NO_ARGUMENTS
        self.policy = spec.policy
        self.core = core
        self.had_consumers = False
        self.owned_elsewhere = False  # no node owns it, or another one does, which knows its consumers
        self.deleted = False
        self.followed = False  # parts of the broker that serve some queues only may know it
        self.used_ns = used_ns  # last use as x-expires counts it (monotonic clock); kept only for queues that expire
        self.weight = 0  # bytes that it has in the account of its virtual host's definitions
        self.bound: Binding | dict[Binding, Binding] | None = None  # those that lead here: one, or a table of several

    @property
    def bindings(self) -> dict[Binding, Binding] | None:
        """Bindings that lead here, without the implicit one of the default exchange; None: there is none. Changed by `bind`, `unbind`."""
        bound = self.bound
        return bound if bound is None or type(bound) is dict else {bound: bound}  # type: ignore[dict-item, return-value]

    @property
    def binding_count(self) -> int:
        """Their number."""
        bound = self.bound
        return len(bound) if type(bound) is dict else 0 if bound is None else 1

    def bind(self, binding: Binding) -> None:
        """A binding leads here from now on."""
        bound = self.bound
        if bound is None:
            self.bound = binding
        elif type(bound) is dict:
            bound[binding] = binding
        else:
            self.bound = {bound: bound, binding: binding}  # type: ignore[dict-item]

    def unbind(self, binding: Binding) -> None:
        """It does not any more. No error when it did not."""
        bound = self.bound
        if bound is binding:
            self.bound = None
        elif type(bound) is dict:
            bound.pop(binding, None)
            if not bound:
                self.bound = None

    def last_binding(self) -> Binding | None:
        """The one that came last. O(1) also where many that came behind it were taken out."""
        bound = self.bound
        if type(bound) is not dict:
            return bound  # type: ignore[return-value]
        binding, _ = bound.popitem()
        bound[binding] = binding
        return binding

    @property
    def exclusive(self) -> bool:
        return self.exclusive_owner is not None

    def __repr__(self) -> str:
        return f"Queue({self.name!r} in {self.vhost!r}, id {self.queue_id})"
