"""Queues whose deliveries rest: an operator paused them.

in: pauses and resumptions (definitions.service keeps them); shared queues that may not deliver now. out:
consumers of the queue that wait, or go on; basic.get and pulls find nothing.

P1  Publishes, settlements, expiry and limits go on; what consumers hold stays theirs. What they gave back waits, too.
P2  A consumer that comes while its queue rests waits. Pausing is seen under the broker's lock: whoever comes is either in the list that a
    pause goes through, or sees the pause.
P3  Whether a consumer may go on is decided on its own loop at the moment it is told: the last word is right in whatever order they come.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.guard import guarded

if TYPE_CHECKING:
    from flintmq.broker.attachments import Attachments
    from flintmq.broker.events import Events
    from flintmq.broker.state import NodeState

# consumers that one slice tells
AT_ONCE = 100
# why a queue rests beside a pause: the engine of a shared queue does not know yet that somebody consumes; too many of its dead letters
# wait; other nodes may take it, as this one has given no sign of life for long
QUIET, LETTERS, LEASE = 1, 2, 4


class Pauses:
    """Any thread."""

    def __init__(self, state: NodeState, attachments: Attachments, events: Events) -> None:
        self._state = state
        self._attachments = attachments
        self._events = events
        # others that take from queues (pulls): told (queue, whether it rests) after NodeState.paused has it
        self.followers: list[Callable[[Any, bool], object]] = []
        # the queue is deleted: what is kept of its pause goes
        self.on_gone: Callable[[Any], object] = lambda queue: None

    def set(self, queue: Any, paused: bool) -> bool:
        """False: it was so before. Any thread."""
        state = self._state
        with state.lock:
            if queue.deleted or (queue.queue_id in state.paused) == paused:
                return False
            state.paused = state.paused | {queue.queue_id} if paused else state.paused - {queue.queue_id}
            rests = paused or queue.queue_id in state.resting
        self._tell(queue, rests)
        self._events.paused(queue, paused)
        return True

    def rest(self, queue: Any, reason: int, rests: bool) -> None:
        """Deliveries of a queue rest for a reason of the broker's own, or no longer. Any thread."""
        state, queue_id = self._state, queue.queue_id
        with state.lock:
            before = state.resting.get(queue_id, 0)
            after = (before | reason) if rests and not queue.deleted else before & ~reason
            if after:
                state.resting[queue_id] = after
            else:
                state.resting.pop(queue_id, None)
            paused = queue_id in state.paused
        if bool(before) != bool(after) and not paused:
            self._tell(queue, bool(after))

    def rests(self, queue: Any) -> bool:
        """Whether deliveries of a queue rest now. To ask is to want them: a shared queue that rests for want of consumers is opened."""
        why = self._state.resting.get(queue.queue_id, 0)
        if why & QUIET and self._state.shared is not None:
            self._state.shared.want(queue.queue_id)
        return bool(why) or queue.queue_id in self._state.paused

    def _tell(self, queue: Any, rests: bool) -> None:
        state = self._state
        for follower in self.followers:
            guarded("pauses", f"queue {queue.name!r}", follower, queue, rests)
        with state.lock:
            consumers = collections.deque(state.consumers.get(queue.queue_id, ()))

        def tell() -> bool:
            for _ in range(min(AT_ONCE, len(consumers))):
                guarded("pauses", f"a consumer of queue {queue.name!r}", self._attachments.follow_activity, consumers.popleft())
            return not consumers

        if not tell():
            state.loops.in_slices(tell)

    def forget(self, queue: Any) -> None:
        """A queue that rested was deleted."""
        with self._state.lock:
            paused = queue.queue_id in self._state.paused
            self._state.paused = self._state.paused - {queue.queue_id}
            self._state.resting.pop(queue.queue_id, None)
        if paused:
            self.on_gone(queue)
