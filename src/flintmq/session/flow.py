"""Publishers of a full queue wait (x-overflow block, Qpid's producer flow control).

in: publishes that put a queue above its limit. out: connections that are not read until there is room, and are told so.

F1  A connection that published to a queue with `block`, which is above its limit since, is not read before the queue is at FREE of its
    limit or below, its policy changes, or it is deleted. It is told so by connection.blocked, if it knows that. Its messages so far are
    on their queues: a publisher is over the limit by one message.
F2  A connection that also consumes, or has deliveries to settle, is read on: its acks may be what makes room. It is told, too, and what
    it publishes beyond a quarter above the limit (and Limits.over_limit_messages, over_limit_bytes) is refused as with reject-publish.
F3  Others are not held up: nobody waits but who published to that queue. Publishes over HTTP, of transactions, of Spark and dead letters
    can't wait here: they are refused as with reject-publish.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import clip_shortstr
from flintmq.session import commits
from flintmq.vhost.arguments import BLOCK

if TYPE_CHECKING:
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler

log = logging.getLogger("flintmq.flow")

# part of the limit at which publishers go on: Qpid's queueFlowResumeLimit
FREE = 0.8
# full queues that are looked at as often as can be; with more, less often
QUEUES_OFTEN = 100


def has_room(queue: Any) -> bool:
    """Whether publishers of a queue go on."""
    policy, core = queue.policy, queue.core
    if queue.deleted or policy.overflow != BLOCK:
        return True
    count, size = policy.max_length, policy.max_length_bytes
    return (count is None or core.ready_count() <= count * FREE) and (size is None or core.ready_bytes() <= size * FREE)


class Flow:
    """`block` on the connection's loop, `step` on the first one, the rest on any thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        # queue -> the connections that it holds up; a connection may wait for several
        self._waiting: dict[Any, set[ConnectionHandler]] = {}
        self._queues: dict[ConnectionHandler, set[Any]] = {}
        # connections that are not read for it
        self._paused: set[ConnectionHandler] = set()
        self.due_ms = 0  # when to look again, wall clock; 0: nobody waits

    def __len__(self) -> int:
        return len(self._queues)

    def holds(self, handler: ConnectionHandler) -> bool:
        return handler in self._queues

    def block(self, handler: ConnectionHandler, queue: Any) -> None:
        """The connection has published to a queue that is above its limit."""
        if handler.ended or has_room(queue) or not queue.core.over_limit():
            return
        with self._lock:
            first = handler not in self._queues
            self._queues.setdefault(handler, set()).add(queue)
            self._waiting.setdefault(queue, set()).add(handler)
            self._arm()
        if first:
            text = f"{handler.vhost.describe('queue', queue.name)} is full"
            if handler.wants_blocked:
                handler.send(0, spec.ConnectionBlocked(clip_shortstr(text)))
            log.info("connection %s: publisher is blocked: %s", handler.name, text)
        self._pause(handler)

    def _arm(self) -> None:
        gap_ms = self._broker.limits.due_gap_ms * (1 + len(self._waiting) // QUEUES_OFTEN)
        self.due_ms = self._broker.clock.wall_ms() + gap_ms
        self._broker.expiry.index.arm(self.due_ms)

    def _pause(self, handler: ConnectionHandler) -> None:
        if handler.deferred is None and not _consumes(handler):
            self._paused.add(handler)
            handler.deferred = partial(self._again, handler)
            handler.connection.waiting = True

    def _again(self, handler: ConnectionHandler) -> None:
        """What the connection waited for may have come (commits.go_on)."""
        if self.holds(handler):
            self._pause(handler)

    def step(self, now_ms: int) -> None:
        """Who waits for a queue that has room goes on. O(full queues)."""
        if not self.due_ms or now_ms < self.due_ms:
            return
        with self._lock:
            free = [queue for queue in self._waiting if has_room(queue)]
            told = [handler for queue in free for handler in self._leave(queue)]
            if self._waiting:
                self._arm()
            else:
                self.due_ms = 0
        for handler in told:
            guarded("publishers that go on", handler.name, self._broker.on_loop_of, handler, partial(self._go_on, handler))

    def _leave(self, queue: Any) -> list[ConnectionHandler]:
        """A queue has room: the connections that wait for no other one. Under the lock."""
        free = []
        for handler in self._waiting.pop(queue):
            queues = self._queues.get(handler, set())
            queues.discard(queue)
            if not queues and self._queues.pop(handler, None) is not None:
                free.append(handler)
        return free

    def _go_on(self, handler: ConnectionHandler) -> None:
        if handler.ended or self.holds(handler):
            return
        if handler.wants_blocked and not handler.is_blocked:
            handler.send_later(0, spec.ConnectionUnblocked())
        if handler not in self._paused:
            return
        self._paused.discard(handler)
        if len(handler.works):  # its end goes on with the connection
            handler.deferred = None
        else:
            commits.go_on(handler)

    def connection_ended(self, handler: ConnectionHandler) -> None:
        if not self._paused and not self._queues:
            return
        self._paused.discard(handler)
        with self._lock:
            for queue in self._queues.pop(handler, ()):
                waiting = self._waiting.get(queue)
                if waiting is not None:
                    waiting.discard(handler)
                    if not waiting:
                        del self._waiting[queue]


def _consumes(handler: ConnectionHandler) -> bool:
    """F2."""
    if any(state.consumers for state in handler.channels.values()):
        return True
    return any(handler.connection.figures(number)[0] for number in handler.channels)
