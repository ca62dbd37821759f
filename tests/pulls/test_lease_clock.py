"""Leases end at their time, not at the next housekeeping: the thread that sees to it, and what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flintmq.pulls.lease_clock import LeaseClock
from tests.pulls.rig import Rig, bodies, leases

FAR_NS = 3_600 * 10**9
WAIT_S = 30


@contextmanager
def running(clock: LeaseClock) -> Iterator[LeaseClock]:
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

    clock = LeaseClock(give_back)
    base = time.monotonic_ns()
    for at, armed in ((0, 0), (base + FAR_NS, base + FAR_NS), (base + 2 * FAR_NS, base + FAR_NS), (0, base + FAR_NS)):
        clock.arm(at)
        assert clock.armed_ns == armed
    with running(clock):
        clock.arm(due := time.monotonic_ns() + 20_000_000)
        assert called.wait(WAIT_S) and calls[0] >= due
    assert len(calls) == clock.passes == 1 and clock.armed_ns == 0


def test_a_pass_says_when_the_next_is() -> None:
    """What a pass returns is armed, also a time that is over already; a pass that fails does not end the thread."""
    done = threading.Event()
    answers: list[int] = [1, time.monotonic_ns(), 0]

    def give_back() -> int:
        if not answers:
            done.set()
            raise ValueError("a mistake")
        return answers.pop(0)

    with running(LeaseClock(give_back)) as clock:
        clock.arm(1)
        while answers:
            assert not done.wait(0.001)
        for _ in range(2):
            done.clear()
            clock.arm(1)
            assert done.wait(WAIT_S)


def test_a_stop_ends_the_thread() -> None:
    """While it sleeps, and with something due; nothing is called after it, and stopping again is no error."""
    clock = LeaseClock(lambda: 1)
    clock.start()
    clock.arm(1)
    clock.stop()
    passes = clock.passes
    clock.arm(1)
    clock.stop()
    assert clock.passes == passes
    idle = LeaseClock(lambda: 0)
    idle.start()
    idle.stop()
    assert idle.passes == 0
    LeaseClock(lambda: 0).stop()


def test_the_first_end_is_armed(rig: Rig) -> None:
    """A housekeeping pass arms the end of the first lease of all groups, a delay its own; a pass at that time gives back what is due."""
    queue, other = rig.queue(), rig.queue("other")
    rig.publish(queue, b"a", b"b")
    rig.publish(other, b"c")
    assert rig.pulls.clock.armed_ns == 0
    begin = rig.actors.now_ns()
    rig.now(queue, "slow", visibility_s=20)
    rig.now(other, visibility_s=5)
    second = rig.now(queue, "quick", visibility_s=20)
    rig.advance(1)
    assert rig.pulls.clock.armed_ns == begin + 5 * 10**9
    assert rig.pulls.nack(queue, leases(rig, second), delay_ms=50) == ["ok"]
    assert rig.pulls.clock.armed_ns == begin + 1_050_000_000
    rig.clock.advance(ms=50)
    rig.actors.now_ns()  # which reads the clock anew
    assert rig.pulls._give_back() == begin + 5 * 10**9
    assert bodies(rig.now(queue)) == [b"b"] and other.core.ready_count() == 0
    rig.clock.advance(ms=3_950)
    rig.actors.now_ns()
    assert rig.pulls._give_back() == begin + 20 * 10**9
    assert other.core.ready_count() == 1


@pytest.mark.parametrize("ended", ["settled", "deleted"])
def test_what_has_ended_otherwise_is_not_waited_for(rig: Rig, ended: str) -> None:
    """Without leases, or with a deleted queue, a pass has nothing to wait for."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    pull = rig.now(queue)
    if ended == "settled":
        assert rig.pulls.ack(queue, leases(rig, pull)) == ["ok"]
    else:
        rig.vhost.delete_queue("q")
    assert rig.pulls._give_back() == 0
