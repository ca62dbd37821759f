"""Publishers of a full queue wait (x-overflow block, Qpid's producer flow control), and those of shared queues for a full engine.

in: publishes that put a queue above its limit. out: connections that are not read until there is room, and are told so.

F1  A connection that published to a queue with `block`, which is above its limit since, is not read before the queue is at FREE of its
    limit or below, its policy changes, or it is deleted. It is told so by connection.blocked, if it knows that. Its messages so far are
    on their queues: a publisher is over the limit by one message.
F2  A connection that also consumes, or has deliveries to settle, is read on: its acks may be what makes room. It is told, too, and what
    it publishes beyond a quarter above the limit (and Limits.over_limit_messages, over_limit_bytes) is refused as with reject-publish.
F3  So it is with all shared queues while their engine is nearly full: the bound of F2 is cluster_room_used_max then. Connections of other
    nodes are read on: each node holds its own clients up.
F4  Others are not held up: nobody waits but who published to that queue. Publishes over HTTP, of transactions, of Spark and dead letters
    can't wait here: they are refused as with reject-publish.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import clip_shortstr
from flintmq.vhost.arguments import BLOCK

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.flow")

# part of the limit at which publishers go on: Qpid's queueFlowResumeLimit
FREE = 0.8
# full queues that are looked at as often as can be; with more, less often
QUEUES_OFTEN = 100


def _has_room(queue: Any, engine_rests: bool) -> bool:
    """Whether publishers of a queue go on."""
    policy, core = queue.policy, queue.core
    if queue.deleted or policy.is_shared:
        return queue.deleted or not engine_rests
    if policy.overflow != BLOCK:
        return True
    count, size = policy.max_length, policy.max_length_bytes
    return (count is None or core.ready_count() <= count * FREE) and (size is None or core.ready_bytes() <= size * FREE)


class Flow:
    """`block` on the connection's loop, `step` on the first one, the rest on any thread. Args: arm: asks for a call of `step` at a time
    (wall clock, milliseconds)."""

    def __init__(self, state: NodeState, arm: Callable[[int], object]) -> None:
        self._state = state
        self._ask = arm
        self._lock = threading.Lock()
        # queue -> the connections that it holds up; a connection may wait for several
        self._waiting: dict[Any, set[Client]] = {}
        self._queues: dict[Client, set[Any]] = {}
        # connections that are not read for it
        self._paused: set[Client] = set()
        self.due_ms = 0  # when to look again, wall clock; 0: nobody waits

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def _engine_rests(self) -> bool:
        return self._state.shared is not None and self._state.shared.publishers_wait

    def holds(self, client: Client) -> bool:
        return client in self._queues

    def block(self, client: Client, queue: Any) -> None:
        """The connection has published to a queue that is above its limit."""
        shared = queue.policy.is_shared
        if client.ended or _has_room(queue, self._engine_rests) or not (shared or queue.core.over_limit()):
            return
        with self._lock:
            first = client not in self._queues
            self._queues.setdefault(client, set()).add(queue)
            self._waiting.setdefault(queue, set()).add(client)
            self._arm()
        if first:
            text = "the engine of shared queues is nearly full" if shared else f"{client.vhost.describe('queue', queue.name)} is full"
            if client.wants_blocked:
                client.send(0, spec.ConnectionBlocked(clip_shortstr(text)))
            log.info("connection %s: publisher is blocked: %s", client.name, text)
        self._pause(client)

    def _arm(self) -> None:
        gap_ms = self._state.limits.due_gap_ms * (1 + len(self._waiting) // QUEUES_OFTEN)
        self.due_ms = self._state.clock.wall_ms() + gap_ms
        self._ask(self.due_ms)

    def _pause(self, client: Client) -> None:
        if client.deferred is None and not _consumes(client):
            self._paused.add(client)
            client.deferred = partial(self._on_room, client)
            client.connection.waiting = True

    def _on_room(self, client: Client) -> None:
        """What the connection waited for may have come (Client.go_on)."""
        if self.holds(client):
            self._pause(client)

    def step(self, now_ms: int) -> None:
        """Publishers that wait for a queue with room go on. O(full queues)."""
        if not self.due_ms or now_ms < self.due_ms:
            return
        with self._lock:
            free = [queue for queue in self._waiting if _has_room(queue, self._engine_rests)]
            clients = [client for queue in free for client in self._leave(queue)]
            if self._waiting:
                self._arm()
            else:
                self.due_ms = 0
        for client in clients:
            guarded("publishers that go on", client.name, self._state.loops.run_on, client, partial(self._go_on, client))

    def _leave(self, queue: Any) -> list[Client]:
        """A queue has room: the connections that wait for no other one. Under the lock."""
        free = []
        for client in self._waiting.pop(queue):
            queues = self._queues.get(client, set())
            queues.discard(queue)
            if not queues and self._queues.pop(client, None) is not None:
                free.append(client)
        return free

    def _go_on(self, client: Client) -> None:
        if client.ended or self.holds(client):
            return
        if client.wants_blocked and not client.is_blocked:
            client.send_later(0, spec.ConnectionUnblocked())
        if client not in self._paused:
            return
        self._paused.discard(client)
        if len(client.works):  # its end goes on with the connection
            client.deferred = None
        else:
            client.go_on()

    def connection_ended(self, client: Client) -> None:
        if not self._paused and not self._queues:
            return
        self._paused.discard(client)
        with self._lock:
            for queue in self._queues.pop(client, ()):
                waiting = self._waiting.get(queue)
                if waiting is not None:
                    waiting.discard(client)
                    if not waiting:
                        del self._waiting[queue]


def _consumes(client: Client) -> bool:
    """F2."""
    if any(state.consumers for state in client.channels.values()):
        return True
    return any(client.connection.figures(number)[0] for number in client.channels)
