"""x-delayed-retry-*: what comes back waits longer each time, in its place, and nothing of it is lost with its queue."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.clock import ManualClock
from flintmq.core.memory_account import bytes_by_kind
from flintmq.queue.control import QueueHandle
from flintmq.queue.due_index import DueIndex
from flintmq.queue.retries import Retries
from flintmq.vhost.arguments import EXPIRY_MS_MAX
from tests.support.broker import wait_until
from tests.support.clocks import HeldClock, held
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
KINDS = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}]


def waits(kind: str = "all", least: int = 60, **rest: Any) -> dict[str, Any]:
    return {"x-delayed-retry-type": kind, "x-delayed-retry-min": least, **rest}


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start({"housekeeping_ms": 60_000}, clock=HeldClock())  # the clock alone rings


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


@pytest.mark.parametrize("kind", KINDS)
def test_each_wait_is_longer_than_the_one_before(ch: RawChannel, kind: dict[str, Any]) -> None:
    ch.queue("q", durable=True, arguments={**kind, **waits(**{"x-delayed-retry-max": 100})})
    ch.consume("q", "c")
    ch.publish(b"x", routing_key="q", delivery_mode=2)
    begun = 0.0
    for least_s in (0, 0.06, 0.1, 0.1):  # 60, 100 instead of 120, 100
        got = ch.expect("basic.deliver")
        assert time.monotonic() - begun >= least_s - 0.002
        assert bool(got.redelivered) == (least_s > 0)
        begun = time.monotonic()
        ch.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)


@pytest.mark.parametrize(
    ("kind", "how", "delayed"),
    [
        ("all", "reject", True),
        ("all", "nack", True),
        ("failed", "reject", True),
        ("failed", "nack", False),
        ("returned", "reject", False),
        ("returned", "nack", True),
        ("returned", "recover", True),
        ("disabled", "reject", False),
    ],
)
def test_what_waits(ch: RawChannel, broker: Any, kind: str, how: str, delayed: bool) -> None:
    ch.queue("q", arguments=waits(kind, 3_600_000))
    ch.publish(b"x", routing_key="q")
    tag = ch.call("basic.get", queue="q").delivery_tag
    if how == "recover":
        ch.call("basic.recover", requeue=True)
    else:
        ch.send(f"basic.{how}", delivery_tag=tag, requeue=True)
    assert ch.ready("q") == (0 if delayed else 1)
    assert len(broker.node.broker.retries) == (1 if delayed else 0)


def test_a_client_that_goes_failed(ch: RawChannel, broker: Any, connect: Connect) -> None:
    ch.queue("q", arguments=waits("failed", 50))
    ch.publish(b"x", routing_key="q")
    other = connect(broker)
    other.channel().call("basic.get", queue="q")
    other.drop()
    ch.consume("q")
    assert bool(ch.expect("basic.deliver").redelivered)


def test_others_overtake_what_waits_and_it_comes_back_to_its_place(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments=waits(least=80))
    for body in (b"1", b"2", b"3"):
        ch.publish(body, routing_key="q")
    first = ch.call("basic.get", queue="q")
    with held(broker):
        ch.send("basic.nack", delivery_tag=first.delivery_tag, requeue=True)
        assert ch.call("basic.get", queue="q", no_ack=True).body == b"2"
    ch.wait_ready("q", 2)
    assert [ch.call("basic.get", queue="q", no_ack=True).body for _ in range(2)] == [b"1", b"3"]


def test_the_delivery_limit_ends_it_without_a_wait(ch: RawChannel) -> None:
    ch.queue("dead")
    arguments = {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue("q", arguments={**waits(least=20), **arguments})
    ch.consume("q")
    ch.publish(b"x", routing_key="q")
    for _ in range(2):
        ch.send("basic.reject", delivery_tag=ch.expect("basic.deliver").delivery_tag, requeue=True)
    ch.wait_ready("dead", 1)


def test_a_deleted_queue_takes_what_waits_with_it(ch: RawChannel, broker: Any) -> None:
    ch.queue("q", arguments=waits(least=3_600_000))
    for _ in range(5):
        ch.publish(b"x", routing_key="q")
        ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
    ch.call("queue.purge", queue="q")
    core = broker.node.broker
    assert len(core.retries) == 5  # a purge takes what is ready
    handle = core.vhosts["/"].queues["q"].core
    ch.call("queue.delete", queue="q")
    wait_until(lambda: handle.unacked_count() == 0, what="nothing is left of it")
    assert len(core.retries) == 0


class Queue:
    """A queue of messages that the broker holds. `core`: has `count` of them, from position 1 on."""

    def __init__(self, retries: Retries, index: DueIndex, queue_id: int, count: int, least_ms: int, most_ms: int = 2**64 - 1) -> None:
        self.retries = retries
        self.core: Any = QueueHandle(queue_id)
        self.core.retry_min_ms, self.core.retry_max_ms = least_ms, most_ms
        self.core.watch(index)
        for _ in range(count):
            assert self.core.hold(self.core.publish(b"", b"q", b"", b"x", 0, 0))

    @property
    def back(self) -> list[int]:
        """Those that are available."""
        positions = []
        position = self.core.next_available(0)
        while position:
            positions.append(position)
            position = self.core.next_available(position + 1)
        return positions

    def add(self, position: int, count: int) -> None:
        assert self.retries.add(self.core, position, count)


def made(clock: ManualClock) -> tuple[Retries, DueIndex]:
    retries, index = Retries(clock), DueIndex()
    retries.use(index)
    return retries, index


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 40)), max_size=60))
def test_all_come_back_at_their_times(steps: list[tuple[int, int, int]]) -> None:
    """Model: a list of (due, queue, position); whatever the order of waits and looks, nothing is early, late or lost."""
    clock = ManualClock()
    retries, index = made(clock)
    queues = {1: Queue(retries, index, 1, len(steps), 10), 2: Queue(retries, index, 2, len(steps), 7, 15)}
    policies = {1: (10, 2**64), 2: (7, 15)}
    expected: list[tuple[int, int, int]] = []
    for number, (queue_id, count, pause_ms) in enumerate(steps):
        least_ms, most_ms = policies[queue_id]
        expected.append((clock.wall_ms() + min(least_ms * count, most_ms), queue_id, number + 1))
        queues[queue_id].add(number + 1, count)
        clock.advance(ms=pause_ms)
        assert retries.step(clock.monotonic_ns() + 10**12)
        for queue_id, queue in queues.items():
            assert queue.back == [one for at, of, one in expected if of == queue_id and at <= clock.wall_ms()]
    assert len(retries) == sum(at > clock.wall_ms() for at, _, _ in expected)
    assert retries.due_ms == min([at for at, _, _ in expected if at > clock.wall_ms()], default=0)
    index.release()
    assert len(retries) == 0


def test_many_queues_and_a_deleted_one() -> None:
    """The heap of queues: a queue in the middle of it goes, and the others come back at their times."""
    clock = ManualClock()
    retries, index = made(clock)
    rng = random.Random(1)
    queues = [Queue(retries, index, number + 1, 20, rng.randint(1, 50)) for number in range(40)]
    for position in range(1, 21):
        for queue in rng.sample(queues, len(queues)):
            queue.add(position, position)
    gone = queues.pop(7)
    gone.core.mark_deleted()
    ending = retries.forget(gone.core)
    assert ending is not None and ending() and gone.core.unacked_count() == 0
    assert retries.forget(gone.core) is None and len(retries) == 39 * 20
    for _ in range(1_100):
        clock.advance(ms=1)
        assert retries.step(clock.monotonic_ns() + 10**12)
        for queue in queues:
            assert len(queue.back) == min(20, (clock.monotonic_ns() - ManualClock().monotonic_ns()) // 1_000_000 // queue.core.retry_min_ms)
    assert len(retries) == 0 and not retries.is_due
    index.release()


def test_memory_of_what_came_back_is_given_back() -> None:
    clock = ManualClock()
    retries, index = made(clock)
    queue = Queue(retries, index, 1, 5_000, 10)
    before = bytes_by_kind()["entries"]
    for position in range(1, 5_001):
        queue.add(position, 1)
    full = bytes_by_kind()["entries"] - before
    clock.advance(ms=10)
    for rest in (500, 0):
        while len(retries) > rest:
            retries.step(clock.monotonic_ns())
        assert bytes_by_kind()["entries"] - before <= full * rest * 4 // 5_000
    index.release()


def test_the_longest_wait_is_long() -> None:
    """Ten years after each of 65,535 returns: no sum of it runs over."""
    clock = ManualClock()
    retries, index = made(clock)
    queue = Queue(retries, index, 1, 1, EXPIRY_MS_MAX)
    queue.add(1, 65_535)
    assert not retries.is_due and retries.due_ms - clock.wall_ms() > 10 * EXPIRY_MS_MAX
    index.release()


class SetClock(ManualClock):
    """Its wall clock may be set."""

    def set(self, ms: int) -> None:
        self._wall_ms += ms


@pytest.mark.parametrize("hour_ms", [-3_600_000, 3_600_000])
def test_a_wall_clock_that_is_set_changes_no_wait(hour_ms: int) -> None:
    clock = SetClock()
    retries, index = made(clock)
    queue = Queue(retries, index, 1, 1, 1_000)
    queue.add(1, 1)
    clock.set(hour_ms)
    assert retries.step(clock.monotonic_ns() + 10**12) and not queue.back and not retries.is_due
    assert retries.due_ms == clock.wall_ms() + 1_000
    clock.advance(ms=999)
    assert retries.step(clock.monotonic_ns() + 10**12) and not queue.back
    clock.advance(ms=1)
    assert retries.is_due and retries.step(clock.monotonic_ns() + 10**12) and queue.back == [1]
    assert retries.due_ms == 0
    index.release()
