"""What the broker does for many queues of its own accord is done in slices: the next connection waits for one of them at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.session import publishing
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel

COUNT = 200
RING = 30
# what a slice may see: STEP_NS by a clock that goes on by 10 us with each look
MOST = 6


class Looks:
    """A clock that goes on by 10 us with each look at its monotonic time."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._ns = clock.monotonic_ns()

    def monotonic_ns(self) -> int:
        self._ns += 10_000
        return int(self._ns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start({"housekeeping_ms": 3_600_000, "over_limit_ms": 1})


@pytest.fixture
def ch(broker: Any, connect: Callable[..., Any]) -> RawChannel:
    return connect(broker).channel()


@pytest.fixture
def jobs(broker: Any, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """Steps of the jobs that are made from here on; nobody runs them."""
    inner, made = broker.node.broker, []
    monkeypatch.setattr(inner, "clock", Looks(inner.clock))
    monkeypatch.setattr(inner.loops, "in_slices", lambda step, ended=None: made.append(step))
    return made


def run(step: Callable[[], bool], count: Callable[[], int]) -> list[int]:
    """By how much the count grew in each slice."""
    grown = []
    done = False
    while not done:
        before = count()
        done = step()
        grown.append(count() - before)
    return grown


def ring(ch: RawChannel, count: int) -> None:
    for number in range(count):
        following = f"ring-{(number + 1) % count}"
        ch.queue(f"ring-{number}", arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": following})


def test_upkeep_of_many_queues(ch: RawChannel, broker: Any, jobs: list[Callable[[], bool]]) -> None:
    for number in range(COUNT):
        ch.queue(f"q-{number}", arguments={"x-expires": 3_600_000})
        ch.publish(b"x", routing_key=f"q-{number}")
        ch.wait_ready(f"q-{number}", 1)
    expiry = broker.node.broker.expiry
    expiry.upkeep()
    expiry.upkeep()  # one is under way
    (step,) = jobs
    grown = run(step, lambda: int(expiry.visits))
    assert sum(grown) >= COUNT and max(grown) <= MOST


def test_upkeep_of_full_queues_that_dead_letter_to_each_other(ch: RawChannel, broker: Any, jobs: list[Callable[[], bool]]) -> None:
    ring(ch, RING)
    for number in range(RING):
        for _ in range(3):
            ch.publish(b"", routing_key=f"ring-{number}")
    ch.ready("ring-0")  # all have come
    inner = broker.node.broker
    inner.expiry.upkeep()
    while jobs:
        grown = run(jobs.pop(), lambda: inner.counters.dead_lettered["maxlen"])
        assert max(grown) <= MOST
    assert all(queue.core.ready_count() <= 1 for queue in inner.queues.values())


def test_queues_whose_consumers_had_their_turn(ch: RawChannel, broker: Any, jobs: list[Callable[[], bool]]) -> None:
    expiry = broker.node.broker.expiry
    expiry._turns_over.extend(range(10**9, 10**9 + COUNT))  # deleted meanwhile
    slices = 1
    while expiry._keep_limits(broker.node.broker.clock.monotonic_ns() + 50_000):
        slices += 1
    assert slices >= COUNT // MOST and not expiry._turns_over


def test_queues_that_nobody_uses(ch: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(COUNT):
        ch.queue(f"q-{number}", arguments={"x-expires": 1})
    inner = broker.node.broker
    heap = inner.vhosts["/"].unused._heap
    wait_until(lambda: max(heap)[0] < inner.clock.monotonic_ns(), what="their time is over")
    jobs: list[Callable[[], bool]] = []
    monkeypatch.setattr(inner.loops, "in_slices", lambda step, ended=None: jobs.append(step))
    inner.housekeeping(0)
    before = len(inner.vhosts["/"].queues)
    step = jobs[-1]
    grown = run(step, lambda: before - len(inner.vhosts["/"].queues))
    assert sum(grown) == COUNT and len(grown) > 1


def test_a_cascade_leaves_its_loop_after_each_slice(ch: RawChannel, broker: Any, jobs: list[Callable[[], bool]]) -> None:
    ring(ch, RING)
    inner = broker.node.broker
    for _ in range(50):
        ch.publish(b"", routing_key="ring-0")
    ch.ready("ring-0")  # all have come
    inner.queue_limits.enforce(inner.vhosts["/"].queues["ring-0"])
    while jobs:
        grown = run(jobs.pop(), lambda: inner.counters.dead_lettered["maxlen"])
        assert max(grown) <= MOST
    ready = sum(queue.core.ready_count() for queue in inner.queues.values())
    ch.connection.close()  # what it counted is added
    wait_until(lambda: inner.counters.drops["dead_letter_cycle"] + ready == 50)


@pytest.mark.parametrize("in_tx", [False, True])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish-dlx"])
def test_a_publish_that_fills_many_queues(ch: RawChannel, broker: Any, monkeypatch: pytest.MonkeyPatch, overflow: str, in_tx: bool) -> None:
    """The dead letters of its queues are long work of its connection, whose next method waits for them."""
    inner = broker.node.broker
    ch.queue("dead")
    ch.call("exchange.declare", exchange="all", type="fanout")
    arguments = {"x-max-length": 1, "x-overflow": overflow, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for number in range(COUNT):
        ch.queue(f"q-{number}", arguments=arguments)
        ch.call("queue.bind", queue=f"q-{number}", exchange="all")
    ch.publish(b"first", exchange="all")
    ch.ready("q-0")
    if in_tx and overflow == "drop-head":
        ch.call("tx.select")
    monkeypatch.setattr(inner, "clock", Looks(inner.clock))
    whole, grown = publishing._after_some, []

    def some(handler: Any) -> bool:
        before = inner.counters.dead_lettered["maxlen"]
        done = whole(handler)
        grown.append(inner.counters.dead_lettered["maxlen"] - before)
        return done

    monkeypatch.setattr(publishing, "_after_some", some)
    ch.publish(b"second", exchange="all")
    if in_tx and overflow == "drop-head":
        ch.call("tx.commit")
    ch.wait_ready("dead", COUNT)
    assert all(queue.core.ready_count() == 1 for queue in inner.queues.values() if queue.name != "dead")
    assert max(grown, default=0) <= MOST * publishing.AFTER_AT_ONCE < COUNT
