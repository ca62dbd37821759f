"""A queue whose messages are on disk is not empty: pulls wait for what is being read, or are told to come back; never "nothing"."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.pulls.requests import BUSY, EMPTY, MESSAGES
from flintmq.scheduler.system import ActorSystem
from tests.pulls.rig import Rig, bodies
from tests.twins.memory_log import MemoryLog

THREADED_PULLS = 2_000


def cold_queue(rig: Rig, *messages: bytes) -> tuple[Any, MemoryLog]:
    """A queue that keeps no body in memory, and the log that has them."""
    queue, log = rig.queue(), MemoryLog(0)
    queue.core.attach_log(log)
    rig.publish(queue, *messages)
    assert queue.core.cold_count == len(messages)
    return queue, log


@pytest.mark.parametrize("hold_s", [0, 0.1])
def test_a_message_on_disk_is_waited_for(rig: Rig, hold_s: float) -> None:
    """The pull is answered with the message when it was read, be it after the hold."""
    queue, log = cold_queue(rig, b"a")
    rig.pull(queue, hold_s=hold_s)
    rig.advance(1)
    assert rig.answers.take() == []
    assert log.answer_loads() == 1
    rig.settle_down()
    assert [bodies(pull) for pull in rig.answers.take()] == [[b"a"]]


def test_a_disk_that_takes_too_long_is_told(rig: Rig) -> None:
    """After pull_load_ms the answer is BUSY; the message is there for the next pull."""
    queue, log = cold_queue(rig, b"a")
    rig.pull(queue)
    rig.settle_down()
    rig.advance(rig.limits.pull_load_ms / 1000)
    (late,) = rig.answers.take()
    assert (late.outcome, late.loading) == (BUSY, True)
    log.answer_loads()
    rig.pull(queue)
    rig.settle_down()
    assert [bodies(pull) for pull in rig.answers.take()] == [[b"a"]]


def test_a_message_that_is_gone_is_not_waited_for_any_longer(rig: Rig) -> None:
    """The queue is purged while the pull waits for its only message: EMPTY, which is the truth by then."""
    queue, _ = cold_queue(rig, b"a")
    rig.pull(queue)
    rig.settle_down()
    queue.core.purge()
    rig.advance(rig.limits.pull_load_ms / 1000)
    assert [pull.outcome for pull in rig.answers.take()] == [EMPTY]


def test_a_load_that_is_done_before_the_pull_parks_is_seen(make: Callable[..., Rig]) -> None:
    """The body comes into memory while the worker is still about to park the pull that asked for it: it is looked at again."""
    # However late the reader's thread gets its turn, no time ends the wait: only what is overlooked is not answered below.
    rig = make(pull_load_ms=600_000, pull_wait_ms_max=600_000)
    rig.actors.stop()
    rig.actors = ActorSystem(rig.limits, clock=None, workers=1)
    rig.pulls._system = rig.actors
    rig.actors.start()
    queue, log = cold_queue(rig)
    over = threading.Event()

    def disk() -> None:
        while not over.is_set():
            log.answer_loads()

    reader = threading.Thread(target=disk)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the reader's thread is nearly always in Python
    reader.start()
    try:
        for n in range(THREADED_PULLS):
            rig.publish(queue, b"%d" % n)
            rig.pull(queue, visibility_s=600)
            assert rig.answers.wait(30_000), "no answer"
            (pull,) = rig.answers.take()
            assert (pull.outcome, bodies(pull)) == (MESSAGES, [b"%d" % n])
    finally:
        over.set()
        reader.join()
        sys.setswitchinterval(switch_s)
