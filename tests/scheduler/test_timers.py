"""The timer wheel: whatever the times and the steps of the clock, answers come within two ticks after their time and never before."""

from __future__ import annotations

import pytest

pytest.importorskip("flintmq.scheduler.system")

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.scheduler.outcomes import PARK, Outcome
from tests.scheduler.conftest import Bench

holds = st.one_of(st.integers(1, 70), st.integers(60, 5_000), st.integers(4_000, 300_000), st.integers(1, 20_000_000))


@settings(max_examples=150, deadline=None)
@given(times=st.lists(st.tuples(holds, st.integers(0, 3)), min_size=1, max_size=12), steps=st.lists(st.integers(1, 7_000), max_size=20))
def test_holds_end_in_time(times: list[tuple[int, int]], steps: list[int]) -> None:
    """Times from a millisecond to hours over several actors, the clock moving by random steps and then from event to event."""
    bench = Bench()
    try:
        begun = bench.clock.monotonic_ns()
        answered: dict[int, int] = {}
        # Begin anywhere in the wheel, not only at a slot's start.
        for number, (ms, key) in enumerate(times):
            bench.clock.advance(ms=number % 3)
            begun = bench.clock.monotonic_ns() // 1_000_000
            bench.actors.dispatch(
                0,
                key,
                0,
                lambda: PARK,
                lambda outcome, number=number, due=begun + ms: answered.__setitem__(number, bench.clock.monotonic_ns() // 1_000_000 - due),
                hold_ms=ms,
            )
            bench.run()
            if steps:
                late = steps.pop()
                bench.later(late)
        for _ in range(100_000):
            if len(answered) == len(times):
                break
            wait = bench.actors.next_ns() - bench.clock.monotonic_ns()
            bench.later(max(1, -(-wait // 1_000_000)))
        assert len(answered) == len(times)
        assert min(answered.values()) >= 0
    finally:
        bench.actors.stop()


@settings(max_examples=100, deadline=None)
@given(times=st.lists(holds, min_size=1, max_size=30))
def test_next_ns_leads_to_every_answer(times: list[int]) -> None:
    """A clock that jumps to next_ns each time answers every request within two ticks of its time."""
    bench = Bench(actor_idle_ms=0)
    try:
        start = bench.clock.monotonic_ns()
        late: list[int] = []
        for number, ms in enumerate(times):
            bench.actors.dispatch(
                0,
                number % 5,
                0,
                lambda: PARK,
                lambda outcome, ms=ms: late.append(bench.clock.monotonic_ns() - start - ms * 1_000_000),
                hold_ms=ms,
            )
        bench.run()
        while len(late) < len(times):
            wait = bench.actors.next_ns() - bench.clock.monotonic_ns()
            bench.later(max(1, -(-wait // 1_000_000)))
        assert min(late) >= 0
        assert max(late) <= 2_000_000
    finally:
        bench.actors.stop()


def test_answered_requests_leave_no_timer_behind() -> None:
    """A hold that ended early costs one idle look at the wheel, and the wheel is empty afterwards."""
    bench = Bench(actor_idle_ms=0)
    for _ in range(1_000):
        bench.ask("x", deadline_ms=5_000)
        bench.run()
    bench.later(6_000)
    assert [outcome for _, outcome in bench.answers] == [Outcome.MESSAGES] * 1_000
    bench.later(1_000)
    assert bench.actors.next_ns() - bench.clock.monotonic_ns() <= 1_000_000_000
    bench.actors.stop()
