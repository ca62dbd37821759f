"""Entries that left memory come back as they were, in their order, to whoever asks; nobody who waits for one is forgotten, and each run is
given back once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
Consumer, Queue, Waiter = queue_driver.Consumer, queue_driver.Queue, queue_driver.Waiter

THERE, BUSY, FAILED, NO_MEMORY, CAME = range(5)


@pytest.fixture(autouse=True)
def small_segments() -> Iterator[None]:
    queue_driver.set_segments(2, 4)
    yield
    queue_driver.set_segments()


def backlog(count: int = 42, hot: int = 0, **options: int) -> Queue:
    queue = Queue(hot=hot, **options)
    for number in range(count):
        queue.enqueue(b"%04d" % number)
    return queue


def drain(queue: Queue, consumer: Consumer) -> list[bytes]:
    """What a consumer gets while a loader answers each of its requests."""
    bodies = []
    while True:
        got = consumer.pull()
        if got is not None:
            bodies.append(got[1])
            continue
        asked = queue.take_loads()
        if not asked:
            return bodies
        for position in asked:
            queue.page_in(position)
            cold = queue.next_cold(position)
            if cold:
                queue.loaded(cold[0], b"%04d" % (cold[0] - 1))


def test_the_cold_middle_leaves_memory_and_both_ends_stay() -> None:
    queue = backlog(42)
    before = queue.memory
    assert queue.page_out() == 8 and queue.shells == 8 and queue.shell_entries == 32
    assert queue.memory <= before - 8 * 32768
    assert queue.page_out() == 0, "two segments at either end stay"


def test_a_consumer_gets_everything_in_order() -> None:
    queue = backlog(42)
    queue.page_out()
    consumer = Consumer(queue, no_ack=True)
    assert drain(queue, consumer) == [b"%04d" % number for number in range(42)]
    assert (queue.ready, queue.shells, queue.kept_runs, queue.logged) == (0, 0, 0, 0)


def test_who_parks_on_a_shell_is_woken_by_its_entries() -> None:
    queue = backlog(42)
    queue.page_out()
    for position in range(1, 5):
        assert queue.hold_at(position)
    consumer = Consumer(queue)
    consumer.target.take()
    assert consumer.pull() is None and queue.take_loads() == [5]
    assert consumer.pull() is None and queue.take_loads() == [], "asked for once"
    assert queue.page_in(5) == CAME and consumer.target.take(), "woken by the entries"
    assert consumer.pull() is None and queue.take_loads() == [5], "now its content is asked for"
    queue.loaded(5, b"0004")
    assert consumer.pull()[:2] == (5, b"0004")


def test_a_refused_shell_is_asked_for_again() -> None:
    queue = backlog(42)
    queue.page_out()
    for position in range(1, 5):
        queue.hold_at(position)
    consumer = Consumer(queue)
    assert consumer.pull() is None and queue.take_loads() == [5]
    queue.loaded(5, None)
    assert consumer.pull() is None and queue.take_loads() == [5]


def test_a_waiting_get_is_told() -> None:
    queue = backlog(42)
    queue.page_out()
    for position in range(1, 5):
        queue.hold_at(position)
    waiter = Waiter()
    waiter.add(queue)
    assert queue.pull(99) is None
    waiter.take()
    queue.page_in(5)
    assert waiter.take()
    waiter.remove()


def test_counts_redeliveries_and_lengths_come_back() -> None:
    queue = backlog(42)
    consumer = Consumer(queue)
    for position in range(1, 9):
        queue.loaded(position, b"%04d" % (position - 1))
        assert consumer.pull()[0] == position
    for _ in range(2):
        for position in range(1, 9):
            consumer.release(position)
            assert consumer.pull() is not None
    for position in range(1, 9):
        consumer.release(position)
    consumer.close()
    for position in range(1, 9):
        queue.evict(position)
    figures = (queue.ready, queue.ready_bytes, queue.unacked, queue.cold_count)
    assert queue.page_out() == 8
    assert (queue.ready, queue.ready_bytes, queue.unacked, queue.cold_count) == figures
    assert [queue.next_redelivered(0), queue.next_redelivered(9)] == [(1, 8), None]
    queue.page_in(7)
    queue.loaded(7, b"0006")
    reader = Consumer(queue, browser=True)
    for position in range(1, 7):
        queue.hold_at(position)
    assert reader.pull()[:4] == (7, b"0006", True, 3)


def test_what_somebody_is_at_stays() -> None:
    queue = backlog(42)
    queue.hold_at(12)
    queue.loaded(17, b"0016")
    assert queue.page_out() == 6, "one entry in somebody's hands, one with its body in memory"


def test_a_segment_that_came_back_rests() -> None:
    queue = backlog(42)
    queue.page_out()
    queue.page_in(7)
    before = queue.shells
    assert queue.page_in(7) == THERE
    for _ in range(2):
        assert queue.page_out() <= 1
    assert queue.shells == before + 1


def test_an_index_log_that_takes_nothing_changes_nothing() -> None:
    queue = backlog(42)
    queue.set_runs(full=True)
    assert queue.page_out() == 0 and queue.shells == 0
    assert queue.available() == list(range(1, 43))
    queue.set_runs()
    assert queue.page_out() == 8


def test_a_run_that_cannot_be_read_leaves_the_shell() -> None:
    queue = backlog(42)
    queue.page_out()
    queue.set_runs(lost=True)
    assert queue.page_in(7) == FAILED and queue.shells == 8
    queue.set_runs()
    assert queue.page_in(7) == CAME


def test_expired_entries_of_a_shell_are_asked_for_one_shell_after_the_other() -> None:
    queue = Queue(hot=0)
    for number in range(42):
        queue.enqueue(b"%04d" % number, expires_at=1000 + number // 10)
    assert queue.page_out() == 8
    assert queue.next_expiry == 1000
    taken = []
    while got := queue.take_expired(1002):
        taken.append(got[0])
        queue.dequeue(got[0])
    assert taken == list(range(1, 31))
    assert queue.next_expiry == 1003 and queue.ready == 12


def test_a_purge_ends_shells_without_reading_them() -> None:
    queue = backlog(42)
    queue.hold_at(3)
    queue.page_out()
    shells = queue.shells
    queue.set_runs(lost=False)
    assert shells and queue.purge() == 41
    assert (queue.ready, queue.unacked, queue.shells, queue.kept_runs, queue.logged) == (0, 1, 0, 0, 1)
    assert queue.enqueue(b"new") == 43


@pytest.mark.parametrize("priority", [0, 4])
def test_levels_leave_memory_each_for_itself(priority: int) -> None:
    queue = Queue(hot=0, levels=5)
    for number in range(42):
        queue.enqueue(b"%04d" % number, priority=priority)
        queue.enqueue(b"%04d" % number, priority=2)
    assert queue.page_out() == 16
    assert len(queue.available()) == 84 and queue.shells == 0


def test_a_queue_that_ends_frees_its_shells() -> None:
    queue = backlog(42)
    queue.page_out()
    del queue


def test_a_log_that_takes_no_run_is_asked_once_in_a_round() -> None:
    queue = backlog(400)
    queue.set_runs(full=True)
    before = queue.refusals
    queue.page_out()
    assert 0 < queue.refusals - before <= 10, "ten rounds"


def test_no_segment_has_more_slots_than_its_pages_hold() -> None:
    queue_driver.set_segments(16, 5000)
    queue = backlog(6000)
    assert queue.page_out() == 3, "2, 16, and then 1,365 at most"
    assert queue.shell_entries == 3 * 1365
