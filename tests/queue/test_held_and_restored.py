"""Entries of open transactions keep their place and are seen by nobody; recovery puts entries back exactly where they were."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.drivers.queue_driver")

from flintmq.queue.control import QueueHandle
from tests.drivers.queue_driver import Consumer, Queue
from tests.drivers.queue_threads import restore_run
from tests.twins.memory_log import MemoryLog

REDELIVERED, HELD = 1, 2
LEVEL = 1 << 56


def bodies(queue: Queue) -> list[bytes]:
    taken = []
    while got := queue.take_head():
        taken.append(got[1])
        queue.dequeue(got[0])
    return taken


def test_held_entry_is_invisible_until_it_is_published_in_its_place() -> None:
    queue = Queue()
    consumer = Consumer(queue)
    queue.enqueue(b"1")
    at = queue.add_held(b"2")
    queue.enqueue(b"3")
    assert (queue.ready, queue.unacked, queue.ready_bytes, queue.enqueued_total) == (2, 0, 2, 2)
    assert [consumer.pull()[1] for _ in range(2)] == [b"1", b"3"] and consumer.pull() is None
    assert queue.purge() == 0 and queue.peek(at)[0] == 3 and queue.take_expired(1 << 40) is None
    consumer.target.take()
    assert queue.publish_held(at)
    assert consumer.target.take() == 1, "its consumer is woken although it looked further already"
    got = consumer.pull()
    assert got[:4] == (at, b"2", False, 0)
    assert queue.logged == 3


def test_dropped_held_entry_leaves_no_trace() -> None:
    queue = Queue()
    at = queue.add_held(b"x", expires_at=5)
    assert queue.drop_held(at) and not queue.drop_held(at) and not queue.publish_held(at)
    assert (queue.ready, queue.unacked, queue.enqueued_total, queue.resident_bytes, queue.logged) == (0, 0, 0, 0, 0)
    assert queue.enqueue(b"y") == at + 1, "positions are never used again"


def test_held_entry_of_a_priority_queue_takes_its_level() -> None:
    queue = Queue(levels=3)
    queue.enqueue(b"low", 0)
    at = queue.add_held(b"high", 2)
    assert at >> 56 == 0
    queue.publish_held(at)
    assert bodies(queue) == [b"high", b"low"]


def test_held_entry_expires_only_after_it_was_published() -> None:
    queue = Queue()
    at = queue.add_held(b"x", expires_at=5)
    assert queue.take_expired(10) is None
    queue.publish_held(at)
    assert queue.take_expired(10)[0] == at


def test_settlement_of_a_transaction_is_not_logged_again() -> None:
    queue = Queue()
    queue.enqueue(b"x")
    consumer = Consumer(queue)
    position = consumer.pull()[0]
    assert not queue.forget_logged(position, consumer.id + 1)
    assert queue.forget_logged(position, consumer.id)
    assert consumer.ack(position)
    assert queue.logged == 1, "the log was told by the transaction"


def test_entry_of_a_dequeue_in_doubt_is_out_of_the_way_until_it_is_decided() -> None:
    queue = Queue()
    for body in (b"1", b"2", b"3"):
        queue.enqueue(body)
    assert queue.hold_at(2) and not queue.hold_at(2) and not queue.hold_at(99)
    assert (queue.ready, queue.unacked) == (2, 1)
    assert [queue.take_head()[1] for _ in range(2)] == [b"1", b"3"]
    assert queue.release(2, delivered=False)
    assert queue.take_head()[:3] == (2, b"2", False)


def test_restored_run_is_served_in_order_and_flagged() -> None:
    queue = Queue()
    assert queue.restore_many([(3, 11, 0, 5, REDELIVERED), (4, 12, 0, 6, HELD), (9, 13, 77, 7, 0), (9, 14, 0, 1, 0)]) == 3
    assert (queue.ready, queue.ready_bytes, queue.cold_count, queue.resident_bytes, queue.tail()) == (2, 12, 2, 0, 9)
    assert queue.next_cold() == (3, 11) and queue.next_cold(4) == (9, 13)
    assert queue.next_expiry == 77
    queue.loaded(3, b"three")
    queue.loaded(9, b"seventy")
    assert queue.publish_held(4) and queue.cold_count == 1
    queue.loaded(4, b"fourth")
    assert [queue.take_head()[:3] for _ in range(3)] == [(3, b"three", True), (4, b"fourth", False), (9, b"seventy", False)]


def test_restored_length_is_corrected_by_the_content() -> None:
    queue = Queue()
    queue.restore_many([(1, 11, 0, 99, 0)])
    queue.loaded(1, b"four")
    assert queue.ready_bytes == 4


def test_positions_go_on_above_the_recorded_tail() -> None:
    queue = Queue(levels=2)
    assert queue.set_tail(1, 5000) and queue.set_tail(0, 7) and not queue.set_tail(2, 1)
    assert queue.set_tail(1, 3) and queue.tail(1) == 5000, "never backwards"
    assert queue.enqueue(b"low", 0) == LEVEL | 5001
    assert queue.enqueue(b"high", 1) == 8
    assert queue.restore(LEVEL | 5001, b"again") == 0
    assert bodies(queue) == [b"high", b"low"]


def test_many_entries_restore_in_little_memory() -> None:
    queue = Queue()
    restore_run(queue, 1, 300_000)
    assert queue.ready == 300_000
    assert queue.memory / 300_000 < 26


def test_redelivered_runs_of_a_stop() -> None:
    queue = Queue()
    for position, redelivered in ((1, True), (2, True), (5, True), (6, False), (8, True)):
        queue.restore(position, b"x", redelivered)
    queue.enqueue(b"transient")
    assert queue.next_redelivered(1) == (1, 5)
    assert queue.next_redelivered(6) == (8, 8)
    assert queue.next_redelivered(9) is None


def test_handle_holds_and_decides() -> None:
    queue, log = QueueHandle(1), MemoryLog()
    queue.set_durable(True)
    queue.attach_log(log)
    queue.restore(1, 7, 4)
    assert queue.hold(1) and queue.release_held(1) and queue.hold(1) and queue.settle_held(1)
    assert (log.enqueues, log.dequeues, queue.ready_count(), queue.tail()) == (0, 0, 0, 1)
    assert queue.publish(b"", b"", b"", b"x", 0, 0) == 2
    with pytest.raises(ValueError):
        queue.restore(2, 1, 1)
