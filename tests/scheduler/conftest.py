"""A system under a manual clock, and helpers to dispatch requests whose fate is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.scheduler.outcomes import PARK, Outcome
from flintmq.scheduler.system import ActorSystem


class Bench:
    """One system that only moves when told. Costs are what process() adds to the clock."""

    def __init__(self, *, policy: str = "vruntime", workers: int = 2, **limits: int) -> None:
        self.clock = ManualClock()
        self.actors = ActorSystem(Limits().replace(**limits), policy=policy, workers=workers, clock=self.clock)
        self.answers: list[tuple[Any, Outcome]] = []
        self.looks: list[Any] = []

    def ask(
        self, name: Any, key: int = 1, *, cost_ms: int = 0, result: Any = None, weight: int = 0, deadline_ms: int = 0, hold_ms: int = 0
    ) -> bool:
        """Dispatches a request. result: what process returns, raises (an exception), or a callable that says it."""

        def process() -> int | None:
            self.looks.append(name)
            if cost_ms:
                self.clock.advance(ms=cost_ms)
                self.actors.now_ns()
            what = result() if callable(result) and not isinstance(result, type) else result
            if isinstance(what, Exception):
                raise what
            return what

        return self.actors.dispatch(
            0,
            key,
            0,
            process,
            lambda outcome: self.answers.append((name, outcome)),
            weight=weight,
            deadline_ms=deadline_ms,
            hold_ms=hold_ms,
        )

    def run(self, slices: int = 10_000) -> int:
        """Steps worker 0 until nothing is runnable. Returns the slices."""
        for done in range(slices):
            if not self.actors.step():
                return done
        return slices

    def later(self, ms: int) -> None:
        """Time passes, and what is due happens."""
        self.clock.advance(ms=ms)
        self.actors.tick()

    @property
    def gauges(self) -> dict[str, float]:
        return self.actors.gauges()


class Store:
    """Something to pull from."""

    def __init__(self) -> None:
        self.items = 0

    def take(self) -> int:
        if not self.items:
            return PARK
        self.items -= 1
        return Outcome.MESSAGES


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(**settings))
        return made[-1]

    yield make
    for bench in made:
        bench.actors.stop()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
