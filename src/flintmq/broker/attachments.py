"""Consumers of a node: which queue has which, and which of them is active.

in: consumers that were attached or left, queues that were deleted. out: connections that deliver, rest or cancel; queues that end with
their last consumer (auto-delete).
"""

from __future__ import annotations

import collections
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.records import ReplyQueue
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec

if TYPE_CHECKING:
    from flintmq.broker.events import Events
    from flintmq.broker.records import Consumer
    from flintmq.broker.state import NodeState

# consumers of a deleted queue that are cancelled before others of the loop have their turn
CANCELS_AT_ONCE = 32


def tag_bytes(consumer: Consumer) -> bytes:
    """The consumer's tag as the compiled half knows it."""
    return consumer.tag.encode("utf-8", "surrogateescape")


def is_attached(consumer: Consumer) -> bool:
    """Whether its channel is open and has it still. On its client's loop."""
    channel = consumer.client.channels.get(consumer.channel)
    return not consumer.client.ended and channel is not None and channel.consumers.get(consumer.tag) is consumer


class Attachments:
    """Any thread. The tables are NodeState.consumers and .active."""

    def __init__(self, state: NodeState, events: Events) -> None:
        self._state = state
        self._events = events

    def add(self, consumer: Consumer) -> bool:
        """A consumer was attached. False when the queue was deleted meanwhile: the caller takes the consumer off again."""
        state, queue = self._state, consumer.queue
        if isinstance(queue, ReplyQueue):
            return True
        with state.lock:
            # The virtual host sets `deleted` before `cancel_all` is called: one of the two sees the other.
            if queue.deleted:
                return False
            known = state.consumers.setdefault(queue.queue_id, collections.OrderedDict())
            known[consumer] = None
            rests = queue.queue_id in state.paused or queue.queue_id in state.resting
            # Which consumer of a window is active, the queue's owner decides.
            first = consumer.remote is None and queue.policy.single_active_consumer and queue.queue_id not in state.active
            if first:
                state.active[queue.queue_id] = consumer
        self._events.consumer(consumer, True)
        if state.shared is not None and queue.policy.is_shared:
            state.shared.want(queue.queue_id)
        vhost = state.vhosts.get(queue.vhost)
        if vhost is not None:
            vhost.consumer_added(queue)
        if first or rests:
            self.follow_activity(consumer)
        return True

    def remove(self, consumer: Consumer) -> None:
        """A consumer was cancelled, or its channel or connection ended: the queue may go with it (auto-delete)."""
        state, queue = self._state, consumer.queue
        if isinstance(queue, ReplyQueue):
            return
        following = None
        with state.lock:
            known = state.consumers.get(queue.queue_id)
            if known is None or consumer not in known:
                return  # the queue was deleted, which is why the consumer goes
            del known[consumer]
            if state.active.get(queue.queue_id) is consumer:
                del state.active[queue.queue_id]
                following = max(known, key=lambda one: one.priority, default=None)
                if following is not None:
                    state.active[queue.queue_id] = following
            if not known:
                del state.consumers[queue.queue_id]
        self._events.consumer(consumer, False)
        if following is not None:
            self.follow_activity(following)
        if state.shared is not None and queue.policy.is_shared:
            state.shared.left(consumer)
        vhost = state.vhosts.get(queue.vhost)
        if vhost is not None:
            vhost.consumer_removed(queue)

    def follow_activity(self, consumer: Consumer) -> None:
        """The consumer gets messages, or waits: for its turn (x-single-active-consumer: the next is the one of the highest priority, and of
        several the one that came first), or until its queue is resumed (pausing P3)."""

        def follow() -> None:
            client, queue = consumer.client, consumer.queue
            if client.ended or consumer.channel not in client.channels:
                return
            single = queue.policy.single_active_consumer and consumer.remote is None
            waits = single and self._state.active.get(queue.queue_id) is not consumer
            active = not waits and queue.queue_id not in self._state.paused and queue.queue_id not in self._state.resting
            client.connection.activate(consumer.channel, tag_bytes(consumer), active)

        self._state.loops.run_on(consumer.client, follow)

    def follow_policy(self, queue: Any) -> None:
        """Deliveries of the queue are dead-lettered from now on, or no more."""

        def follow(consumer: Consumer) -> None:
            if is_attached(consumer):
                consumer.client.connection.set_dead_letters(consumer.channel, tag_bytes(consumer), queue.core)

        with self._state.lock:
            consumers = list(self._state.consumers.get(queue.queue_id, ()))
        for consumer in consumers:
            self._state.loops.run_on(consumer.client, partial(follow, consumer))

    def cancel_all(self, queue: Any) -> None:
        """The queue was deleted: its consumers are cancelled, in slices, and told so when they understand it."""
        with self._state.lock:
            consumers = collections.deque(self._state.consumers.pop(queue.queue_id, ()))
            self._state.active.pop(queue.queue_id, None)

        def cancel() -> bool:
            for _ in range(min(CANCELS_AT_ONCE, len(consumers))):
                guarded("consumers of a deleted queue", f"queue {queue.name!r}", self._cancel, consumers.popleft())
            return not consumers

        if consumers and not cancel():
            self._state.loops.in_slices(cancel)

    def cancel(self, consumer: Consumer) -> None:
        """A consumer ends, as its queue goes on elsewhere; it is told so when it understands it. What it holds it can still settle."""
        self._cancel(consumer)
        self.remove(consumer)

    def _cancel(self, consumer: Consumer) -> None:
        def cancel() -> None:
            # The channel may have ended, or the client may have cancelled it, in the meantime.
            if not is_attached(consumer):
                return
            client = consumer.client
            del client.channels[consumer.channel].consumers[consumer.tag]
            client.consumer_left(consumer)
            client.connection.cancel(consumer.channel, tag_bytes(consumer))
            if consumer.remote is not None and self._state.shared is not None:
                self._state.shared.left(consumer)
            if client.wants_cancel:
                client.send_later(consumer.channel, spec.BasicCancel(consumer.tag, True))

        self._state.loops.run_on(consumer.client, cancel)
