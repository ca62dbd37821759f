"""What an operation costs does not grow with what others hold: counted in slots passed and consumers looked at, not in time."""

from __future__ import annotations

import gc
import threading

import pytest

pytest.importorskip("tests.drivers.queue_driver")
from flintmq.core.memory_account import bytes_by_kind
from tests.drivers.queue_driver import Consumer, Queue, new_owner

MANY = 100_000


def holding(count: int) -> tuple[Queue, Consumer, list[int]]:
    """A queue whose entries are all in one consumer's hands."""
    queue = Queue()
    queue.fill(count)
    consumer = Consumer(queue)
    return queue, consumer, [consumer.pull()[0] for _ in range(count)]


@pytest.mark.parametrize("reader", ["the same", "another", "get", "broker"])
def test_one_entry_that_comes_back_costs_the_same_however_much_is_held_behind_it(reader: str) -> None:
    queue, holder, positions = holding(MANY)
    other = Consumer(queue, suspended=True)
    getter = new_owner()
    for position in (positions[0], positions[MANY // 2], positions[0]):
        before = queue.passed
        assert holder.release(position)
        if reader == "the same":
            got = holder.pull()
            assert holder.pull() is None
        elif reader == "another":
            other.suspend(False)
            got = other.pull()
            assert other.pull() is None
        else:
            got = queue.pull(getter) if reader == "get" else queue.take_head()
            assert queue.take_head() is None
        assert got[0] == position
        assert queue.passed - before < 4 * 256
        # Into the first one's hands again.
        owner = {"the same": holder.id, "another": other.id, "get": getter, "broker": 0}[reader]
        assert queue.release(position, owner)
        other.suspend(True)
        assert holder.pull()[0] == position


def test_entries_that_come_back_far_apart_are_found_without_walking_between_them() -> None:
    queue, holder, positions = holding(MANY)
    scattered = positions[:: MANY // 50]
    before = queue.passed
    for position in scattered:
        assert holder.release(position)
    assert [holder.pull()[0] for _ in scattered] == scattered
    assert holder.pull() is None
    assert queue.passed - before < 50 * 256


def test_more_places_than_are_kept_are_only_dearer() -> None:
    _queue, holder, positions = holding(MANY * 3)
    scattered = positions[::20]  # 15,000 places; 4,096 are kept apart
    for position in scattered:
        assert holder.release(position)
    assert [holder.pull()[0] for _ in scattered] == scattered
    assert holder.pull() is None


def test_get_drop_and_requeue_look_at_no_consumer() -> None:
    queue = Queue()
    idle = [Consumer(queue, prefetch=1) for _ in range(2_000)]
    taker = Consumer(queue)
    queue.fill(10)
    for one in idle[:3]:
        one.pull()
    getter = new_owner()
    before = queue.visited
    assert (queue.ready, queue.unacked) == (7, 3)
    got = queue.pull(getter)
    queue.take_head()
    assert (queue.ready, queue.unacked) == (5, 5)
    queue.release(got[0], getter)
    assert (queue.ready, queue.unacked) == (6, 4)
    assert taker.pull() is not None
    assert queue.visited - before < 200  # the few that were told; not 2,000 each time


def test_figures_are_exact_whatever_list_a_consumer_is_on() -> None:
    queue = Queue()
    queue.fill(6)
    consumer = Consumer(queue, prefetch=2)
    first = consumer.pull()[0]
    assert (queue.ready, queue.unacked) == (5, 1)
    consumer.pull()
    assert consumer.pull() is None
    assert (consumer.list, queue.ready, queue.unacked) == ("NOT_INTERESTED", 4, 2)
    consumer.ack(first)
    assert consumer.pull() is not None
    assert (queue.ready, queue.unacked) == (3, 2)
    consumer.close()
    assert (queue.ready, queue.unacked) == (3, 2)


def test_expired_messages_in_consumers_hands_are_looked_at_once() -> None:
    queue = Queue()
    count = 5_000
    for _ in range(count):
        queue.enqueue(b"x", expires_at=100)
    consumer = Consumer(queue)
    held = [consumer.pull()[0] for _ in range(count)]
    queue.enqueue(b"x", expires_at=900)
    assert queue.next_expiry == 100
    assert queue.take_expired(200) is None
    assert queue.next_expiry == 900  # no sweep begins for what can't be taken
    assert consumer.release(held[7])
    assert queue.next_expiry == 100
    assert queue.take_expired(200)[0] == held[7]
    assert queue.take_expired(200) is None
    assert queue.take_expired(200) is None  # a sweep from the start, which finds the rest of the held ones for the last time
    assert queue.next_expiry == 900


@pytest.mark.parametrize("arguments", [{}, {"exclusive": True}], ids=["shared", "exclusive"])
def test_an_offer_that_lands_during_a_suspension_goes_back(arguments: dict) -> None:
    queue = Queue()
    consumer = Consumer(queue, prefetch=1, gated=True, **arguments)
    producer = threading.Thread(target=lambda: queue.enqueue(b"x", immediate=not arguments))
    producer.start()
    while not consumer.at_gate:  # the offer has the send_lock, and has seen a ready consumer
        pass
    consumer.suspend(True)  # waits for the offer that is being made, and takes it back
    producer.join()
    assert not consumer.has_offer
    assert (consumer.used, queue.ready, queue.unacked) == (0, 1, 0)
    consumer.target.take()
    consumer.suspend(False)
    assert consumer.target.take() == 1
    assert consumer.pull()[1] == b"x"


def test_what_a_list_allocates_is_counted_and_given_back() -> None:
    """Directories, spans and columns of expiry times, too."""
    gc.collect()
    before = bytes_by_kind()["entries"]

    def held() -> int:
        return bytes_by_kind()["entries"] - before

    queue = Queue()
    queue.fill(10_000)
    plain = held()
    for number in range(10_000):
        queue.enqueue(b"x", expires_at=10**15 + number)
    assert held() - plain >= 9_000 * (24 + 8), "the last segment of before had some room"
    consumer = Consumer(queue)
    positions = [consumer.pull()[0] for _ in range(20_000)]
    taken = held()
    for position in positions[::40]:
        consumer.release(position)
    assert held() - taken >= 500 * 16, "each came back to a span of its own"
    del consumer, queue
    gc.collect()
    assert held() == 0
