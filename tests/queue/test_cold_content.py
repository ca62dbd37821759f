"""Past its window a queue keeps bodies on disk: order, counts and answers stay the same, and every spilled body is given back once."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("tests.drivers.queue_driver")

from flintmq.queue.control import QueueHandle
from tests.drivers.queue_driver import Consumer, Queue, Waiter, new_owner
from tests.twins.memory_log import MemoryLog

PERSISTENT = 1
SPILLED = 1 << 63


def handle(hot_bytes: int | None, durable: bool = True) -> tuple[QueueHandle, MemoryLog]:
    queue, log = QueueHandle(7), MemoryLog(hot_bytes)
    queue.set_durable(durable)
    queue.attach_log(log)
    return queue, log


def publish(queue: QueueHandle, body: bytes, flags: int = PERSISTENT, **rest: int) -> int:
    return queue.publish(b"ex", b"key", b"head", body, flags, 0, **rest)


@pytest.mark.parametrize("persistent", [True, False])
def test_head_stays_in_memory_and_the_rest_goes_cold(persistent: bool) -> None:
    queue = Queue(hot=10)
    for _ in range(5):
        queue.enqueue(b"four", persistent=persistent)
    assert (queue.ready, queue.ready_bytes, queue.resident_bytes, queue.cold_count) == (5, 20, 8, 3)
    assert queue.next_cold() == (3, queue.next_cold()[1]) and bool(queue.next_cold()[1] & SPILLED) != persistent
    assert queue.enqueue(b"", persistent=persistent) and queue.cold_count == 4, "behind a cold tail everything is cold, even nothing"


def test_arrivals_are_hot_again_once_the_cold_tail_is_gone() -> None:
    queue = Queue(hot=4)
    consumer = Consumer(queue, no_ack=True)
    for body in (b"four", b"more"):
        queue.enqueue(body)
    assert queue.cold_count == 1
    assert consumer.pull()[1] == b"four" and consumer.pull() is None
    assert queue.take_loads() == [2]
    queue.loaded(2, b"more")
    assert consumer.pull()[1] == b"more"
    queue.enqueue(b"hot!")
    assert (queue.cold_count, consumer.pull()[1]) == (0, b"hot!")


def test_immediate_message_never_goes_cold() -> None:
    queue = Queue(hot=1)
    consumer = Consumer(queue)
    assert queue.enqueue(b"large", immediate=True) == 1
    assert queue.cold_count == 0 and consumer.has_offer


def test_message_larger_than_the_window_stays_hot_for_a_waiting_consumer() -> None:
    queue = Queue(hot=1)
    consumer = Consumer(queue)
    queue.enqueue(b"large")
    assert consumer.pull()[1] == b"large"
    lonely = Queue(hot=1)
    lonely.enqueue(b"large")
    assert lonely.cold_count == 1


def test_what_consumers_hold_does_not_fill_the_window_up_to_eight_of_them() -> None:
    queue = Queue(hot=10)
    consumer = Consumer(queue)
    for number in range(10):
        queue.enqueue(b"%010d" % number)
        got = consumer.pull()
        if number < 8:
            assert got is not None and queue.cold_count == 0, "in hands, not in the window"
        else:
            assert got is None and queue.cold_count == number - 7, "memory has a bound"


def test_only_who_parked_is_woken_by_a_load() -> None:
    queue = Queue(hot=0)
    for _ in range(3):
        queue.enqueue(b"x")
    consumer = Consumer(queue)
    consumer.target.take()
    queue.loaded(2, b"x")  # read ahead: nobody waits for it
    assert consumer.target.take() == 0
    assert consumer.pull() is None and queue.take_loads() == [1]
    queue.loaded(1, b"x")
    assert consumer.target.take() == 1


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64])
def test_a_run_of_cold_entries_is_what_one_look_after_the_other_sees(most: int) -> None:
    """Those that are in memory, in hands or gone are none of it."""
    queue = Queue(hot=4)
    for number in range(40):
        queue.enqueue(b"%02d" % number)
    consumer = Consumer(queue)
    assert [consumer.pull()[1] for _ in range(2)] == [b"00", b"01"]
    for position in (9, 10, 25):
        queue.loaded(position, b"%02d" % (position - 1))
    assert queue.failed(12)
    alone, position = [], 0
    while (one := queue.next_cold(position)) is not None:
        alone.append(one)
        position = one[0] + 1
    assert [one[0] for one in alone] == [at for at in range(3, 41) if at not in (9, 10, 12, 25)]
    runs, position = [], 0
    while run := queue.cold_run(position, most):
        assert len(run) <= most
        runs += run
        position = run[-1][0] + 1
    assert runs == alone


def test_contents_that_come_at_once_wake_who_parked_on_one_of_them() -> None:
    queue = Queue(hot=0)
    for body in (b"a", b"b", b"c", b"d"):
        queue.enqueue(body)
    consumer = Consumer(queue)
    assert consumer.pull() is None and queue.take_loads() == [1]
    consumer.target.take()
    queue.loaded(3, b"c")
    assert queue.failed(4) and queue.run_loaded([(1, b"a"), (2, b"b"), (3, b"late"), (4, b"gone")]) is None
    assert consumer.target.take() == 1
    assert [consumer.pull()[1] for _ in range(3)] == [b"a", b"b", b"c"], "what was there, and what is set aside, stays as it is"
    assert (queue.cold_count, queue.ready, queue.ready_bytes, queue.failed_count) == (0, 0, 0, 1)
    assert consumer.pull() is None and queue.take_loads() == []


def test_temporary_failure_asks_again_at_the_next_pull_and_keeps_who_parked() -> None:
    queue = Queue(hot=0)
    queue.enqueue(b"x")
    consumer = Consumer(queue)
    assert consumer.pull() is None and queue.take_loads() == [1]
    assert consumer.pull() is None and queue.take_loads() == [], "asked once"
    queue.loaded(1, None)
    consumer.target.take()
    queue.loaded(1, b"x")  # by whatever way it comes after all
    assert consumer.target.take() == 1 and consumer.pull()[1] == b"x"


def test_unreadable_entry_is_set_aside_and_its_consumer_goes_on() -> None:
    queue = Queue(hot=1)
    for body in (b"", b"a", b"bb", b"c"):
        queue.enqueue(body)
    consumer = Consumer(queue, no_ack=True)
    assert consumer.pull()[1] == b"" and consumer.pull()[1] == b"a"
    assert consumer.pull() is None and queue.take_loads() == [3]
    consumer.target.take()
    assert queue.failed(3) and not queue.failed(3)
    assert consumer.target.take() == 1, "who was parked on it goes on"
    assert consumer.pull() is None and queue.take_loads() == [4]
    queue.loaded(4, b"c")
    assert consumer.pull()[1] == b"c"
    assert (queue.failed_count, queue.cold_count, queue.ready, queue.unacked) == (1, 0, 0, 1)
    queue.enqueue(b"d")
    assert queue.cold_count == 0, "a damaged message does not keep a queue on disk for ever"
    assert queue.release(3, delivered=False)  # the operator lets it be tried again
    assert (queue.failed_count, queue.cold_count) == (0, 1)


def test_entry_released_after_a_lost_answer_is_asked_for_again() -> None:
    queue = Queue(hot=0)
    queue.enqueue(b"x")
    consumer = Consumer(queue)
    assert consumer.pull() is None and queue.take_loads() == [1]
    assert queue.take_head()[0] == 1
    queue.loaded(1, b"x")  # comes while the broker holds the entry
    assert queue.release(1, delivered=False)
    assert consumer.pull() is None and queue.take_loads() == [1]


def test_consumer_reads_ahead_while_it_still_has_messages() -> None:
    queue = Queue(hot=600)
    for _ in range(1000):
        queue.enqueue(b"x")
    consumer = Consumer(queue, no_ack=True)
    for _ in range(400):
        assert consumer.pull()
    assert queue.take_loads() == [], "more than half of the window is still there"
    for _ in range(112):
        assert consumer.pull()
    assert queue.take_loads() == [513], "the next ones are asked for before they are missed"


def test_waiting_get_hears_of_every_way_its_head_can_change() -> None:
    owner = new_owner()
    for change in (
        lambda q: q.loaded(1, b"x"),
        lambda q: q.purge(),
        lambda q: q.failed(1),
        lambda q: q.hold_at(1),
        lambda q: q.take_expired(2000),
        lambda q: q.mark_deleted(),
        lambda q: q.housekeeping(),
    ):
        queue = Queue(hot=0)
        queue.enqueue(b"x", expires_at=1000)
        waiter = Waiter()
        waiter.add(queue)
        assert queue.pull(owner) is None
        waiter.take()
        change(queue)
        assert waiter.take() >= 1
        waiter.remove()
        queue.housekeeping()
        assert waiter.take() == 0


@pytest.mark.parametrize(("durable", "flags"), [(True, 0), (False, 0), (False, PERSISTENT)])
def test_spilled_content_is_given_back_once_however_it_ends(durable: bool, flags: int) -> None:
    queue, log = handle(0, durable)
    for number in range(6):
        publish(queue, b"%d" % number, flags, expires_at_ms=50 if number == 3 else 0)
    assert (log.spills, log.enqueues, queue.cold_count, queue.resident_bytes) == (6, 0, 6, 0)
    assert queue.take_head(4) == (b"ex", b"key", b"head", b"0")
    assert queue.take_expired(50, 3)[3] == b"3"
    assert queue.peek()[5] == b"1"
    assert log.unspills == 2
    assert queue.purge() == 4
    assert (log.unspills, log.misses, queue.ready_bytes()) == (6, 0, 0)


def test_spilled_content_is_given_back_with_the_queue() -> None:
    queue, log = handle(0)
    for number in range(3):
        publish(queue, b"%d" % number, 0)
    queue.mark_deleted()
    assert publish(queue, b"late", 0) == 0
    assert log.spills - log.unspills == 3, "a refused message leaves nothing behind"
    del queue
    gc.collect()
    assert (log.spills, log.unspills, log.misses) == (4, 4, 0)


def test_each_queue_spills_its_own_copy() -> None:
    queue, log = handle(0)
    other = QueueHandle(8)
    other.attach_log(log)
    publish(queue, b"x", 0)
    publish(other, b"x", 0)
    assert queue.purge() == 1
    assert other.take_head(4)[3] == b"x"


def test_head_that_cannot_be_read_is_set_aside_and_the_next_is_taken() -> None:
    queue, log = handle(0)
    publish(queue, b"damaged")
    publish(queue, b"good")
    log.lose(1)
    with pytest.raises(KeyError):
        queue.peek()
    with pytest.raises(KeyError):
        queue.take_head(4)
    assert queue.failed_count == 1
    assert queue.take_head(4)[3] == b"good"
    assert queue.take_head(4) is None


def test_log_hears_who_settled_and_when() -> None:
    queue, log = handle(None)
    publish(queue, b"x")
    queue.hold(1)
    assert queue.settle_held(1, 2, logged=False)
    assert log.last_dequeue == (0, 2, 0)


def test_cold_head_is_read_only_for_who_wants_to_see_it() -> None:
    queue, log = handle(0)
    publish(queue, b"lost")
    publish(queue, b"lost, too")
    publish(queue, b"kept")
    for number in (1, 2):
        log.lose(number)
    seen: list[tuple[bytes, ...]] = []
    assert queue.take_head(4, seen.append) is not None, "no dead-letter exchange: gone without a look at its content"
    assert seen == []
    queue.dead_letters = True
    with pytest.raises(KeyError):
        queue.take_head(4, seen.append)
    assert queue.take_head(4, seen.append)[3] == b"kept" == seen[0][3]
