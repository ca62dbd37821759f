"""Order through release, close and priorities; browsers; immediate and exclusive offers; gaps, expiry, cold content; memory."""

from __future__ import annotations

import pytest

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
queue_threads = pytest.importorskip("tests.drivers.queue_threads")
Consumer, Queue = queue_driver.Consumer, queue_driver.Queue


def drain(consumer) -> list[bytes]:
    bodies = []
    while got := consumer.pull():
        bodies.append(got[1])
    return bodies


def filled(count: int, **arguments) -> Queue:
    queue = Queue(**arguments)
    for number in range(count):
        queue.enqueue(b"%d" % number)
    return queue


# --- order ----------------------------------------------------------------------------------------------------------------


def test_released_entries_come_back_in_their_old_places_flagged_and_counted() -> None:
    queue = filled(6)
    first = Consumer(queue)
    positions = [first.pull()[0] for _ in range(4)]
    first.release(positions[2])
    first.release(positions[0], delivered=False)
    second = Consumer(queue)
    got = [second.pull() for _ in range(4)]
    assert [g[1] for g in got] == [b"0", b"2", b"4", b"5"]
    assert [(g[2], g[3]) for g in got] == [(False, 0), (True, 1), (False, 0), (False, 0)]


def test_a_closed_consumers_messages_go_to_another_before_any_later_one() -> None:
    queue = filled(5)
    first = Consumer(queue)
    held = [first.pull()[0] for _ in range(3)]
    first.close()
    for position in reversed(held):
        assert first.release(position)
    assert drain(Consumer(queue)) == [b"0", b"1", b"2", b"3", b"4"]


def test_get_and_consumers_share_one_order() -> None:
    queue = filled(4)
    owner = queue_driver.new_owner()
    consumer = Consumer(queue)
    assert queue.pull(owner)[1] == b"0"
    assert consumer.pull()[1] == b"1"
    assert queue.release(1, owner)
    assert consumer.pull()[1] == b"0"
    assert queue.pull(owner)[1] == b"2"
    assert consumer.release(1)
    assert queue.pull(owner)[1] == b"0"


def test_only_the_holder_settles_and_only_once() -> None:
    queue = filled(1)
    first, second = Consumer(queue), Consumer(queue)
    position = first.pull()[0]
    assert not queue.dequeue(position, second.id)
    assert not queue.dequeue(position, 0)
    assert not queue.release(position, second.id)
    assert queue.dequeue(position, first.id)
    assert not queue.dequeue(position, first.id)
    assert not queue.release(position, first.id)
    assert not queue.dequeue(position + 1, first.id)


def test_delivery_count_rises_with_each_return() -> None:
    queue = filled(1)
    consumer = Consumer(queue)
    for count in range(5):
        got = consumer.pull()
        assert got[3] == count
        consumer.release(got[0])


# --- priorities -------------------------------------------------------------------------------------------------------------


def levels_of(queue: Queue, priorities: list[int | None]) -> list[int]:
    return [queue.priorities - 1 - (queue.enqueue(b"x", p) >> 56) for p in priorities]


@pytest.mark.parametrize(
    ("levels", "priorities", "expected"),
    [
        (6, [None, 0, 1, 5, 6, 255], [0, 0, 1, 5, 5, 5]),
        (1, [None, 3], [0, 0]),
        (256, [0, 255, 128], [0, 255, 128]),
    ],
)
def test_rabbitmq_rule_is_the_smaller_of_priority_and_maximum(levels: int, priorities: list, expected: list[int]) -> None:
    assert levels_of(Queue(levels=levels, rule="rabbitmq"), priorities) == expected


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (1, [0] * 10),
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        (3, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]),
        (10, list(range(10))),
        (12, list(range(10))),
    ],
)
def test_qpid_rule_clamps_around_the_middle_and_reads_absent_as_four(levels: int, expected: list[int]) -> None:
    queue = Queue(levels=levels, rule="qpid")
    assert queue.priorities == levels
    assert levels_of(queue, list(range(10))) == expected
    assert levels_of(queue, [None]) == [expected[4]]


def test_a_late_high_priority_message_goes_before_what_the_pointer_passed() -> None:
    queue = Queue(levels=3)
    consumer = Consumer(queue)
    for number in range(3):
        queue.enqueue(b"low%d" % number, 0)
    assert consumer.pull()[1] == b"low0"
    queue.enqueue(b"high", 2)
    queue.enqueue(b"middle", 1)
    assert drain(consumer) == [b"high", b"middle", b"low1", b"low2"]


def test_release_of_a_high_message_goes_before_lower_ones_again() -> None:
    queue = Queue(levels=2)
    consumer = Consumer(queue)
    queue.enqueue(b"high", 1)
    queue.enqueue(b"low0", 0)
    queue.enqueue(b"low1", 0)
    position = consumer.pull()[0]
    assert consumer.pull()[1] == b"low0"
    consumer.release(position)
    assert drain(consumer) == [b"high", b"low1"]


# --- browsers ---------------------------------------------------------------------------------------------------------------


def test_a_browser_sees_each_entry_once_and_acquires_none() -> None:
    queue = filled(3)
    browser = Consumer(queue, browser=True)
    assert drain(browser) == [b"0", b"1", b"2"]
    assert (queue.ready, queue.unacked) == (3, 0)
    taken = queue.take_head()
    queue.release(taken[0])
    assert drain(browser) == [], "a return is not shown again"
    queue.enqueue(b"3")
    assert browser.target.take() >= 1
    assert drain(browser) == [b"3"]


def test_a_browser_of_a_priority_queue_sees_late_high_messages_once() -> None:
    queue = Queue(levels=3)
    queue.enqueue(b"low0", 0)
    browser = Consumer(queue, browser=True)
    assert drain(browser) == [b"low0"]
    queue.enqueue(b"high0", 2)
    queue.enqueue(b"low1", 0)
    queue.enqueue(b"middle0", 1)
    assert drain(browser) == [b"high0", b"middle0", b"low1"]
    queue.enqueue(b"high1", 2)
    assert drain(browser) == [b"high1"]


# --- offers -----------------------------------------------------------------------------------------------------------------


def test_immediate_without_a_ready_consumer_comes_back_and_leaves_nothing() -> None:
    queue = Queue()
    assert queue.enqueue(b"1", immediate=True) == 0
    consumer = Consumer(queue, prefetch=1)
    queue.enqueue(b"2")
    assert consumer.pull()[1] == b"2"
    assert queue.enqueue(b"3", immediate=True) == 0, "no credit"
    consumer.suspend()
    assert queue.enqueue(b"4", immediate=True) == 0
    assert (queue.ready, queue.unacked) == (0, 1)
    assert Consumer(queue).pull() is None


def test_immediate_reaches_an_idle_consumer_as_an_unstealable_offer() -> None:
    queue = Queue()
    consumer = Consumer(queue, prefetch=1)
    position = queue.enqueue(b"1", immediate=True)
    assert position and consumer.has_offer and consumer.list == "NOTIFIED" and consumer.used == 1
    assert consumer.target.take() == 1
    assert queue.take_head() is None
    assert consumer.pull()[:2] == (position, b"1")
    assert consumer.pull() is None


def test_immediate_is_not_offered_past_an_earlier_message() -> None:
    queue = filled(1)
    Consumer(queue)
    assert queue.enqueue(b"later", immediate=True) == 0
    assert queue.ready == 1


def test_an_unsent_offer_goes_back_in_its_place_when_the_consumer_goes() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    assert queue.enqueue(b"1", immediate=True)
    queue.enqueue(b"2")
    consumer.close()
    got = Consumer(queue).pull()
    assert (got[1], got[2]) == (b"1", False)


def test_suspending_gives_an_unsent_offer_back_with_its_credit() -> None:
    queue = Queue()
    consumer, other = Consumer(queue, prefetch=1), Consumer(queue)
    assert queue.enqueue(b"1", immediate=True)
    consumer.suspend()
    assert consumer.used == 0 and not consumer.has_offer
    assert other.target.take() == 1
    assert other.pull()[1] == b"1"


def test_the_exclusive_short_cut_hands_the_message_to_the_idle_consumer() -> None:
    queue = Queue()
    consumer = Consumer(queue, exclusive=True)
    queue.enqueue(b"1")
    assert consumer.has_offer and consumer.target.take() == 1
    queue.enqueue(b"2")
    assert drain(consumer) == [b"1", b"2"]


# --- gaps, expiry, cold content ---------------------------------------------------------------------------------------------


def test_gaps_of_recovery_cost_nothing_and_order_goes_on_above_them() -> None:
    queue = Queue()
    assert queue.restore(5, b"five", True) == 5
    assert queue.restore(1_000_000_000_000, b"far") == 1_000_000_000_000
    assert queue.restore(7, b"used") == 0
    assert queue.memory < 40_000
    assert queue.enqueue(b"next") == 1_000_000_000_001
    consumer = Consumer(queue)
    got = [consumer.pull() for _ in range(3)]
    assert [(g[1], g[2]) for g in got] == [(b"five", True), (b"far", False), (b"next", False)]
    assert all(consumer.ack(g[0]) for g in got)


def test_expired_entries_are_taken_earliest_first_and_only_available_ones() -> None:
    queue = Queue()
    for number, expires in enumerate([50, 0, 10, 30, 10]):
        queue.enqueue(b"%d" % number, expires_at=expires)
    consumer = Consumer(queue)
    assert consumer.pull()[1] == b"0"
    assert queue.next_expiry == 10
    assert queue.take_expired(9) is None
    assert [queue.take_expired(40)[1] for _ in range(3)] == [b"2", b"4", b"3"]
    assert queue.take_expired(60) is None, "in the consumer's hands"
    consumer.release(1)
    assert queue.take_expired(60)[1] == b"0"


def test_delivery_parks_at_cold_content_asks_once_and_keeps_order() -> None:
    queue = filled(2)
    consumer = Consumer(queue)
    assert queue.evict(1) and not queue.evict(1)
    assert consumer.pull() is None and consumer.pull() is None
    assert queue.take_loads() == [1]
    assert consumer.list == "INTERESTED"
    consumer.target.take()
    queue.loaded(1, b"0")
    assert consumer.target.take() == 1
    assert drain(consumer) == [b"0", b"1"]


def test_removing_a_cold_head_wakes_who_parked_on_it() -> None:
    queue = filled(2)
    consumer = Consumer(queue)
    queue.evict(1)
    assert consumer.pull() is None
    consumer.target.take()
    assert queue.take_head()[:2] == (1, None)
    assert consumer.target.take() == 1
    assert drain(consumer) == [b"1"]


# --- memory -----------------------------------------------------------------------------------------------------------------


def test_an_idle_queue_is_small_and_an_emptied_one_gives_back() -> None:
    queue = Queue()
    idle = queue.memory
    assert idle < 1088
    queue.fill(100_000)
    assert 24 * 100_000 <= queue.memory < 26 * 100_000
    assert queue.purge() == 100_000
    queue.housekeeping()
    queue.housekeeping()
    assert queue.memory == idle


def test_one_old_live_entry_does_not_pin_what_was_deleted_behind_it() -> None:
    queue = filled(1)
    consumer = Consumer(queue)
    assert consumer.pull()[1] == b"0"
    queue.fill(50_000)
    assert queue.purge() == 50_000
    assert queue.memory < 150_000


def test_a_steady_flow_keeps_memory_flat() -> None:
    queue = Queue()
    queue_threads.flow(queue, 20_000)
    assert queue.memory < 150_000
