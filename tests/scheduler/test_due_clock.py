"""What ends (leases, delays, visibility times) is looked at at its time: the thread that sees to it, and what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.scheduler.due_clock import DueClock

FAR_NS = 3_600 * 10**9
WAIT_S = 30
GAP_MS = 1


@contextmanager
def running(clock: DueClock) -> Iterator[DueClock]:
    clock.start()
    try:
        yield clock
    finally:
        clock.stop()


def test_the_earliest_time_counts() -> None:
    """Later times do not move it, earlier ones do; nothing is called before its time, or when nothing is armed."""
    calls: list[int] = []
    called = threading.Event()

    def give_back() -> int:
        calls.append(time.monotonic_ns())
        called.set()
        return 0

    clock = DueClock(give_back, GAP_MS)
    base = time.monotonic_ns()
    for at, armed in ((0, 0), (base + FAR_NS, base + FAR_NS), (base + 2 * FAR_NS, base + FAR_NS), (0, base + FAR_NS)):
        clock.arm(at)
        assert clock.armed_ns == armed
    with running(clock):
        clock.arm(due := time.monotonic_ns() + 20_000_000)
        assert called.wait(WAIT_S) and calls[0] >= due
    assert len(calls) == clock.passes == 1 and clock.armed_ns == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30))
def test_by_hand(steps: list[tuple[bool, int]]) -> None:
    """Arming keeps the lowest time, a look that is due forgets it; one that is not changes nothing."""
    clock = DueClock(lambda: 0, GAP_MS)
    armed = 0
    for arms, at in steps:
        if arms:
            clock.arm(at)
            armed = min(armed or at, at) if at else armed
        else:
            assert clock.take_due(at) == (0 < armed <= at)
            armed = 0 if armed <= at else armed
        assert clock.armed_ns == armed


def test_a_look_says_when_the_next_is() -> None:
    """What a look returns is armed, also a time that is over already; a look that fails does not end the thread."""
    done = threading.Event()
    answers: list[int] = [1, time.monotonic_ns(), 0]

    def give_back() -> int:
        if not answers:
            done.set()
            raise ValueError("a mistake")
        return answers.pop(0)

    with running(DueClock(give_back, GAP_MS)) as clock:
        clock.arm(1)
        while answers:
            assert not done.wait(0.001)
        for _ in range(2):
            done.clear()
            clock.arm(1)
            assert done.wait(WAIT_S)


@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_armed_is_slept_over(threads: int) -> None:
    """Each thread waits for the look at what it armed before it goes on: one that was forgotten would be waited for in vain."""
    lock = threading.Lock()
    waiting: dict[int, tuple[int, threading.Event]] = {}

    def give_back() -> int:
        now_ns = time.monotonic_ns()
        with lock:
            for number in [number for number, (at, _) in waiting.items() if at <= now_ns]:
                waiting.pop(number)[1].set()
            return min((at for at, _ in waiting.values()), default=0)

    late: list[int] = []

    def work(number: int) -> None:
        for step in range(100):
            at, event = time.monotonic_ns() + (step * (number + 3) % 7) * 300_000, threading.Event()
            with lock:
                waiting[number] = at, event
            clock.arm(at)
            if not event.wait(WAIT_S):
                late.append(step)
                return

    with running(DueClock(give_back, 0)) as clock:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not late


def test_a_stop_ends_the_thread() -> None:
    """While it sleeps, and with something due; nothing is called after it, and stopping again is no error."""
    clock = DueClock(lambda: 1, GAP_MS)
    clock.start()
    clock.arm(1)
    clock.stop()
    passes = clock.passes
    clock.arm(1)
    clock.stop()
    assert clock.passes == passes
    idle = DueClock(lambda: 0, GAP_MS)
    idle.start()
    idle.stop()
    assert idle.passes == 0
    DueClock(lambda: 0, GAP_MS).stop()
