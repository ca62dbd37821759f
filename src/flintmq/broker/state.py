"""The state of a node that its services share: virtual hosts, queues, consumers, connections, counters; clock, limits and loops.

in: what the broker, its services and sessions register. out: the same, for all of them. It knows none of its users: a service gets the
state, and of other services those that it needs.

Threading: dicts are changed under the GIL; `lock` guards changes of several structures. It is taken inside a virtual host's lock, never
the other way round.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.broker.counters import Counters
from flintmq.broker.loops import Loops
from flintmq.broker.routes import Routes
from flintmq.clock import Clock
from flintmq.config import Config
from flintmq.vhost.virtual_host import VirtualHost

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.records import Consumer
    from flintmq.queue.control import QueueHandle

# a message as a core publishes it: exchange, routing key, content header, body, flags, priority
Message = tuple[bytes, bytes, bytes, bytes, int, int]


class StreamLog(Protocol):
    """The streams of this node, as services that publish to queues need them."""

    def letter(self, queue_id: int) -> None: ...
    def forget_hot(self) -> None: ...


class WaitingLetters(Protocol):
    """Dead letters of shared queues that wait for their targets."""

    def waiting(self, queue_id: int) -> tuple[int, int]: ...
    def is_full(self, queue_id: int) -> bool: ...
    def bury(self, queue: Any, position: int, reason: str) -> None: ...
    def routes_changed(self, vhost_name: str) -> None: ...


class SharedQueues(Protocol):
    """The shared queues of this node, as services that publish to queues need them."""

    @property
    def letters(self) -> WaitingLetters: ...
    @property
    def publishers_wait(self) -> bool:
        """Whether the engine is nearly full."""
        ...

    def publish(self, core: QueueHandle, message: Message, expires_at_ms: int, on_outcome: Callable[[bool], object]) -> bool: ...
    def want(self, queue_id: int) -> None: ...
    def left(self, consumer: Consumer) -> None: ...
    def forwards(self, queue_id: int) -> bool: ...


class NodeState:
    """See module. Attributes that name a port are None while the node has no such part."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.limits = config.limits
        self.clock = clock
        self.node_name = "flintmq@localhost"
        self.counters = Counters()
        self.loops = Loops()
        self.lock = threading.RLock()
        self.vhosts: dict[str, VirtualHost] = {}
        # queue id -> Queue of the control plane
        self.queues: dict[int, Any] = {}
        # queues with a length limit that drop their head
        self.limited_queues: set[Any] = set()
        # ids of queues whose deliveries rest (pausing.Pauses); replaced as a whole: readers take no lock
        self.paused: frozenset[int] = frozenset()
        # queue id -> why its deliveries rest beside a pause (pausing.QUIET and others, as bits); under `lock`, and read without it
        self.resting: dict[int, int] = {}
        # (virtual host, name) -> the hidden queue behind a direct reply-to
        self.reply_queues: dict[tuple[str, str], Any] = {}
        # queue id -> its consumers, in the order in which they came; ordered, since a dict walks over all who left before its first one
        self.consumers: dict[int, collections.OrderedDict[Consumer, None]] = {}
        # queue id -> the active one of its consumers (x-single-active-consumer); under `lock`
        self.active: dict[int, Consumer] = {}
        # connections that have opened a virtual host, by id
        self.connections: dict[int, Client] = {}
        # the node is drained (cluster.Cluster): a client that opens a connection is sent to another node
        self.draining = False
        # another object since each round over the connections that closes some: a connection that opens meanwhile asks again
        self.closings = object()
        self.routes = Routes(self.vhosts, self.reply_queues, self.limits)
        # --- ports: None while the node has no such part
        # the log of the durable store (queue.log_port.LogPort): without it nothing is logged, and confirms wait for nothing
        self.log: Any = None
        self.streams: StreamLog | None = None
        self.shared: SharedQueues | None = None

    def is_window(self, queue: Any) -> bool:
        """Whether a queue is a shared one that another node owns: its messages and consumers are there, and its core here is a window."""
        return self.shared is not None and queue.policy.is_shared and self.shared.forwards(queue.queue_id)

    def forbid_old_openings(self) -> None:
        """Connections are about to be closed: one that opens meanwhile asks once more whether it may."""
        self.closings = object()
