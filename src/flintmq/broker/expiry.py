"""Expiry of messages, and the queues that the housekeeping visits: only those that have something to do.

in: what queues say of themselves (queue/due.pxd), a clock that rings when the first entry expires.
out: expired messages, to their dead-letter exchange or gone, in steps on the first loop; housekeeping of queues that worked; the limits of
queues that were above them for their consumers (queue/limits.py); the ends of waits between two deliveries (queue/retries.py).

E1  A queue's first expiry is in the heap, or the queue is on the index's list. Entries of the heap with an older time are passed over.
E2  One step, of expiry or upkeep, lasts some 50 us, one with dead letters up to 300, but for one message: what is left waits for the
    next step; the loop shares its passes out (docs/ARCHITECTURE.md, "Turns").
E3  A queue that can't be served (its log refuses, say) is tried again at the next housekeeping, and holds up no other.
"""

from __future__ import annotations

import collections
import heapq
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.dead_letters import DeadLetters
from flintmq.broker.loops import STEP_NS
from flintmq.broker.queue_limits import QueueLimits
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.queue.due_index import DueIndex
from flintmq.scheduler.due_clock import DueClock
from flintmq.vhost.dead_letter import EXPIRED

if TYPE_CHECKING:
    from flintmq.broker.flow import Flow
    from flintmq.broker.letters import Letters
    from flintmq.broker.state import NodeState
    from flintmq.queue.retries import Retries

# messages that end between two looks at the time: some 30 us
EXPIRE_AT_ONCE = 128
# messages that are dead-lettered between two: some 100 us, 250 with a log; what Python does for a step is some 10 us
LETTERS_AT_ONCE = 256
# queues that are taken from the index between two looks at the time
TAKEN_AT_ONCE = 64
# Loop.job: step, ended
Job = Callable[[Callable[[], bool], Callable[[bool], object]], None]


class Expiry:
    """Expiry and upkeep of the queues of one broker. `run` and `upkeep` on the first loop; everything else on any thread."""

    def __init__(
        self, state: NodeState, dead_letters: DeadLetters, queue_limits: QueueLimits, letters: Letters, retries: Retries, flow: Flow
    ) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._queue_limits = queue_limits
        self._letters = letters
        self._retries = retries
        self._flow = flow
        self.index = DueIndex()
        limits = state.limits
        self.index.set_over(limits.over_limit_messages, limits.over_limit_bytes, limits.over_limit_ms)
        # (when, queue id); wall clock, milliseconds
        self._heap: list[tuple[int, int]] = []
        # queue id -> its time in the heap; anything else there is old
        self._times: dict[int, int] = {}
        self._job: Job | None = None
        self._running = threading.Lock()
        # ids of queues that could not be brought under their limit
        self._over: set[int] = set()
        # queues whose consumers had their turn; and those that wait for their upkeep, of which one pass is under way
        self._turns_over: collections.deque[int] = collections.deque()
        self._upkeep_due: collections.deque[int] = collections.deque()
        self._keeping = False
        self.clock = DueClock(self._rings, state.limits.due_gap_ms)
        # queues that were looked at, for expiry and for upkeep
        self.visits = 0

    def start(self, job: Job) -> None:
        """From now on messages expire at their time. Args: job: `Loop.job` of the first loop; any thread."""
        self._job = job
        self.index.use_clock(self.clock)
        self.clock.start()

    def stop(self) -> None:
        """Ends the clock. Idempotent."""
        self.clock.stop()

    def close(self) -> None:
        """Lets go of the queues; nobody uses them any more. Idempotent."""
        self.index.release()

    def _rings(self) -> int:
        self._go()
        return 0  # `step` arms it again

    def _go(self) -> None:
        """Makes the job of the due queues; one at a time, since it takes in those that become due while it runs."""
        if self._job is not None and self._running.acquire(blocking=False):
            self._job(self.step, self._ended)

    def _ended(self, done: bool) -> None:
        self._running.release()
        if not done:
            return  # the loop ends
        # A queue that says something from here on rings; one that did so while the last step ended is looked for once more.
        is_more = self._take()
        now = self._state.clock.wall_ms()
        if is_more or (self._heap and self._heap[0][0] <= now) or self._retries.is_due:
            self._go()

    def step(self) -> bool:
        """A slice of the due work. True: nothing is left. O(queues in which something expires)."""
        now = self._state.clock.wall_ms()
        until_ns = self._state.clock.monotonic_ns() + STEP_NS
        is_more = self._take()
        is_more = self._keep_limits(until_ns) or is_more
        is_more = not self._retries.step(until_ns) or is_more
        self._flow.step(now)
        while self._heap and self._heap[0][0] <= now and not is_more:
            due_ms, queue_id = heapq.heappop(self._heap)
            if self._times.get(queue_id) != due_ms:
                continue
            del self._times[queue_id]
            queue = self._state.queues.get(queue_id)
            if queue is None:
                continue
            self.visits += 1
            is_more = self._expire(queue, now, until_ns)
        soonest = [due_ms for due_ms in (self._heap[0][0] if self._heap else 0, self._retries.due_ms, self._flow.due_ms) if due_ms]
        if soonest:
            self.index.arm(min(soonest))
        return not is_more

    def _expire(self, queue: Any, now: int, until_ns: int) -> bool:
        """True: the step is over."""
        ended: list[bool] = []
        if self._letters.is_full(queue):
            self._note(now + self._state.limits.housekeeping_ms, queue.queue_id)
            return self._state.clock.monotonic_ns() >= until_ns
        guarded("expiry", f"queue {queue.name!r}", lambda: ended.append(self.expire(queue, now, until_ns)))
        if not ended:
            self._note(now + self._state.limits.housekeeping_ms, queue.queue_id)  # E3
        elif ended[0]:
            self._note(queue.core.rearm(), queue.queue_id)
        else:
            self._note(now, queue.queue_id)  # behind the others whose time it is
        return self._state.clock.monotonic_ns() >= until_ns

    def expire(self, queue: Any, now_ms: int, until_ns: int = 0) -> bool:
        """Takes expired messages out of a queue, to its dead-letter exchange when it has one. Any thread.

        Args: now_ms: wall clock; until_ns: monotonic time after which it stops (after one message at least), 0 = never.
        Returns: whether all of them are gone.
        """
        core, counters, clock = queue.core, self._state.counters, self._state.clock
        while not core.dead_letters:
            ended = core.expire_many(now_ms, EXPIRE_AT_ONCE)
            if ended:
                counters.drop("expired", ended)
            if ended < EXPIRE_AT_ONCE:
                return True
            if until_ns and clock.monotonic_ns() >= until_ns:
                return False
        while True:
            ended, held = self._dead_letters.expire(queue, now_ms, LETTERS_AT_ONCE)
            if held:
                self._expire_held(queue, held)
            elif not ended:
                return True
            if until_ns and clock.monotonic_ns() >= until_ns:
                return False

    def _expire_held(self, queue: Any, position: int) -> None:
        """A message whose letter is left to Python."""
        if queue.policy.keeps_letters:
            self._letters.bury(queue, position, EXPIRED)
        else:
            self._dead_letters.publish_and_end(queue, position, EXPIRED, DequeueReason.EXPIRE)

    def _keep_limits(self, until_ns: int) -> bool:
        """Queues that consumers had their turn in drop their heads. True: the step is over."""
        self._turns_over.extend(self.index.take_over())
        while self._turns_over:
            queue = self._state.queues.get(self._turns_over.popleft())
            if queue is not None:
                self.visits += 1
                guarded("queue limits", f"queue {queue.name!r}", self._keep_limit, queue)
            if self._state.clock.monotonic_ns() >= until_ns:
                return True
        return False

    def _keep_limit(self, queue: Any) -> None:
        if queue.core.limit_due():
            self._queue_limits.enforce(queue)
            if queue.core.over_limit():
                self._over.add(queue.queue_id)

    def _take(self) -> bool:
        """Takes in some queues that say when something of them is due. True: there may be more."""
        taken = self.index.take_due(TAKEN_AT_ONCE)
        for due_ms, queue_id in taken:
            self._note(due_ms, queue_id)
        if len(self._heap) > 2 * len(self._times) + 64:
            self._heap = [(due_ms, queue_id) for queue_id, due_ms in self._times.items() if queue_id in self._state.queues]
            self._times = {queue_id: due_ms for due_ms, queue_id in self._heap}
            heapq.heapify(self._heap)
        return len(taken) == TAKEN_AT_ONCE

    def _note(self, due_ms: int, queue_id: int) -> None:
        known = self._times.get(queue_id)
        if due_ms and (known is None or due_ms < known):
            self._times[queue_id] = due_ms
            heapq.heappush(self._heap, (due_ms, queue_id))

    def forget(self, queue_id: int) -> None:
        """The queue is deleted."""
        self._times.pop(queue_id, None)

    def tick(self) -> None:
        """A housekeeping pass: what the clock did not ring for (the wall clock was set), and upkeep."""
        if self._job is not None:
            self._go()
        else:
            while not self.step():
                pass
        self.upkeep()

    def upkeep(self) -> None:
        """Housekeeping of the queues that worked since their last one, and limits that failed then, in slices. O(those)."""
        if self._keeping:
            return  # there were more than one pass has time for
        self._keeping = True
        over_limit, self._over = self._over, set()
        self._upkeep_due.extend(over_limit)
        self._state.loops.in_slices(self._keep_some, self._kept)

    def _kept(self, done: bool) -> None:
        self._keeping = False

    def _keep_some(self) -> bool:
        """A slice. True: all had their turn."""
        until_ns = self._state.clock.monotonic_ns() + STEP_NS
        while True:
            if not self._upkeep_due:
                self._upkeep_due.extend(self.index.take_worked(TAKEN_AT_ONCE))
                if not self._upkeep_due:
                    return True
            queue = self._state.queues.get(self._upkeep_due.popleft())
            if queue is not None:
                self.visits += 1
                guarded("housekeeping of queues", f"queue {queue.name!r}", self._keep, queue)
            if self._state.clock.monotonic_ns() >= until_ns:
                return False

    def _keep(self, queue: Any) -> None:
        core = queue.core
        if core.returned_count:
            self._queue_limits.count_returns(queue)
        if queue in self._state.limited_queues:
            self._queue_limits.settle(queue)
            if core.over_limit():
                self._over.add(queue.queue_id)
        core.housekeeping()
        self._letters.look_for_room(queue)
