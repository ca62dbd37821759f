"""Messages that wait before they are delivered again (x-delayed-retry-type, -min, -max), on queues of every kind but streams.

in: entries that came back, which the broker holds. out: the same, available in their places when their time has come.

R1  A message waits min(x-delayed-retry-min * n, x-delayed-retry-max) after its nth return (RabbitMQ 4.3). What waits as long in one queue
    comes back in the order in which it began to wait.
R2  What waits is held by the broker: nobody is given it, purge and length limits pass it, it counts as unacknowledged. It is in the
    memory account.
R3  Waits are kept in memory: after a restart what waited is available at once, with its delivery count. So they go by the monotonic
    clock: the wall clock may be set meanwhile.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.broker.message_line import ENTRY_BYTES, LINE_BYTES, Line
from flintmq.clock import Clock
from flintmq.core.memory_account import MemoryShare
from flintmq.guard import guarded
from flintmq.ports import DequeueReason

# messages that come back between two looks at the time, some 30 us; and those of a deleted queue that end in one slice
AT_ONCE = 32
ENDS_AT_ONCE = 256

Key = tuple[int, int]  # queue id, milliseconds


class Retries:
    """Any thread. Args: clock: monotonic, in milliseconds below; queues: queue id -> queue; arm: asks for a call of `step` at a time (wall
    clock, ms: that is what it understands)."""

    def __init__(self, clock: Clock, queues: Mapping[int, Any], arm: Callable[[int], None]) -> None:
        self._clock = clock
        self._queues = queues
        self._arm = arm
        self._lock = threading.Lock()
        # queue id -> wait in milliseconds -> its line
        self._lines: dict[int, dict[int, Line]] = {}
        self._count = 0  # of lines
        # (when its first message comes back, line): one for each line
        self._heap: list[tuple[int, Key]] = []
        self._account = MemoryShare("entries")

    def __len__(self) -> int:
        with self._lock:
            return sum(len(waiting) for lines in self._lines.values() for waiting in lines.values())

    def waiting(self, queue_id: int) -> int:
        """Messages of a queue that wait."""
        with self._lock:
            return sum(map(len, self._lines.get(queue_id, {}).values()))

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    @property
    def is_due(self) -> bool:
        """Whether `step` has something to do."""
        heap = self._heap
        return bool(heap) and heap[0][0] <= self._now_ms()

    @property
    def due_ms(self) -> int:
        """When `step` has something to do, as the wall clock goes now; 0: nothing waits."""
        heap = self._heap
        return self._clock.wall_ms() + max(0, heap[0][0] - self._now_ms()) if heap else 0

    def add(self, queue: Any, position: int, count: int) -> None:
        """A held entry waits after its `count`th return. The policy of now says how long."""
        wait_ms = queue.policy.retry_ms(count)
        due_ms = self._now_ms() + wait_ms
        line = (queue.queue_id, wait_ms)
        with self._lock:
            gone = queue.deleted
            if not gone:
                lines = self._lines.setdefault(queue.queue_id, {})
                waiting = lines.get(wait_ms)
                if waiting is None:
                    waiting = lines[wait_ms] = Line()
                    self._count += 1
                    self._account.add(LINE_BYTES)
                    heapq.heappush(self._heap, (due_ms, line))
                waiting.add(position, due_ms)
                self._account.add(ENTRY_BYTES)
        if gone:
            queue.core.settle_held(position, DequeueReason.PURGE, False)
        else:
            self._arm(self._clock.wall_ms() + wait_ms)

    def step(self, until_ns: int) -> bool:
        """Some of what has waited long enough comes back. True: nothing is left that is due."""
        while True:
            for queue, position in self._take(self._now_ms()):
                guarded("waits between deliveries", queue, self._back, queue, position)
            if not self.is_due:
                return True
            if self._clock.monotonic_ns() >= until_ns:
                return False

    def _take(self, now_ms: int) -> list[tuple[Any, int]]:
        taken: list[tuple[Any, int]] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_ms and len(taken) < AT_ONCE:
                _, line = heapq.heappop(self._heap)
                lines = self._lines.get(line[0], {})
                waiting = lines.get(line[1])
                if waiting is None:
                    continue  # its queue is gone
                queue = self._queues.get(line[0])
                while len(waiting) and waiting.number <= now_ms and len(taken) < AT_ONCE:
                    position, _ = waiting.take()
                    self._account.add(-ENTRY_BYTES)
                    if queue is not None:
                        taken.append((queue, position))
                if len(waiting):
                    heapq.heappush(self._heap, (waiting.number, line))
                else:
                    del lines[line[1]]
                    if not lines:
                        del self._lines[line[0]]
                    self._count -= 1
                    self._account.add(-LINE_BYTES)
        return taken

    def _back(self, queue: Any, position: int) -> None:
        if queue.deleted:
            queue.core.settle_held(position, DequeueReason.PURGE, False)
        else:
            queue.core.release_waited(position)

    def forget(self, queue: Any) -> Callable[[], bool] | None:
        """A queue is deleted: what waits there ends in slices of the result; None: nothing waits."""
        with self._lock:
            if queue.queue_id not in self._lines:
                return None
            lines = list(self._lines.pop(queue.queue_id).values())
            self._count -= len(lines)
            self._account.add(-LINE_BYTES * len(lines))
            if len(self._heap) > 2 * self._count + 64:  # most of it is of queues that are gone
                self._heap = [
                    (waiting.number, (queue_id, wait_ms)) for queue_id, others in self._lines.items() for wait_ms, waiting in others.items()
                ]
                heapq.heapify(self._heap)
        core = queue.core

        def end() -> bool:
            for _ in range(ENDS_AT_ONCE):
                while lines and not len(lines[-1]):
                    lines.pop()
                if not lines:
                    return True
                core.settle_held(lines[-1].take()[0], DequeueReason.PURGE, False)
                self._account.add(-ENTRY_BYTES)
            return False

        return end
