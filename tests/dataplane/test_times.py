"""The age of what waits is told by any thread, while housekeeping passes note how far the queues have come."""

from __future__ import annotations

import sys
import threading

from flintmq.dataplane.times import QueueWatch


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
