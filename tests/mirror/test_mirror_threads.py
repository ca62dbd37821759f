"""A mirrored queue whose loops go on while its log looks at it: no end is missed, and no message is lost."""

from __future__ import annotations

import queue
import random
import select
import threading

import pytest

from tests.drivers.mirror_threads import publish, take
from tests.mirror.test_mirror import Owned

MESSAGES = 50_000


@pytest.mark.parametrize("seed", range(8))
def test_the_engine_has_what_is_in_the_queue_whatever_threads_do_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    owned = Owned()
    owned.handle.set_returns(True, -1, False)
    ended = rng.randrange(MESSAGES // 2, MESSAGES)
    threads = [threading.Thread(target=publish, args=(owned.handle, MESSAGES // 2, rng.randrange(1, 200), 50)) for _ in range(2)]
    threads += [threading.Thread(target=take, args=(owned.handle, ended // 2, rng.randrange(3, 40))) for _ in range(2)]
    for thread in threads:
        thread.start()
    flights: list[list[tuple[int, bytes]]] = []
    while any(thread.is_alive() for thread in threads) or owned.mirror.unsent or flights or owned.mirror.ended_rows:
        owned.batch += 1
        if segments := owned.mirror.take(1, owned.batch, rng.randrange(1, 500), rng.randrange(500, 100_000), 100):
            flights.append(segments)
        if flights and rng.random() < 0.6:
            segments = flights.pop(0)
            owned.rows.update({position: row for position, row in segments if row})
            owned.mirror.settle([position for position, _ in segments])
        if rng.random() < 0.3:
            owned.write_ends()
    for thread in threads:
        thread.join()
    assert owned.mirror.waiting_bytes == 0
    left = owned.handle.ready_count()
    assert left == MESSAGES - ended // 2 * 2
    other = owned.successor()
    assert other.handle.ready_count() == left
    position = here = 1
    while position:
        position, here = owned.handle.next_available(position), other.handle.next_available(here)
        assert position == here
        if position:
            assert owned.handle.message_at(position) == other.handle.message_at(position)
            position, here = position + 1, here + 1


def test_what_the_queue_tells_of_can_be_taken_at_once() -> None:
    """A message that is told of, and not seen yet, would stay until another one comes: here none comes before it was taken."""
    owned = Owned()
    count = 3_000
    turns = queue.SimpleQueue[None]()

    def publish_in_turns() -> None:
        for _ in range(count):
            turns.get()
            publish(owned.handle, 1, 10, 2)

    thread = threading.Thread(target=publish_in_turns)
    thread.start()
    for number in range(count):
        turns.put(None)
        while owned.mirror.sent_to() == [number]:
            assert select.select([owned.port.descriptor], [], [], 20)[0], f"message {number} is there, and nobody is told"
            owned.port.take_told()
            if owned.mirror.unsent:
                owned.send()
    thread.join()
