"""Entries expire in the order of their times, wherever they stand, whatever consumers hold; and the index stays small."""

from __future__ import annotations

import random

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.ports import DequeueReason
from flintmq.queue.control import QueueHandle
from tests.drivers.queue_driver import Consumer, Queue


def test_a_live_head_keeps_no_expired_entry() -> None:
    queue = Queue()
    queue.enqueue(b"lives for ever")
    for number in range(5_000):
        queue.enqueue(b"%d" % number, expires_at=10_000 - number)
    assert queue.next_expiry == 5_001
    assert [queue.take_expired(5_003)[1] for _ in range(3)] == [b"4999", b"4998", b"4997"]
    assert queue.take_expired(5_003) is None
    assert queue.next_expiry == 5_004


def test_random_times_come_in_order_and_equal_ones_as_they_were_published() -> None:
    rng = random.Random(5)
    queue = Queue()
    expected = []
    for number in range(6_000):
        at = rng.randrange(1, 900)
        queue.enqueue(b"%d" % number, expires_at=at)
        expected.append((at, number))
    expected.sort()
    for now in range(0, 1_000, 50):
        while got := queue.take_expired(now):
            at, number = expected.pop(0)
            assert at <= now and got[1] == b"%d" % number
            assert queue.dequeue(got[0])
        assert not expected or queue.next_expiry == expected[0][0] > now
    assert not expected and queue.next_expiry == 0


@pytest.mark.parametrize("disorder", [0.0, 0.001, 0.2])
def test_entries_that_mostly_come_in_order_leave_in_order(disorder: float) -> None:
    """A line of slots, a heap of them, and the change between the two, while entries expire and consumers give some back."""
    rng = random.Random(disorder)
    queue = Queue()
    consumer = Consumer(queue)
    waiting: dict[int, int] = {}
    held: list[int] = []
    for now in range(1, 12_000):
        at = now + 900 - (rng.randrange(800) if rng.random() < disorder else 0)
        waiting[queue.enqueue(b"x", expires_at=at)] = at
        if rng.random() < 0.05 and (got := consumer.pull()):
            held.append(got[0])
        if held and rng.random() < 0.05:
            assert consumer.release(held.pop(rng.randrange(len(held))))
        while got := queue.take_expired(now):
            assert waiting[got[0]] == min(when for position, when in waiting.items() if position not in held) <= now
            assert queue.dequeue(got[0])
            del waiting[got[0]]
        assert now % 100 or all(when > now for position, when in waiting.items() if position not in held)
    for position in held:
        assert consumer.release(position)
    while got := queue.take_expired(20_000):
        assert queue.dequeue(got[0])
        del waiting[got[0]]
    assert not waiting and queue.next_expiry == 0


@pytest.mark.parametrize("rounds", [1, 7])
def test_entries_that_come_back_expire_once_however_often_they_came(rounds: int) -> None:
    queue = Queue()
    for number in range(3_000):
        queue.enqueue(b"x", expires_at=100 + number % 3)
    consumer = Consumer(queue)
    for _ in range(rounds):
        held = [consumer.pull()[0] for _ in range(3_000)]
        assert queue.take_expired(101) is None, "all are in the consumer's hands"
        for position in held:
            assert consumer.release(position)
    taken = []
    while got := queue.take_expired(102):
        taken.append(got[0])
        assert queue.dequeue(got[0])
    assert len(taken) == len(set(taken)) == 3_000
    assert queue.next_expiry == 0


def test_settled_entries_are_passed_and_their_segments_leave_the_index() -> None:
    queue = Queue()
    for number in range(10_000):
        queue.enqueue(b"x", expires_at=1_000 + number)
    consumer = Consumer(queue)
    for _ in range(9_990):
        consumer.ack(consumer.pull()[0])
    assert queue.next_expiry >= 1_000 + 10_000 - 2 * 1_361, "whole segments went"
    assert queue.take_expired(10_989) is None
    assert queue.take_expired(10_990)[0] == 9_991


def test_an_entry_that_expires_costs_34_bytes_beside_its_content() -> None:
    before = bytes_by_kind()["entries"]
    handle = QueueHandle(1)
    count = 200_000
    rng = random.Random(1)
    for _ in range(count):
        handle.publish(b"", b"", b"", b"", 0, 0, 10**12 + rng.randrange(10**9))
    assert (bytes_by_kind()["entries"] - before) / count < 35
    handle.purge()


def test_what_the_broker_gives_back_expires_again() -> None:
    """Its dead letter met a lack of memory or a full disk: the message is back in its place, and its time is over still."""

    def fails(message: object) -> None:
        raise MemoryError

    core = QueueHandle(1)
    core.dead_letters = True
    core.publish(b"", b"q", b"header", b"body", 0, 0, 50)
    with pytest.raises(MemoryError):
        core.take_expired(60, DequeueReason.EXPIRE, fails)
    assert core.ready_count() == 1
    message = core.take_expired(60, DequeueReason.EXPIRE)
    assert message is not None and message[3] == b"body"
