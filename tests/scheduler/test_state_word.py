"""The state word of an actor against a model: suspensions by token, closing, retirement, and work that is neither lost nor doubled."""

from __future__ import annotations

import pytest

pytest.importorskip("flintmq.scheduler.system")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flintmq.scheduler.outcomes import AGAIN, Outcome
from tests.scheduler.conftest import Bench, Store

SUSPENSIONS_MAX = 8
KEY = (0, 1, 0)


class StateWord(RuleBasedStateMachine):
    """One actor. The model: outstanding tokens, requests by where they should be, items that pulls may take."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(workers=2, actor_mailbox_max=5, actor_idle_ms=1_000)
        self.store = Store()
        self.tokens: list[int] = []
        self.stale: list[int] = []
        self.accepted: dict[int, int | None] = {}  # number -> when its hold ends
        self.number = 0

    def teardown(self) -> None:
        self.bench.actors.stop()
        assert len(self.bench.answers) == len(self.accepted)

    def exists(self) -> bool:
        return bool(self.bench.actors.groups())

    @rule(kind=st.sampled_from(["plain", "pull", "held", "long", "broken"]))
    def dispatch(self, kind: str) -> None:
        self.number += 1
        turns = iter([AGAIN, Outcome.MESSAGES])
        results = {
            "plain": None,
            "pull": self.store.take,
            "held": self.store.take,
            "long": lambda: next(turns),
            "broken": ValueError("broken"),
        }
        before = self.bench.gauges["mailboxes"]
        fine = self.bench.ask(self.number, result=results[kind], hold_ms=50 if kind == "held" else 0)
        assert fine == (before < 5)
        if fine:
            self.accepted[self.number] = None

    @rule()
    def add_item(self) -> None:
        self.store.items += 1
        self.bench.actors.wake(*KEY)

    @rule()
    def add_item_for_one(self) -> None:
        self.store.items += 1
        self.bench.actors.wake(*KEY, next_only=True)

    @rule()
    def suspend(self) -> None:
        token = self.bench.actors.suspend(*KEY)
        assert (token != 0) == (self.exists() and len(self.tokens) < SUSPENSIONS_MAX)
        assert token not in self.tokens + self.stale
        if token:
            self.tokens.append(token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        assert self.bench.actors.resume(*KEY, token)
        self.tokens.remove(token)
        self.stale.append(token)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def resume_stale(self, data: st.DataObject) -> None:
        """Another time, or of an actor that is gone: nothing happens."""
        assert not self.bench.actors.resume(*KEY, data.draw(st.sampled_from(self.stale)))

    @rule(token=st.integers(0, 2**40))
    def resume_made_up(self, token: int) -> None:
        if token not in self.tokens:
            assert not self.bench.actors.resume(*KEY, token)

    @rule(worker=st.integers(0, 1))
    def step(self, worker: int) -> None:
        looked = len(self.bench.looks)
        self.bench.actors.step(worker)
        if self.tokens:
            assert len(self.bench.looks) == looked

    @rule(ms=st.sampled_from([1, 20, 60]))
    def time_passes(self, ms: int) -> None:
        self.bench.later(ms)

    @rule()
    def close(self) -> None:
        waiting = len(self.accepted) - len(self.bench.answers)
        if self.bench.actors.close(*KEY):
            assert len(self.accepted) == len(self.bench.answers), waiting
            while self.exists():  # paused or queued: its entry ends the actor
                self.bench.run()
                self.bench.later(100)
            self.forget()

    @rule()
    def retire(self) -> None:
        waiting = len(self.accepted) - len(self.bench.answers)
        if self.bench.actors.retire(*KEY):
            assert waiting == 0 and not self.tokens
            self.forget()

    def forget(self) -> None:
        self.stale.clear()
        self.tokens.clear()

    @invariant()
    def suspensions_agree(self) -> None:
        groups = self.bench.actors.groups()
        assert len(groups) <= 1
        if groups:
            assert groups[0]["suspensions"] == len(self.tokens)
            assert groups[0]["mailbox"] <= 5

    @invariant()
    def answered_once(self) -> None:
        names = [name for name, _ in self.bench.answers]
        assert len(set(names)) == len(names)
        assert set(names) <= set(self.accepted)

    @rule()
    def at_rest(self) -> None:
        """When nothing is runnable and no time passes: no work is left, and no pull waits beside an item."""
        self.bench.run()
        while any(group["paused"] for group in self.bench.actors.groups()):
            self.bench.later(1_000)
            self.bench.run()
        if self.tokens:
            return
        gauges = self.bench.gauges
        assert gauges["mailboxes"] == 0
        assert gauges["run_queue"] == 0
        assert gauges["parked"] == len(self.accepted) - len(self.bench.answers)
        if gauges["parked"]:
            assert self.store.items == 0


StateWord.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStateWord = StateWord.TestCase
