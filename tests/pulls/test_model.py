"""The pull layer against a model: any order of pulls, publishes, settlements, cancels and worker slices."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.pulls.requests import EMPTY, INVALID, MESSAGES
from tests.pulls.rig import Rig, bodies, leases

GROUPS = ["a", "b"]


class Pulls(RuleBasedStateMachine):
    """One queue, two groups. Slices run one at a time, where the rules say so, so that wakes fall between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(pull_idle_ms=3_000)
        self.queue = self.rig.queue()
        self.published = 0
        self.waiting: dict[int, tuple[Any, float, float]] = {}  # id -> pull, asked, end of its hold
        self.answered: set[int] = set()
        self.keep: list[Any] = []  # so that ids stay theirs
        self.held: dict[str, bytes] = {}
        self.acked: set[bytes] = set()
        self.now = 0.0

    def teardown(self) -> None:
        self.rig.pulls.stop()
        self.collect()
        assert not self.waiting, "a stop answers everybody"
        self.rig.close()

    def collect(self) -> None:
        """Answers that are there: each pull has one, the right one."""
        for pull in self.rig.answers.take():
            assert id(pull) not in self.answered
            self.answered.add(id(pull))
            _, _, until = self.waiting.pop(id(pull))
            if pull.outcome == MESSAGES:
                assert pull.count
                for lease, body in zip(leases(self.rig, pull), bodies(pull), strict=True):
                    assert body not in self.acked and body not in self.held.values(), "a message is in one pair of hands"
                    self.held[lease] = body
            else:
                assert pull.count == 0
                assert pull.outcome != EMPTY or self.now >= until or until == -1.0

    @rule(group=st.sampled_from(GROUPS), hold=st.sampled_from([0, 0, 1, 5, 60]), most=st.integers(1, 4))
    def pull(self, group: str, hold: int, most: int) -> None:
        pull = self.rig.pull(self.queue, group, hold_s=hold, most=most, visibility_s=1000)
        self.keep.append(pull)
        self.waiting[id(pull)] = (pull, self.now, self.now + hold if hold else -1.0)

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.rig.publish(self.queue, b"%d" % self.published)
            self.published += 1

    @rule(slices=st.integers(1, 4))
    def run(self, slices: int) -> None:
        for _ in range(slices):
            self.rig.actors.step()
        self.collect()

    @rule(seconds=st.sampled_from([0.5, 1, 10, 61]))
    def time(self, seconds: float) -> None:
        self.rig.clock.advance(ms=int(seconds * 1000))
        self.now += seconds
        self.rig.actors.tick()
        self.rig.pulls.tick(0)
        self.collect()

    @rule(n=st.integers(0, 100), kind=st.sampled_from(["ack", "nack", "back"]))
    def settle(self, n: int, kind: str) -> None:
        if not self.held:
            return
        lease = sorted(self.held)[n % len(self.held)]
        body = self.held.pop(lease)
        if kind == "ack":
            assert self.rig.pulls.ack(self.queue, [lease]) == ["ok"]
            self.acked.add(body)
        else:
            assert self.rig.pulls.nack(self.queue, [lease]) == ["ok"]

    @rule(n=st.integers(0, 100))
    def cancel(self, n: int) -> None:
        if self.waiting:
            pull = list(self.waiting.values())[n % len(self.waiting)][0]
            if pull.cancel():
                self.collect()
                assert pull.outcome == INVALID and id(pull) in self.answered

    @rule()
    def quiet(self) -> None:
        """No lost wake: when nothing wants to run, nobody waits while messages do."""
        self.rig.settle_down()
        self.collect()
        assert not (self.waiting and self.queue.core.ready_count()), "a pull waits beside a message"
        assert all(until > self.now for _, _, until in self.waiting.values()), "a hold is over, and nobody was told"

    @invariant()
    def conserved(self) -> None:
        assert self.queue.core.ready_count() + self.queue.core.unacked_count() == self.published - len(self.acked)
        assert self.rig.actors.gauges()["wakes_lost_total"] == 0


Pulls.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPulls = Pulls.TestCase
