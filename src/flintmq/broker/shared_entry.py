"""One shared queue of this node: what the service knows of it, and the host of its station.

in: the queue's core as the window of what this node has leased; calls of its station (shared/station.py). out: messages in the window, dead
letters, counts; work for the service's threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.shared_letters import SharedLetters
from flintmq.core.memory_account import MemoryShare
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.kv.engine import Engine
from flintmq.queue.handoff import (
    window_add,
    window_available,
    window_ready,
    window_take_back,
    window_wanted,
)
from flintmq.shared.codec import unpack_message
from flintmq.shared.directory import read_arguments
from flintmq.shared.keys import QueueKeys
from flintmq.shared.owners import Owners
from flintmq.shared.queue import QueueGone, Taken, declare_queue, is_there
from flintmq.shared.station import Waiting
from flintmq.vhost.arguments import DROPPING, REJECT_PUBLISH_DLX
from flintmq.vhost.dead_letter import EXPIRED, MAXLEN
from flintmq.vhost.equivalence import check_arguments
from flintmq.vhost.names import describe

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.state import NodeState
    from flintmq.config import Limits
    from flintmq.queue.control import QueueHandle
    from flintmq.vhost.policy import QueuePolicy
    from flintmq.vhost.queue import QueueSpec

log = logging.getLogger("flintmq.shared")

# bytes of a lease that a station remembers
_LEASE_BYTES = 400


class Service(Protocol):
    """The service of a node's shared queues, as its entries and definitions know it (shared_service.SharedService)."""

    state: NodeState
    dead_letters: DeadLetters
    limits: Limits
    letters: SharedLetters
    declared: dict[tuple[str, str], bytes]

    @property
    def stopping(self) -> bool: ...
    def node(self) -> tuple[Engine, Owners]: ...
    def is_held_up(self, queue_id: int) -> bool: ...
    def is_ending(self, vhost: str, name: str) -> bool: ...
    def entries(self) -> dict[int, SharedQueueEntry]: ...
    def entry(self, queue_id: int) -> SharedQueueEntry | None: ...
    def schedule(self, entry: SharedQueueEntry) -> None: ...
    def look(self, entry: SharedQueueEntry) -> None: ...
    def pause(self, seconds: float) -> None: ...
    def gone(self, entry: SharedQueueEntry) -> None: ...
    def answer(self, waiting: list[Waiting], taken: bool) -> None: ...


class CoreWindow:
    """A queue's core as the window of its shared queue. Args: most: messages that consumers without a limit are given at once; rests:
    whether the queue is paused."""

    def __init__(self, core: QueueHandle, most: int, rests: Callable[[], bool]) -> None:
        self._core = core
        self._most = most
        self._rests = rests

    def wanted(self) -> int:
        ready = window_ready(self._core)
        credit = 0 if self._rests() else window_wanted(self._core, self._most)
        return max(0, credit - ready) if credit else -ready

    def add(self, taken: Taken, content: bytes) -> int:
        meta = taken.meta
        return window_add(self._core, unpack_message(content), meta.expires_at_ms, meta.redelivered, meta.deliveries)

    def take_back(self, positions: list[int]) -> list[tuple[int, bool, int]]:
        return window_take_back(self._core, positions)

    def empty(self) -> None:
        while positions := window_available(self._core, self._most):
            window_take_back(self._core, positions)


class SharedQueueEntry:
    """What the service has of one queue, and its station's host."""

    __slots__ = (
        "_service",
        "anew",
        "arguments",
        "core",
        "delay_ms",
        "ended",
        "failure",
        "life",
        "name",
        "order",
        "policy",
        "queue_id",
        "running",
        "scheduled",
        "share",
        "station",
        "vhost",
    )

    def __init__(self, service: Service, queue_id: int, spec: QueueSpec, core: QueueHandle) -> None:
        self._service = service
        self.queue_id = queue_id
        self.vhost = spec.vhost
        self.name = spec.name
        self.order = spec.policy.shared_order
        self.core = core
        self.follow(spec.policy)
        self.arguments = spec.arguments
        self.anew = False  # declared, and the engine was not asked: it is made there
        self.life: bytes | None = None  # id of its life in the engine; None: not known yet
        self.scheduled = False
        self.running = False
        self.ended = False  # the engine was told that the queue is deleted
        self.delay_ms = 0
        self.failure = ""
        self.share = MemoryShare("entries")
        self.station: Any = None

    def follow(self, policy: QueuePolicy) -> None:
        """The queue's policy, and later its changes."""
        self.policy = policy

    def limit(self) -> tuple[int | None, int | None, bool]:
        policy = self.policy
        return policy.max_length, policy.max_length_bytes, policy.overflow not in DROPPING

    def levels(self) -> int:
        return self.policy.levels

    def single(self) -> bool:
        return self.policy.single_active_consumer

    def consumers(self) -> int:
        return 0 if self._service.is_held_up(self.queue_id) else self.core.consumer_count()

    def overflowed(self, waiting: list[Waiting]) -> None:
        queue = self._service.state.queues.get(self.queue_id)
        if queue is None or self.policy.overflow != REJECT_PUBLISH_DLX:
            return
        for one in waiting:
            message = unpack_message(one.message.content)[:4]
            guarded("dead letters", f"queue {self.name!r}", self._service.dead_letters.publish, queue, message, MAXLEN)

    def is_full(self) -> bool:
        return self._service.letters.is_full(self.queue_id)

    def buries(self) -> bool:
        return self.core.dead_letters

    def bury(self, position: int, expired: bool) -> None:
        queue = self._service.state.queues.get(self.queue_id)
        if queue is not None and self.core.hold(position):
            self._service.letters.bury(queue, position, EXPIRED if expired else MAXLEN)

    def open(self) -> tuple[Engine, Owners, QueueKeys, str]:
        engine, owners = self._service.node()
        patience = self._service.limits.shared_patience_ms
        alone = engine.limits.exclusive
        if not alone and not self.anew and not is_there(engine, self.vhost, self.name):
            raise QueueGone("another node deleted it while this one was away")
        arguments = pack_arguments(self.arguments)
        keys = declare_queue(engine, self.vhost, self.name, self.order, self.anew and alone, arguments, patience)
        if not alone and self._is_another(engine, keys):
            raise QueueGone("another node declared it again")
        self.anew, self.life = False, keys.life
        return engine, owners, keys, self.order

    def _is_another(self, engine: Engine, keys: QueueKeys) -> bool:
        """Whether what the engine has under this name is a later queue, or has other arguments: it is learnt of anew then."""
        if self.life is not None:
            return keys.life != self.life
        try:
            check_same_arguments(engine, keys, self.vhost, self.name, self.arguments)
        except PeerError:
            return True
        return False

    def wake(self) -> None:
        self._service.schedule(self)

    def gone(self) -> None:
        self._service.gone(self)

    def answer(self, waiting: list[Waiting], taken: bool) -> None:
        self.share.add(-sum(one.size for one in waiting))
        self._service.answer(waiting, taken)

    def ready(self, messages: int, size: int) -> None:
        self.core.elsewhere, self.core.elsewhere_bytes = messages, size

    def held(self, change: int) -> None:
        self.share.add(change * _LEASE_BYTES)

    def expired(self, messages: int) -> None:
        self._service.state.counters.drop("expired", messages)

    def dropped(self, messages: int) -> None:
        if messages:
            self._service.state.counters.drop("maxlen", messages)

    def unreadable(self, error: Exception) -> None:
        self._service.state.counters.drop("unreadable_content")
        log.error("a message of shared queue %r in vhost %r can't be read, and is put aside: %s", self.name, self.vhost, error)


def pack_arguments(arguments: Mapping[str, Any]) -> bytes:
    """A queue's arguments as the engine has them."""
    return json.dumps({key: value for key, value in arguments.items() if isinstance(value, str | int)}).encode()


def check_same_arguments(engine: Engine, keys: QueueKeys, vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises: PeerError 406: the engine has the queue with other arguments; EngineError."""
    known = read_arguments(engine, keys)
    if known:
        check_arguments(describe("queue", name, vhost), json.loads(known), arguments)
