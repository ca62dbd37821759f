"""How far a queue may be above its length limit for consumers that are about to take from it, and how that ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flintmq.queue.due_index import DueIndex
from tests.drivers.queue_driver import Consumer, Credit, Queue

MOST, BYTES = 100, 1000


@pytest.fixture
def index() -> Iterator[DueIndex]:
    due = DueIndex()
    due.set_over(MOST, BYTES, 20)
    yield due
    due.release()


@pytest.fixture
def queue(index: DueIndex) -> Queue:
    made = Queue(queue_id=7)
    made.watch(index)
    made.limit(5)
    return made


def test_what_consumers_want_is_their_credit(queue: Queue) -> None:
    assert queue.consumers_want(50) == 0
    three = Consumer(queue, prefetch=3)
    assert queue.consumers_want(50) == 3
    consumers = [
        Consumer(queue, browser=True),
        Consumer(queue, prefetch=4, suspended=True),
        Consumer(queue, prefetch=4, wants=b"x"),
        Consumer(queue, prefetch=2, priority=5),
    ]
    assert queue.consumers_want(50) == 5 and queue.consumers_want(4) == 4
    queue.enqueue(b"a")
    assert consumers[-1].pull() and queue.consumers_want(50) == 4
    three.suspend()
    assert queue.consumers_want(50) == 1
    everything = Consumer(queue)
    assert queue.consumers_want(50) == 50
    for consumer in [three, everything, *consumers]:
        consumer.close()
    assert queue.consumers_want(50) == 0


def test_a_shared_credit_is_counted_once(queue: Queue) -> None:
    shared = Credit(7)
    consumers = [Consumer(queue, prefetch=3, shared=shared) for _ in range(20)]
    assert queue.consumers_want(50) == 7
    consumers.append(Consumer(queue, prefetch=2, shared=Credit(1)))
    assert queue.consumers_want(50) == 8


def test_many_consumers_cost_a_bounded_look(queue: Queue) -> None:
    consumers = [Consumer(queue, prefetch=1, wants=b"x") for _ in range(500)]
    before = queue.visited
    assert queue.consumers_want(1) == 0
    assert queue.visited - before <= 128, "64, and as many again when some go to the back"
    assert len(consumers) == 500


def test_a_count_that_is_cut_goes_on_with_others(queue: Queue) -> None:
    waiting = [Consumer(queue, prefetch=1) for _ in range(300)]
    for consumer in waiting:
        consumer.block()
    ready = [Consumer(queue, prefetch=2) for _ in range(5)]
    counts = []
    for _ in range(300 // 64 + 1):
        before = queue.visited
        counts.append(queue.consumers_want(50))
        assert queue.visited - before <= 128
    assert counts[-1] == 10
    assert queue.consumers_want(50, 1_000) == 10
    assert len(ready) == 5


def test_channels_without_credit_hide_no_others(queue: Queue) -> None:
    takers = [Consumer(queue, shared=Credit(1)) for _ in range(20)]
    for taker in takers:
        queue.enqueue(b"")
        assert taker.pull()
    other = Consumer(queue, prefetch=3, shared=Credit(2))
    assert queue.consumers_want(50) == 2
    other.close()


def test_a_queue_waits_for_ready_consumers_up_to_a_bound(queue: Queue, index: DueIndex) -> None:
    for _ in range(6):
        queue.enqueue(b"")
    assert not queue.limit_waits() and index.take_over() == []
    consumer = Consumer(queue, prefetch=1)
    assert queue.limit_waits() and queue.limit_waits()
    assert index.take_over() == [7] and index.take_over() == []
    for _ in range(MOST - 1):
        queue.enqueue(b"")
    assert queue.limit_waits()
    queue.enqueue(b"")
    assert not queue.limit_waits()
    consumer.close()


def test_bytes_are_bounded_but_one_message_may_have_any_size(queue: Queue) -> None:
    queue.limit(0, 0)
    consumer = Consumer(queue)
    queue.enqueue(b"x" * 5 * BYTES)
    assert queue.limit_waits()
    queue.enqueue(b"x")
    assert not queue.limit_waits()
    consumer.close()


def test_the_look_ends_the_wait_unless_something_was_taken(queue: Queue, index: DueIndex) -> None:
    for _ in range(20):
        queue.enqueue(b"")
    consumer = Consumer(queue, prefetch=10)
    assert queue.limit_waits() and index.take_over() == [7]
    assert queue.limit_due()  # nobody took anything
    assert queue.limit_waits()
    assert consumer.pull() and index.take_over() == [7]
    assert not queue.limit_due()  # one was taken, and more are wanted: it is looked at again
    assert index.take_over() == [7]
    assert consumer.pull()
    consumer.suspend()
    assert queue.limit_due()  # nobody wants more
    while queue.ready > 5:
        queue.dequeue(queue.take_head()[0])
    assert not queue.limit_due()
    consumer.close()


def test_a_refusal_counts_what_nobody_can_take(queue: Queue) -> None:
    consumer = Consumer(queue, prefetch=10)
    taken = 0
    while not queue.refuses(1):
        queue.enqueue(b"x")
        taken += 1
    assert taken == 15
    assert queue.refuses(1, 1, 1)
    consumer.suspend()
    while queue.ready > 5:
        queue.dequeue(queue.take_head()[0])
    assert queue.refuses(1)
    queue.dequeue(queue.take_head()[0])
    assert not queue.refuses(1) and queue.refuses(1, 1, 1)
    consumer.close()


def test_a_refusal_counts_bytes_behind_what_is_wanted(queue: Queue) -> None:
    queue.limit(1000, 30)
    consumer = Consumer(queue, prefetch=4)
    taken = 0
    while not queue.refuses(10):
        queue.enqueue(b"x" * 10)
        taken += 1
    assert taken == 7
    assert queue.refuses(31)
    consumer.close()


def test_limit_zero_refuses_whoever_waits(queue: Queue) -> None:
    queue.limit(0)
    consumer = Consumer(queue)
    assert queue.refuses(1)
    consumer.close()


def test_without_an_index_nothing_waits() -> None:
    queue = Queue()
    queue.limit(1)
    consumer = Consumer(queue)
    for _ in range(2):
        queue.enqueue(b"")
    assert not queue.limit_waits() and queue.refuses(1)
    consumer.close()
