"""A level's floor passes nothing that comes back while it is looked for: such an entry would be in no span and seen by nobody again.

The scan and the move are two steps (`list_find_floor`, `list_raise_floor`); here everything that can make an entry available again comes in
between.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tests.drivers.queue_driver")

from tests.drivers.queue_driver import Consumer, Queue


def committed(queue: Queue) -> Callable[[], object]:
    at = queue.add_held(b"2")
    return lambda: queue.publish_held(at)


def committed_run(queue: Queue) -> Callable[[], object]:
    places = queue.reserve(1)
    return lambda: queue.publish_run(places, 1)


def let_go_by_the_broker(queue: Queue) -> Callable[[], object]:
    at = queue.enqueue(b"2")
    assert queue.hold_at(at)
    return lambda: queue.release(at, delivered=False)


def given_back(queue: Queue) -> Callable[[], object]:
    at = queue.enqueue(b"2")
    consumer = Consumer(queue)
    assert consumer.pull()[0] == at
    return lambda: (consumer.close(), consumer.release(at))


@pytest.mark.parametrize("comes_back", [committed, committed_run, let_go_by_the_broker, given_back])
def test_what_comes_back_behind_the_scan_is_not_passed(comes_back: Callable[[Queue], Callable[[], object]]) -> None:
    queue = Queue()
    come_back = comes_back(queue)
    assert queue.enqueue(b"3") == 2
    assert queue.take_head()[0] == 2, "nothing is available"
    found = queue.find_floor()
    assert found[0] == 3
    come_back()
    queue.raise_floor(found)
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (1, 1, 1)
    assert queue.take_head()[0] == 1, "it is seen"
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (0, 2, 0)


@pytest.mark.parametrize("comes_back", [committed, committed_run, let_go_by_the_broker, given_back])
def test_what_comes_back_below_the_floor_is_in_a_span(comes_back: Callable[[Queue], Callable[[], object]]) -> None:
    queue = Queue()
    come_back = comes_back(queue)
    queue.raise_floor(queue.find_floor())
    assert queue.floor() == 2, "nothing came back: it rises"
    come_back()
    assert queue.take_head()[0] == 1
