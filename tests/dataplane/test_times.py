"""The age of what waits is told by any thread, while housekeeping passes note how far the queues have come."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

from flintmq.dataplane.times import Comings, QueueWatch
from flintmq.ports import POSITION_INDEX_BITS


def test_ages_are_told_while_a_housekeeping_pass_notes_the_tails() -> None:
    """sub.tail runs on threads of channels, the passes on an I/O loop: neither may stop the other."""

    class Core:
        tails = 1

        def priorities(self) -> int:
            return 1

        def tail(self, level: int) -> int:
            return self.tails

    core = Core()
    watch = QueueWatch(core, None, 0)  # type: ignore[arg-type]
    wrong: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                # the end of what is known: every sample is looked at
                assert 0 <= watch.time_of(max(2, core.tails - 1)) <= core.tails
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        for number in range(2, 12_000):
            core.tails = number
            watch.sample(number)
            if wrong:
                break
    finally:
        over.set()
        looker.join()
        sys.setswitchinterval(interval)
    assert wrong == []


class Core:
    """A queue that says how far its levels have come."""

    def __init__(self, *tails: int) -> None:
        self.tails = list(tails)
        self.gone = 0  # entries of level 0 that were taken

    def priorities(self) -> int:
        return len(self.tails)

    def tail(self, level: int) -> int:
        return self.tails[level]

    def ready_count(self) -> int:
        return sum(self.tails) - self.gone

    def unacked_count(self) -> int:
        return 0

    def next_available(self, position: int) -> int:
        return max(position, self.gone + 1) if self.gone < self.tails[0] else 0


class Queue:
    def __init__(self, queue_id: int, core: Core | None, **policy: bool) -> None:
        self.queue_id, self.core = queue_id, core
        self.policy = SimpleNamespace(**{"is_stream": False, "is_shared": False, **policy})


def test_an_entry_came_when_a_look_first_saw_it() -> None:
    core, levels = Core(3), Core(1, 2)
    queues: dict[int, Any] = {1: Queue(1, core), 2: Queue(2, None, is_stream=True), 3: Queue(3, levels)}
    comings = Comings(100, 8)
    assert comings.time_of(1, 1, 7) == 7, "nobody has looked: it came just now"
    comings.look(queues, 10)
    core.tails[0] = 5
    comings.look(queues, 20)
    comings.look(queues, 30)
    assert [comings.time_of(1, position, 40) for position in (1, 3, 4, 5, 6)] == [10, 10, 20, 20, 40]
    assert [comings.time_of(3, level << POSITION_INDEX_BITS | 2, 40) for level in (0, 1)] == [40, 10]


def test_what_is_remembered_of_a_queue_is_bounded_and_the_newest_is_exact() -> None:
    core = Core(0)
    comings, queues = Comings(100, 8), {1: Queue(1, core)}
    for now in range(1, 100):
        core.tails[0] = now
        comings.look(queues, now)
    assert len(comings._samples[1, 0]) <= 16
    assert comings.time_of(1, 99, 200) == 99
    for position in range(1, 100):
        assert position <= comings.time_of(1, position, 200) <= position + 2 * 99 // 4
    core.gone = 90
    for now in range(100, 110):
        core.tails[0] = now
        comings.look(queues, now)
    assert min(comings._samples[1, 0][::2]) >= 91, "of what was taken nothing is remembered"
    core.gone = 109
    comings.look(queues, 200)
    assert not comings._samples
    core.tails[0] = 110
    comings.look(queues, 300)
    del queues[1]
    comings.look(queues, 400)
    assert not comings._samples


def test_a_pass_looks_at_so_many_levels_and_the_next_one_goes_on() -> None:
    queues = {number: Queue(number, Core(*[1] * 3)) for number in range(10)}
    comings, seen = Comings(6, 8), []
    for now in range(1, 6):
        comings.look(queues, now)
        seen.append(len(comings._samples))
    assert seen == [6, 12, 18, 24, 30]
    comings.look(queues, 6)
    assert len(comings._samples) == 30
