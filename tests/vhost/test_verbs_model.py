"""C1 to C3: two loops, four connections, a database that answers when it will, and a node that dies: each verb happens once and whole, or
not at all; what is answered is durable; memory, database and a model that knows no waiting say the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from flintmq.errors import StoreError
from flintmq.vhost.changes import Changes, Names

from .fakes import FakeCore
from .verbs_model import CLIENTS, LOOPS, Node

places = st.integers(0, CLIENTS - 1)
names = st.sampled_from("ab")
sources = st.sampled_from("xy")
keys = st.sampled_from([b"", b"k"])


class Verbs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node = Node()

    @rule(place=places, name=names, kind=st.sampled_from(["passive", "durable", "transient", "exclusive"]))
    def declare(self, place: int, name: str, kind: str) -> None:
        options = {} if kind == "transient" else {kind: True}
        self.node.ask(place, "declare_queue", name, own=True, **options)

    @rule(place=places, name=names, if_empty=st.booleans())
    def delete(self, place: int, name: str, if_empty: bool) -> None:
        self.node.ask(place, "delete_queue", name, own=True, if_empty=if_empty)

    @rule(place=places, name=sources, durable=st.booleans())
    def exchange(self, place: int, name: str, durable: bool) -> None:
        self.node.ask(place, "declare_exchange", name, "direct", durable=durable)

    @rule(place=places, name=sources, if_unused=st.booleans())
    def delete_exchange(self, place: int, name: str, if_unused: bool) -> None:
        self.node.ask(place, "delete_exchange", name, if_unused=if_unused)

    @rule(place=places, queue=names, source=sources, key=keys, bind=st.booleans())
    def bind(self, place: int, queue: str, source: str, key: bytes, bind: bool) -> None:
        self.node.ask(place, "bind_queue" if bind else "unbind_queue", queue, source, key, None, own=True)

    @rule(name=names)
    def arrive(self, name: str) -> None:
        self.node.arrive(name)

    @precondition(lambda self: self.node.database.waiting)
    @rule()
    def commit(self) -> None:
        self.node.commit()

    @precondition(lambda self: self.node.database.waiting)
    @rule()
    def refuse(self) -> None:
        self.node.refuse()

    @rule(loop=st.integers(0, LOOPS))
    def run_loop(self, loop: int) -> None:
        self.node.run(loop)
        self.node.forget()

    @rule(place=places)
    def hang_up(self, place: int) -> None:
        self.node.hang_up(place)

    @rule(at=st.sampled_from(["before", "at", "after"]))
    def crash(self, at: str) -> None:
        """Before the commit of what waits; when it is durable and the broker does not know; when it knows, and no loop has run."""
        if at != "before":
            self.node.commit(tell=at == "after")
        self.node.crash()

    def teardown(self) -> None:
        self.node.settle()


Verbs.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestVerbs = Verbs.TestCase


def walk(seed: int, steps: int) -> None:
    """The same steps, chosen at random: as many as a planted mistake needs."""
    dice = random.Random(seed)
    node = Node()
    for _ in range(steps):
        place, name, source, key = dice.randrange(CLIENTS), dice.choice("ab"), dice.choice("xy"), dice.choice([b"", b"k"])
        step = dice.randrange(16)
        if step < 4:
            kind = dice.choice(["passive", "durable", "durable", "transient", "exclusive"])
            node.ask(place, "declare_queue", name, own=True, **({} if kind == "transient" else {kind: True}))
        elif step < 6:
            node.ask(place, "delete_queue", name, own=True, if_empty=dice.random() < 0.5)
        elif step < 7:
            node.ask(place, "declare_exchange", source, "direct", durable=dice.random() < 0.7)
        elif step < 8:
            node.ask(place, "delete_exchange", source, if_unused=dice.random() < 0.5)
        elif step < 11:
            node.ask(place, dice.choice(["bind_queue", "bind_queue", "unbind_queue"]), name, source, key, None, own=True)
        elif step < 12:
            node.arrive(name)
        elif step < 13:
            node.commit() if dice.random() < 0.8 else node.refuse()
        elif step < 15:
            node.run(dice.randrange(LOOPS + 1))
            node.forget()
        elif dice.random() < 0.3:
            node.hang_up(place)
        elif dice.random() < 0.15:
            at = dice.choice(["before", "at", "after"])
            if at != "before":
                node.commit(tell=at == "after")
            node.crash()
    node.settle()


def test_random_walks_agree_with_the_model() -> None:
    for seed in range(150):
        walk(seed, 200)


def _names_are_not_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "_hold", lambda self, job: None)


def _names_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "_taken", lambda self, names, woken: None)


def _sharers_are_passed_by(patch: pytest.MonkeyPatch) -> None:
    """A delete does not wait for the binds of its queue."""
    hold = Changes._hold

    def alone_only(self: Any, job: Any) -> None:
        job.names = Names(job.names.alone)
        hold(self, job)

    patch.setattr(Changes, "_hold", alone_only)


def _answered_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def early(self: Any, job: Any, change: Any) -> None:
        self._hold(job)
        self._submit([change], lambda error: None)
        self._answered(job, None)

    patch.setattr(Changes, "_hand_over", early)


def _a_refusal_undoes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeCore, "hold_arrivals", lambda self, held: setattr(self, "held", True))


def _a_refused_change_is_applied(patch: pytest.MonkeyPatch) -> None:
    answered = Changes._answered
    patch.setattr(Changes, "_answered", lambda self, job, error: answered(self, job, None))


def _names_of_a_refused_change_stay_held(patch: pytest.MonkeyPatch) -> None:
    release = Changes._release
    patch.setattr(Changes, "_release", lambda self, job: release(self, job) if job.failure is None else None)


def _whoever_hung_up_is_served_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "_woken", Changes._go_on)


def _what_is_durable_is_dropped_when_nobody_waits(patch: pytest.MonkeyPatch) -> None:
    answered = Changes._answered
    patch.setattr(Changes, "_answered", lambda self, job, error: answered(self, job, error) if job.wanted() else self._release(job))


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    _names_are_not_held,
    _names_are_not_waited_for,
    _sharers_are_passed_by,
    _answered_before_it_is_durable,
    _a_refusal_undoes_nothing,
    _a_refused_change_is_applied,
    _names_of_a_refused_change_stay_held,
    _whoever_hung_up_is_served_all_the_same,
    _what_is_durable_is_dropped_when_nobody_waits,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_mistake_is_seen(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seen: Exception | None = None
    for seed in range(300):
        try:
            walk(seed, 200)
        except (AssertionError, KeyError, StoreError, AttributeError, ValueError) as error:
            seen = error
            break
    assert seen is not None
