"""Length limits and delivery limits of queues: what is over them leaves, in slices.

in: queues that a publish, a return or an operator put over a limit. out: heads that are dropped or dead-lettered; deliveries that were
counted, and their messages that end, wait or go back.

Q1  One thread at a time takes from a queue what is over its limit (queue_take_excess), or two loops would each drop a message for the same
    excess.
Q2  A queue that a letter of the enforcement under way filled is looked at after it, not inside of it.
Q3  What fails ends the work on that queue only; the housekeeping tries again.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from flintmq.broker.dead_letters import DeadLetters
from flintmq.broker.state import NodeState
from flintmq.channel.arrival import drop_over
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.queue.last_value import last_value_replaced
from flintmq.queue.retries import Retries
from flintmq.routing.message import Content
from flintmq.vhost.arguments import DROPPING
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, MAXLEN

# entries that are counted before the next look
RETURNS_AT_ONCE = 256
# messages that are dead-lettered before the next look at the time
LETTERS_AT_ONCE = 32
# nanoseconds of a slice of a cascade of full queues, but for one letter
CASCADE_NS = 50_000
# queues, the first one that came first
Queues = collections.OrderedDict[Any, None]


class Undertaker(Protocol):
    """Keeps dead letters until all their targets have them (letters.Letters)."""

    def bury(self, queue: Any, position: int, reason: str) -> None: ...


class QueueLimits:
    """Any thread."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters, letters: Undertaker, retries: Retries) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._letters = letters
        self._retries = retries
        # queues that a job brings back under their limits, and whether it runs
        self._over: Queues = collections.OrderedDict()
        self._running = False
        # of the thread: queues that its enforcement under way has still to look at (Q2)
        self._cascade = threading.local()
        dead_letters.on_placed = self.settle

    # --- length ---------------------------------------------------------------------------------------------------------

    def settle(self, queue: Any) -> None:
        """After an arrival: brings a queue back under its limit, unless its consumers have their turn first (queue/limits.py)."""
        if queue in self._state.limited_queues and queue.core.over_limit() and not queue.core.limit_waits():
            self.enforce(queue)

    def settle_many(self, queue_ids: Iterable[int]) -> None:
        """`settle` of many queues, in slices."""
        waiting = collections.deque(queue_ids)
        step = partial(self._settle_some, waiting)
        if waiting and not step():
            self._state.loops.in_slices(step)

    def _settle_some(self, waiting: collections.deque[int]) -> bool:
        until_ns = self._state.clock.monotonic_ns() + CASCADE_NS
        while waiting:
            queue = self._state.queues.get(waiting.popleft())
            if queue is not None:
                guarded("queue limits", f"queue {queue.name!r}", self.settle, queue)
            if self._state.clock.monotonic_ns() >= until_ns:
                break
        return not waiting

    def follow_policy(self, queue: Any) -> None:
        """A queue may be above a limit that is new. Not under a virtual host's lock."""
        if queue in self._state.limited_queues and queue.core.over_limit():
            guarded("queue limits", f"queue {queue.name!r}", self.enforce, queue)

    def enforce(self, queue: Any) -> None:
        """Brings a queue back under its limit, and then those that its dead letters filled: in a row, not one inside the other (Q2, Q3).

        An excess of more than a few messages (a limit of 10, and 200,000 that came back) is ended in slices of a loop: each takes from the
        queues in turn.
        """
        pending: Queues | None = getattr(self._cascade, "pending", None)
        if pending is not None:
            pending[queue] = None
            return
        pending = collections.OrderedDict({queue: None})
        if not self._enforce_some(pending):
            self._over.update(pending)
            self._run()

    def _run(self) -> None:
        """The rest of the excess ends in a job, one for all queues."""
        if not self._running:
            self._running = True
            self._state.loops.in_slices(partial(self._enforce_some, self._over), self._ran)

    def _ran(self, done: bool) -> None:
        self._running = False
        if done and self._over:  # another loop's, noted while the last slice ended
            self._run()

    def _enforce_some(self, pending: Queues) -> bool:
        """A slice for the first of the queues. True: all are within their limits, or can't be brought there now."""
        until_ns = self._state.clock.monotonic_ns() + CASCADE_NS
        unfinished: list[bool] = []
        self._cascade.pending = pending
        try:
            while pending:
                queue, _ = pending.popitem(last=False)
                unfinished.clear()
                guarded("queue limits", f"queue {queue.name!r}", lambda one: unfinished.append(not self._enforce(one, until_ns)), queue)
                if unfinished == [True]:
                    pending[queue] = None  # behind the others
                if self._state.clock.monotonic_ns() >= until_ns:
                    break
            return not pending
        finally:
            self._cascade.pending = None

    def _enforce(self, queue: Any, until_ns: int) -> bool:
        """A slice of the excess of a queue leaves. True: nothing is left to do."""
        core, counters = queue.core, self._state.counters
        if queue.policy.overflow not in DROPPING:
            return True  # what came back may fill it above its limit, and stays
        if not core.dead_letters:
            dropped = drop_over(core)
            if dropped:
                counters.drop("maxlen", dropped)
            return not dropped or not core.over_limit()
        while True:
            ended, held = self._dead_letters.make_room(queue, LETTERS_AT_ONCE)
            if held:
                if queue.policy.is_shared:
                    self._letters.bury(queue, held, MAXLEN)  # which counts it when it ends
                else:
                    self._dead_letters.publish_and_end(queue, held, MAXLEN, DequeueReason.DROP)
            elif not ended:
                return True
            if self._state.clock.monotonic_ns() >= until_ns:
                return False

    def put(self, queue: Any, content: Content, flags: int, priority: int, expiration_ms: Any) -> None:
        """The broker's own publish to one queue, by the queue's limits; what it refuses is counted. Raises: StoreError, MemoryError."""
        exchange, key, header, body = content
        core = queue.core
        if queue.policy.overflow not in DROPPING and core.refuses(len(body)):
            self._state.counters.drop("maxlen")
            return
        own = max(expiration_ms, core.ttl_least_ms) if expiration_ms >= 0 else -1
        times = [time for time in (core.ttl_ms, own) if time >= 0]
        expires_at = self._state.clock.wall_ms() + min(times) if times else 0
        if core.publish(exchange, key, header, body, flags, priority, expires_at):
            self.settle(queue)

    # --- deliveries -----------------------------------------------------------------------------------------------------

    def count_returns(self, queue: Any) -> None:
        """Entries came back to a queue that counts deliveries: a message that came back once too often is dead-lettered, or dropped; one
        that has to wait before its next delivery does so; one that was replaced meanwhile ends."""
        core = queue.core
        while core.returned_count:
            for position, count, over, delayed in core.take_returns(RETURNS_AT_ONCE):
                if (over or delayed) and last_value_replaced(core, position):
                    core.settle_held(position, DequeueReason.DROP, False)
                elif not over:
                    if delayed and not self._retries.add(core, position, count):
                        core.release_waited(position)  # no memory for a wait, or the queue is deleted
                elif not guarded("delivery limits", f"queue {queue.name!r}", self._end_over_limit, queue, position):
                    core.release_held(position)  # the node is short of something: it comes back once more

    def _end_over_limit(self, queue: Any, position: int) -> None:
        """Raises: StoreError, MemoryError, KeyError: it could not be read or dead-lettered, and is held still."""
        if queue.policy.keeps_letters:
            self._letters.bury(queue, position, DELIVERY_LIMIT)
            return
        if queue.policy.dead_letter_exchange is not None:
            self._dead_letters.publish_at(queue, position, DELIVERY_LIMIT)
        else:
            self._state.counters.drop(DELIVERY_LIMIT)
        queue.core.settle_held(position, DequeueReason.REJECT, False)
