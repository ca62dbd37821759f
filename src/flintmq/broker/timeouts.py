"""Deliveries that a consumer takes too long for (x-consumer-timeout of a queue, a policy or a consumer): their messages go back.

in: the housekeeping. out: messages back in their places, flagged redelivered and counted. Nobody's channel is closed for it.

T1  A delivery that is not settled `x-consumer-timeout` after it was written goes back at the next housekeeping. The timeout is that of
    its consumer, else the queue's of that moment: a policy counts for deliveries that are under way, too.
T2  A consumer with a prefetch has used the credit of such a delivery until it settles it: a consumer that hangs gets no more. What it
    says of the delivery later has no other effect, and is no mistake.
T3  While nobody asks for a timeout, nothing is looked at.
"""

from __future__ import annotations

import collections
import heapq
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.guard import guarded

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.timeouts")

# connections without such deliveries that one slice passes: some 50 us
CONNECTIONS_AT_ONCE = 32


class _Least:
    """The least of many numbers, each of one owner, without a look at all of them. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[Any, int] = {}
        self._counts: collections.Counter[int] = collections.Counter()
        self._heap: list[int] = []  # of numbers that count, and some that did

    def get(self, owner: Any) -> int:
        """0: it has none."""
        return self._of.get(owner, 0)

    def set(self, owner: Any, number: int) -> None:
        """0: it has none from now on."""
        with self._lock:
            before = self._of.pop(owner, 0)
            if before:
                self._counts[before] -= 1
                if not self._counts[before]:
                    del self._counts[before]
            if number:
                self._of[owner] = number
                self._counts[number] += 1
                if self._counts[number] == 1:
                    heapq.heappush(self._heap, number)
            if len(self._heap) > 2 * len(self._counts) + 64:
                self._heap = sorted(self._counts)

    def least(self) -> int:
        """0: there is none."""
        with self._lock:
            while self._heap and self._heap[0] not in self._counts:
                heapq.heappop(self._heap)
            return self._heap[0] if self._heap else 0


class ConsumerTimeouts:
    """`tick` on the housekeeping's thread, the rest on any. Attributes: ended: deliveries whose time was over."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        # timeouts of queues, and of connections with consumers that have a timeout of their own the shortest of those; milliseconds
        self._timeouts = _Least()
        # loops on which a look is under way
        self._looking: set[Any] = set()
        self.ended = 0

    def follow(self, queue: Any) -> None:
        """A queue came, or its policy changed."""
        self._timeouts.set(queue, 0 if queue.policy.is_stream else queue.policy.consumer_timeout_ms or 0)

    def forget(self, queue: Any) -> None:
        """A queue is deleted."""
        self._timeouts.set(queue, 0)

    def consumer_came(self, client: Client, timeout_ms: int) -> None:
        """A consumer has a timeout of its own. Its deliveries may outlive it, so the connection is looked at until it ends."""
        self._timeouts.set(client, min(timeout_ms, self._timeouts.get(client) or timeout_ms))

    def connection_ended(self, client: Client) -> None:
        self._timeouts.set(client, 0)

    def tick(self) -> None:
        """Looks at all deliveries that may be too old, on their loops, in slices (T3)."""
        least_ms = self._timeouts.least()
        if not least_ms:
            return
        for loop in self._state.loops or (None,):
            if loop in self._looking:
                continue
            step: Callable[[], bool] = partial(next, self._look(loop, least_ms * 1000), True)
            if loop is None:
                while not step():
                    pass
                continue
            self._looking.add(loop)
            loop.job(step, partial(self._looked, loop))

    def _looked(self, loop: Any, done: bool) -> None:
        self._looking.discard(loop)

    def _look(self, loop: Any, least_us: int) -> Iterator[bool]:
        """One slice after another: False each time."""
        now_us = self._state.clock.wall_ms() * 1000
        for passed, client in enumerate(list(self._state.connections.values()), 1):
            if loop is None or client.loop is loop:
                for number in list(client.channels):
                    at = 1
                    while at:
                        at = self._some(client, number, at, now_us, least_us)
                        if at:
                            yield False
            if passed % CONNECTIONS_AT_ONCE == 0:
                yield False

    def _some(self, client: Client, number: int, at: int, now_us: int, least_us: int) -> int:
        """A slice of a channel. Returns the next tag; 0: it is done with, or it is busy with settlements and the next look sees to it."""
        if client.ended or len(client.works) or number not in client.channels:
            return 0
        left = [0]
        guarded("consumer timeouts", client.name, self._time_out, client, (number, at, now_us, least_us), left)
        return left[0]

    def _time_out(self, client: Client, where: tuple[int, int, int, int], left: list[int]) -> None:
        left[0], ended = client.connection.time_out(*where, self._state.limits.work_step)
        if not ended:
            return
        self.ended += ended
        log.warning(
            "connection %s, channel %d: %d deliveries were not settled in time (x-consumer-timeout), they are back in their queues",
            *(client.name, where[0], ended),
        )
        client.after_publish()
        if client.socket is not None:
            client.loop.touch(client.socket)
