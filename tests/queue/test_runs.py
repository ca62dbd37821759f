"""Runs of a queue's entries, held and given back while producers and consumers go on: each message is somewhere, once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from flintmq.queue.control import QueueHandle
from flintmq.queue.held_runs import Run

MESSAGES = 20_000
LARGE = 1 << 60


def hold(run: Run, count: int, **more: int) -> int:
    """Holds up to `count` messages from the head on. Returns how many."""
    arguments = {"bytes_max": LARGE, "upto": 0, "ranges_max": LARGE >> 30, **more}
    taken = cursor = 0
    again = True
    while again:
        got, _, again, cursor = run.hold(
            cursor, count - taken, arguments["bytes_max"], arguments["upto"], True, arguments["ranges_max"], pieces=2
        )
        taken += got
    return taken


def filled(count: int, levels: int = 1) -> QueueHandle:
    queue = QueueHandle(1, 1, levels) if levels > 1 else QueueHandle(1)
    for number in range(count):
        queue.publish(b"", b"q", b"", b"%d" % number, 16, number % levels)
    return queue


def test_a_run_is_the_head_of_the_queue_in_order() -> None:
    """More than one section under the lock, over segments and levels, with counts that fit."""
    queue = filled(5000, 3)
    run = Run(queue)
    assert hold(run, 4000) == 4000 == run.count
    assert (queue.ready_count(), queue.unacked_count()) == (1000, 4000)
    assert len(run.ranges()) == run.range_count == 3
    positions = [run.position(number) for number in range(4000)]
    assert positions == sorted(positions)
    assert positions[-1] < queue.next_available()
    run.release()
    assert (queue.ready_count(), queue.unacked_count(), queue.next_available()) == (5000, 0, positions[0])
    assert queue.peek()[1]


def test_what_is_settled_is_gone() -> None:
    queue = filled(3000)
    run = Run(queue)
    hold(run, 3000)
    run.settle()
    assert (queue.ready_count(), queue.unacked_count(), queue.ready_bytes()) == (0, 0, 0)
    run.release()  # nothing is held any more
    assert queue.next_available() == 0
    assert queue.publish(b"", b"q", b"", b"new", 0, 0) == 3001


@pytest.mark.parametrize("released", [True, False])
def test_an_entry_restored_in_doubt_is_adopted(released: bool) -> None:
    """It counts as unacked from then on, is adopted once, and is cold again when it comes back."""
    queue = QueueHandle(1)
    queue.restore(5, 11, 100, redelivered=False, held=True)
    assert (queue.ready_count(), queue.unacked_count()) == (0, 0)
    run, other = Run(queue), Run(queue)
    run.adopt([(5, 1), (7, 2)], 3)
    other.adopt([(5, 1)], 3)
    assert (run.count, run.acquired_us, other.count) == (1, 3, 0)
    assert (queue.ready_count(), queue.unacked_count(), queue.cold_count, queue.entry_facts(5)) == (0, 1, 0, (True, 0, 0))
    run.release() if released else run.settle()
    assert (queue.ready_count(), queue.unacked_count(), queue.cold_count) == ((1, 0, 1) if released else (0, 0, 0))


def test_limits() -> None:
    """A bound of bytes, of positions and of pieces; consumers leave gaps."""
    queue = filled(100)
    queue.take_at(2, 7)
    queue.take_at(4, 7)
    run = Run(queue)
    assert hold(run, 100, bytes_max=3) == 3
    assert run.ranges() == [(1, 1), (3, 1), (5, 1)]
    assert hold(run, 100, upto=8) == 3
    queue.release_held(2, True, 7)
    assert hold(run, 100, ranges_max=4) == 1
    assert run.ranges()[-1] == (2, 1)
    assert hold(run, 100, ranges_max=4) == 0
    assert hold(run, 100) == 92


def test_threads() -> None:
    """Producer, two consumers, and two threads that hold runs, give back or end them: nothing is lost, nothing comes twice."""
    queue = QueueHandle(1)
    ended: list[list[bytes]] = [[], [], [], []]
    stop = threading.Event()

    def produce() -> None:
        for number in range(MESSAGES):
            queue.publish(b"", b"q", b"", b"%d" % number, 0, 0)

    def consume(mine: list[bytes]) -> None:
        while not stop.is_set():
            message = queue.take_head(1)
            if message is not None:
                mine.append(message[3])

    def transact(mine: list[bytes]) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            run = Run(queue)
            if not hold(run, number % 700):
                continue
            if number % 3:
                run.release()
                continue
            mine.extend(queue.message_at(run.position(at))[3] for at in range(run.count))
            run.settle()

    threads = [threading.Thread(target=consume, args=(ended[at],)) for at in (0, 1)]
    threads += [threading.Thread(target=transact, args=(ended[at],)) for at in (2, 3)]
    producer = threading.Thread(target=produce)
    for thread in (*threads, producer):
        thread.start()
    producer.join()
    while queue.ready_count() or queue.unacked_count():
        stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    # What was held at the first of the two looks and given back before the second is still there.
    while (message := queue.take_head(1)) is not None:
        ended[0].append(message[3])
    assert (queue.ready_count(), queue.unacked_count()) == (0, 0)
    counts = Counter(body for mine in ended for body in mine)
    assert len(counts) == MESSAGES
    assert set(counts.values()) == {1}
