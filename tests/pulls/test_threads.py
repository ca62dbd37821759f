"""The pull layer on real workers: publishers, pullers and settlements at once."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

from flintmq.clock import SystemClock
from flintmq.pulls.pull_service import STOPPING, PullRefused
from flintmq.pulls.requests import CLOSED, INVALID, MESSAGES, Answers
from flintmq.scheduler.system import ActorSystem
from tests.pulls.rig import Rig, bodies, leases

MESSAGES_EACH = 1_500
WAIT_MS = 30_000


def _threaded() -> Rig:
    rig = Rig()
    rig.actors.stop()
    rig.actors = ActorSystem(rig.limits, clock=None)
    rig.pulls._system = rig.actors
    rig.clock = SystemClock()  # type: ignore[assignment]
    rig.actors.start()
    return rig


def test_every_message_is_pulled_once_and_no_wake_is_lost() -> None:
    """Two publishers against held pulls of three groups: each message is pulled and acked once, no pull needs the end of its hold."""
    rig = _threaded()
    queue = rig.queue()
    total = 2 * MESSAGES_EACH
    seen: list[bytes] = []
    lock = threading.Lock()
    failed: list[str] = []

    def publish(name: str) -> None:
        for n in range(MESSAGES_EACH):
            rig.publish(queue, f"{name}{n}".encode())

    def pull(group: str) -> None:
        answers = Answers()
        asked = 0

        def ask() -> int:
            try:
                rig.pulls.pull(queue, group, answers, None, most=3, bytes_max=1 << 20, visibility_ms=600_000, hold_ms=60_000)
            except PullRefused as refused:
                if refused.kind != STOPPING:
                    failed.append(f"{group}: {refused}")
                return 0
            return 1

        for _ in range(4):
            asked += ask()
        while asked:
            if not answers.wait(WAIT_MS):
                failed.append(f"{group}: no answer while messages are there or the test is over")
                return
            for done in answers.take():
                asked -= 1
                if done.outcome == MESSAGES:
                    results = rig.pulls.ack(queue, leases(rig, done))
                    if set(results) != {"ok"}:
                        failed.append(f"{group}: {results}")
                    with lock:
                        seen.extend(bodies(done))
                        over = len(seen) >= total
                    if over:
                        rig.pulls.stop()
                elif done.outcome != CLOSED:
                    failed.append(f"{group}: outcome {done.outcome}")
                asked += ask()

    threads = [threading.Thread(target=publish, args=(name,)) for name in "xy"]
    threads += [threading.Thread(target=pull, args=(group,)) for group in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive()
    assert failed == []
    assert len(seen) == len(set(seen)) == total
    gauges: dict[str, Any] = rig.actors.gauges()
    assert gauges["wakes_lost_total"] == 0 and gauges["holds_ended_total"] == 0
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (0, 0)
    rig.close()


def test_a_pull_that_is_cancelled_while_it_is_looked_at_does_not_wait_on() -> None:
    """No message ever comes: each cancelled pull is answered all the same, long before its hold is over.

    With one processor for all threads a worker hardly ever looks at one just then.
    """
    rig = _threaded()
    queue = rig.queue()
    looked_at = 0
    alone = len(os.sched_getaffinity(0)) == 1
    end_s = time.monotonic() + 60
    for n in itertools.count():
        pull = rig.pull(queue, "g", hold_s=60)
        if n % 2:
            os.sched_yield()  # a busy machine may have nothing but this thread's processor for the worker
        for _ in range(n % 500 * (1 + n // 10_000 % 10)):  # a worker wakes and looks somewhere in this time, on a busy machine later
            pass
        looked_at += not pull.cancel()
        assert rig.answers.wait(WAIT_MS)
        assert rig.answers.take() == [pull]
        assert pull.outcome == INVALID
        if looked_at == 20 or (n > 10_000 and (looked_at or alone)) or time.monotonic() > end_s:
            break
    assert looked_at or alone, "nothing was tried"
    rig.close()


def test_cancels_race_with_messages() -> None:
    """Pulls that are cancelled while messages come: each is answered once, and what it got all the same goes back to the queue."""
    rig = _threaded()
    queue = rig.queue()
    answered = 0
    for n in range(300):
        pull = rig.pull(queue, "g", hold_s=60)
        publisher = threading.Thread(target=rig.publish, args=(queue, b"%d" % n))
        publisher.start()
        pull.cancel()
        publisher.join()
        assert rig.answers.wait(WAIT_MS)
        [done] = rig.answers.take()
        assert done is pull
        answered += 1
        pull.give_back(False)
    assert answered == 300
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (300, 0)
    rig.close()
