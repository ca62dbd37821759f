"""Which queues have not been used for their x-expires.

in: queues of one virtual host that come, go, are used, or get another policy. out: those whose time may be over.

I1  Exactly one entry of the heap counts for each queue with x-expires that is not deleted; an entry is never later than the queue's end.
I2  Deleted queues are at most half of the heap, and 64: it does not keep what is gone until it would have expired.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from flintmq.clock import Clock
from flintmq.vhost.queue import Queue


class UnusedQueues:
    """The queues of a virtual host that have x-expires. Called under the virtual host's lock, `use` apart."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # when a queue may be unused for so long: (monotonic nanoseconds, number, queue)
        self._heap: list[tuple[int, int, Queue]] = []
        self._numbers = itertools.count(1)
        self._count = 0  # queues that are not deleted
        self._counts: dict[Queue, int] = {}  # their x-expires changed -> number of the one entry that counts, 0: none does
        self.visits = 0  # queues that were looked at

    def use(self, queue: Queue, ms: int = 0) -> None:
        """The queue is in use from now on for so long: x-expires counts from then."""
        if queue.policy.expires_ms is not None:
            queue.used_ns = max(queue.used_ns, self._clock.monotonic_ns() + ms * 1_000_000)

    def add(self, queue: Queue) -> None:
        """A queue came."""
        if queue.policy.expires_ms is not None:
            self.use(queue)
            self._count += 1
            self._watch(queue, self._end(queue))

    def follow(self, queue: Queue, before_ms: int | None) -> None:
        """The x-expires of the queue was `before_ms`, and may be another one now."""
        now_ms = queue.policy.expires_ms
        if now_ms == before_ms:
            return
        if before_ms is None:
            queue.used_ns = self._clock.monotonic_ns()
        self._count += (now_ms is not None) - (before_ms is not None)
        self._counts[queue] = 0
        if now_ms is not None:
            self._watch(queue, self._end(queue))

    def remove(self, queue: Queue) -> None:
        """The queue is deleted."""
        if self._counts:
            self._counts.pop(queue, None)
        if queue.policy.expires_ms is not None:
            self._count -= 1
            if len(self._heap) > 2 * self._count + 64:
                self._heap = [entry for entry in self._heap if not entry[2].deleted]
                heapq.heapify(self._heap)

    def is_over(self, queue: Queue, now: int) -> bool:
        """Whether the queue has no consumer and was not used for its x-expires."""
        return not _is_used(queue) and now >= self._end(queue)

    @property
    def soonest_ns(self) -> float:
        """When the next queue is to be looked at, at the earliest."""
        return self._heap[0][0] if self._heap else math.inf

    def over(self, now: int, until_ns: int = 0) -> Iterator[Queue]:
        """The queues whose time is over, until `until_ns` (monotonic; 0: all). One that is not deleted before the next is asked for is
        looked at again."""
        while self.soonest_ns <= now:
            _, number, queue = heapq.heappop(self._heap)
            if queue.deleted or self._counts.get(queue, number) != number:
                continue
            self.visits += 1
            if _is_used(queue):
                queue.used_ns = max(queue.used_ns, now)
            elif self.is_over(queue, now):
                yield queue
            if not queue.deleted:  # it was used since, or its deletion is under way or put off
                self._watch(queue, max(now + 1, self._end(queue)))
            if until_ns and self._clock.monotonic_ns() >= until_ns:
                return

    def _end(self, queue: Queue) -> int:
        return queue.used_ns + (queue.policy.expires_ms or 0) * 1_000_000

    def _watch(self, queue: Queue, at_ns: int) -> None:
        number = next(self._numbers)
        if queue in self._counts:
            self._counts[queue] = number
        heapq.heappush(self._heap, (at_ns, number, queue))

    def __len__(self) -> int:
        return len(self._heap)


def _is_used(queue: Queue) -> bool:
    """Whether it has consumers, or may have some at the node that owns it, which is the one to say when its time is over."""
    return queue.owned_elsewhere or bool(queue.core.consumer_count())
