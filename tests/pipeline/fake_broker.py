"""A queue in memory that gives messages back as AMQP does, and a Spark that may die at every step.

In: bodies, and a `Plan` of crashes. Out: what the sink of Spark holds, what the queue still has.
Invariants: a delivery that is not settled when its link ends returns to its place, flagged redelivered; offsets, commits and the sink
survive a crash, everything else of the driver is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_flintmq.amqp.messages import Delivery, Properties
from pyspark_flintmq.amqp.options import Options
from pyspark_flintmq.amqp.spool import Spool, read_batches
from pyspark_flintmq.amqp.subscription import Subscription
from pyspark_flintmq.errors import ConnectionLost


class Crash(BaseException):
    """The driver was killed: not an Exception, so that nothing handles it."""


@dataclass
class Plan:
    """Dies at the named point when its turn comes. `steps`: how many points to pass before each death."""

    steps: list[int] = field(default_factory=list)
    kind: type[BaseException] = Crash
    passed: list[str] = field(default_factory=list)
    died_at: list[str] = field(default_factory=list)
    # name of a point to die at, once
    at: str = ""

    def point(self, name: str) -> None:
        self.passed.append(name)
        if name == self.at:
            self.at = ""
            self.died_at.append(name)
            raise self.kind(name)
        if self.steps:
            if self.steps[0] <= 0:
                self.steps.pop(0)
                self.died_at.append(name)
                raise self.kind(name)
            self.steps[0] -= 1


@dataclass
class Entry:
    body: bytes
    properties: Properties
    redelivered: bool = False


class FakeQueue:
    """Entries by position; `out` are those that a link holds."""

    def __init__(self, bodies: Sequence[bytes] = (), *, ids: bool = False) -> None:
        self.entries: dict[int, Entry] = {}
        self.out: set[int] = set()
        self._next = 0
        self.publish(bodies, ids=ids)

    def publish(self, bodies: Sequence[bytes], *, ids: bool = False, **properties: Any) -> None:
        """`ids`: each message gets a message_id of its own."""
        for body in bodies:
            self.entries[self._next] = Entry(body, Properties(message_id=f"id{self._next}" if ids else None, **properties))
            self._next += 1

    def ready(self) -> list[int]:
        return [position for position in sorted(self.entries) if position not in self.out]


class FakeLink:
    """Implements subscription.Link on a FakeQueue. Like a broker, it sends up to the prefetch before it is asked."""

    def __init__(self, queue: FakeQueue, plan: Plan, silent: bool = False) -> None:
        self.queue = queue
        self.plan = plan
        self.silent = silent
        self.prefetch = 0
        self.buffer: list[Delivery] = []
        self.tags: dict[int, int] = {}
        self.next_tag = 1
        self.lost = False

    def attach(self, prefetch: int) -> int:
        self.plan.point("attach")
        self.prefetch = prefetch
        ready = len(self.queue.ready())
        self._fill()
        return ready

    def is_open(self) -> bool:
        return not self.lost

    def _check(self) -> None:
        if self.lost:
            raise ConnectionLost("the test cut it")

    def _fill(self) -> None:
        for position in self.queue.ready():
            if len(self.tags) >= self.prefetch or self.silent:
                break
            entry = self.queue.entries[position]
            self.queue.out.add(position)
            self.tags[self.next_tag] = position
            self.buffer.append(Delivery(self.next_tag, entry.redelivered, "x", "k", entry.properties, entry.body))
            self.next_tag += 1

    def take(self, messages: int, size: int, wait_s: float) -> list[Delivery]:
        self._check()
        self._fill()
        taken: list[Delivery] = []
        while self.buffer and len(taken) < messages and sum(len(d.body) for d in taken) < size:
            taken.append(self.buffer.pop(0))
        self.plan.point("took")
        return taken

    def settle(self, up_to: int, single: Sequence[int]) -> None:
        self._check()
        self.plan.point("before acknowledgement")
        gone = [tag for tag in self.tags if tag <= up_to or tag in single]
        for tag in gone:
            position = self.tags.pop(tag)
            self.queue.out.discard(position)
            del self.queue.entries[position]
        self.plan.point("after acknowledgement")

    def depth(self) -> int:
        self._check()
        return len(self.queue.ready())

    def backlog(self) -> int | None:
        return len(self.queue.ready()) + len(self.buffer)

    def close(self) -> None:
        for position in self.tags.values():
            self.queue.entries[position].redelivered = True
            self.queue.out.discard(position)
        self.tags.clear()


class CrashingSpool(Spool):
    plan = Plan()

    def write(self, seq: int, batches: Any) -> None:
        self.plan.point("before the batch file")
        super().write(seq, batches)
        self.plan.point("after the batch file")

    def save(self) -> None:
        self.plan.point("before the state file")
        super().save()
        self.plan.point("after the state file")

    def remove(self, seq: int) -> None:
        self.plan.point("before removing a batch file")
        super().remove(seq)


class FakeSpark:
    """The offsets, commits and sink of one query, as MicroBatchExecution keeps them (docs/pipeline/source.md, order of calls)."""

    def __init__(self, queue: FakeQueue, spool: Path, plan: Plan | None = None, silent: bool = False, **options: Any) -> None:
        self.queue = queue
        self.plan = plan or Plan()
        self.silent = silent
        self.options = Options(**{"queue": "q", "spoolDir": str(spool), "timeout": 1, "maxMessagesPerTrigger": 4, **options})
        self.offsets: dict[int, dict[str, Any]] = {}
        self.commits: set[int] = set()
        self.sink: dict[int, list[bytes]] = {}
        self.links: list[FakeLink] = []

    def subscription(self) -> Subscription:
        def link() -> FakeLink:
            self.links.append(FakeLink(self.queue, self.plan, self.silent))
            return self.links[-1]

        subscription = Subscription(self.options, link)
        subscription.spool = CrashingSpool(subscription.spool.path)
        subscription.spool.plan = self.plan
        return subscription

    def bodies(self) -> list[bytes]:
        return [body for batch in sorted(self.sink) for body in self.sink[batch]]

    def run(self, on_batch: Callable[[int], None] | None = None) -> None:
        """One life of the driver with trigger AvailableNow. Raises: Crash, when the plan says so."""
        subscription = self.subscription()
        try:
            self._run(subscription, on_batch)
        finally:
            # What the kernel does for a dead process: connection and lock go. Spark's stop() does no more.
            subscription.close()

    def _run(self, subscription: Subscription, on_batch: Callable[[int], None] | None) -> None:
        subscription.drain()
        batch = max(self.offsets, default=-1)
        if batch not in self.commits and batch >= 0:
            start = self.offsets[batch - 1] if batch else subscription.initial()
            self._process(subscription, batch, start, self.offsets[batch])
        while True:
            batch = max(self.offsets, default=-1)
            start = self.offsets[batch] if batch >= 0 else subscription.initial()
            end = subscription.latest(start, self.options.maxMessagesPerTrigger, self.options.maxBytesPerTrigger)
            if end == start:
                return
            self.plan.point("before offsets")
            self.offsets[batch + 1] = end
            self.plan.point("after offsets")
            if batch >= 0:
                subscription.commit(start)
            self._process(subscription, batch + 1, start, end)
            if on_batch:
                on_batch(batch + 1)

    def _process(self, subscription: Subscription, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        rows: list[bytes] = []
        for seq, first, last in subscription.partitions(start, end):
            for record_batch in read_batches(subscription.spool.path, seq, first, last):
                rows += record_batch.column("body").to_pylist()
        self.plan.point("before the sink")
        self.sink[batch] = rows
        self.plan.point("after the sink")
        self.commits.add(batch)
        self.plan.point("after commits")
