"""The twelve properties of the actor system hold in randomised interleavings of the compiled scheduler, and each can be seen to fail.

A million in `make actors`; here some thousands. A failure names mix and seed: `python -m tools.actor_sim.campaign --replay MIX SEED`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tools.actor_sim import mixes
from tools.actor_sim.simulator import Simulator

RUNS = 1_500

# property of docs/FAIRNESS.md -> mixes in which it is at stake
PROPERTIES = {
    "1 mutual exclusion": ("plain", "all", "close_retire"),
    "2 one entry in the run queue": ("suspend", "poison_suspend", "all"),
    "3 no lost work": ("plain", "suspend", "retire", "stop"),
    "4 no lost wake": ("wake", "wake_next", "wake_times", "next_times", "suspend"),
    "5 exactly one answer": ("wake_times", "cancel", "close", "stop_close", "memory", "hand"),
    "6 mailbox bounds and order": ("mailbox", "mailbox_times", "memory"),
    "7 suspend and resume": ("suspend", "suspend_times", "poison_suspend"),
    "8 slice": ("long",),
    "9 virtual time": ("long", "all"),
    "10 poison": ("poison", "poison_suspend"),
    "11 retire and make anew": ("retire", "retire_times", "memory_retire", "stop_close"),
    "12 state word": ("suspend", "close_retire", "all_next"),
}


@pytest.mark.parametrize("mix", mixes.MIXES)
def test_interleavings(simulator: Simulator, mix: str) -> None:
    """Every property, in every mix of operations."""
    result = simulator.run(mix, 1, RUNS)
    assert result.failure == "", f"{result.failure} (--replay {mix} {result.seed})"
    assert result.switches > RUNS  # the threads did interleave


@pytest.mark.parametrize("name", PROPERTIES)
def test_property(simulator: Simulator, name: str) -> None:
    """The property, in the mixes that endanger it, from seeds that Hypothesis draws."""

    @settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(mix=st.sampled_from(PROPERTIES[name]), seed=st.integers(1, 2**48))
    @example(mix=PROPERTIES[name][0], seed=2**40)
    def holds(mix: str, seed: int) -> None:
        result = simulator.run(mix, seed, 20)
        assert result.failure == "", f"{result.failure} (--replay {mix} {result.seed})"

    holds()
