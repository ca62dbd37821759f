"""Fairness in simulated time: the compiled scheduler, groups that pull as fast as they are served, exact costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import fairness
from bench.fairness import SERIES, Workload, jain, workloads
from tools.actor_sim.simulator import Simulator

US, MS = 1_000, 1_000_000
QUANTUM = 5 * MS
HYPOTHESIS = settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def run(simulator: Simulator, load: Workload, policy: str = "vruntime") -> dict[str, Any]:
    return fairness.run(simulator, load, policy)


def named(name: str) -> Workload:
    return next(load for load in workloads() if load.name == name)


group = st.fixed_dictionaries(
    {
        "consumers": st.integers(1, 20),
        "cost_ns": st.sampled_from([20 * US, 200 * US, MS, 4 * MS, 12 * MS]),
        "io_ns": st.sampled_from([0, 0, MS, 20 * MS]),
        "weight": st.sampled_from([50, 100, 100, 200, 400, 700]),
    }
)


@HYPOTHESIS
@given(groups=st.lists(group, min_size=2, max_size=9))
def _bound(simulator: Simulator, groups: list[dict[str, Any]]) -> None:
    seconds = 4.0
    told = simulator.load(policy="vruntime", workers=1, cores=1, groups=groups, seconds=seconds, window=[0.0, seconds])
    got = [0] * len(groups)
    for part in range(SERIES):
        for i in range(len(groups)):
            got[i] += told[i]["series_ns"][part]
        for i, one in enumerate(groups):
            for k, other in enumerate(groups[:i]):
                costs = [g["cost_ns"] + g["io_ns"] for g in (one, other)]
                weights = [g["weight"] / 100 for g in (one, other)]
                bound = sum((QUANTUM + cost) / weight for cost, weight in zip(costs, weights, strict=True))
                # The part of a request that is not over yet counts in the part in which it began.
                slack = max(cost / weight for cost, weight in zip(costs, weights, strict=True))
                assert abs(got[i] / weights[0] - got[k] / weights[1]) <= bound + slack


def test_9_service_difference_bound(simulator: Simulator) -> None:
    """9: |S_i/w_i - S_j/w_j| <= (Q + c_i)/w_i + (Q + c_j)/w_j for any two backlogged groups, at every moment, any weights and costs."""
    _bound(simulator)


@HYPOTHESIS
@given(
    costs=st.lists(st.sampled_from([50 * US, 200 * US, MS, 3 * MS]), min_size=1, max_size=7),
    cost=st.sampled_from([50 * US, 2 * MS, 8 * MS]),
    consumers=st.sampled_from([1, 100]),
)
def _newcomer(simulator: Simulator, costs: list[int], cost: int, consumers: int) -> None:
    groups: list[dict[str, Any]] = [{"consumers": 1, "cost_ns": one} for one in costs]
    groups.append({"consumers": consumers, "cost_ns": cost, "join_s": 6.0})
    load = Workload("", "", groups, 1, 1, 8.0, (6.0, 8.0), newcomer=len(costs))
    told = run(simulator, load)
    assert told["newcomer_adds_ms"] * MS <= QUANTUM + cost
    # Later, too, it never gets more during one wait than what it is behind and one slice.
    assert told["newcomer_takes_ms"] * MS <= 2 * QUANTUM + max(costs) + cost


def test_9_newcomer_bound(simulator: Simulator) -> None:
    """9: a newcomer adds at most one quantum plus its own cost to the wait of an old group that it comes into, whatever requests cost (one
    worker); then it is an old group itself, and the bound of the service difference holds."""
    _newcomer(simulator)


@pytest.mark.parametrize("name", ["consumers", "cost", "consumers-8", "cost-8", "cold"])
def test_jain_index(simulator: Simulator, name: str) -> None:
    """Jain's index of worker time is at least 0.99 over 10 s at 1:100 consumers, 1:100 cost, and with one group that reads the disk."""
    assert run(simulator, named(name))["jain_time"] >= 0.99


@pytest.mark.parametrize("name", ["weights", "weights-8"])
def test_weighted_shares(simulator: Simulator, name: str) -> None:
    """Shares follow the weights 1, 2, 4 within 2 %."""
    assert run(simulator, named(name))["share_error"] <= 0.02


def test_newcomer_and_sleeper(simulator: Simulator) -> None:
    """Neither has a claim on the past: a newcomer adds a quantum and its cost to a wait, who slept for 30 s one quantum more."""
    told = run(simulator, named("newcomer"))
    assert told["newcomer_adds_ms"] <= told["newcomer_bound_ms"] == 7.0
    told = run(simulator, named("sleeper"))
    assert told["newcomer_adds_ms"] <= told["newcomer_bound_ms"] == 12.0


def test_the_other_policies_are_caught(simulator: Simulator) -> None:
    """The same figures fail for the original's orders: starvation by total time, no cost accounting by last run, neither by arrival."""
    assert run(simulator, named("newcomer"), "total")["newcomer_adds_ms"] > 1_000
    assert run(simulator, named("cold"), "last_run")["jain_time"] < 0.4
    assert run(simulator, named("cold"), "fifo")["jain_time"] < 0.4
    assert run(simulator, named("weights"), "last_run")["share_error"] > 0.2


def test_8_slices_shrink_when_many_are_runnable(simulator: Simulator) -> None:
    """8: with 8 runnable groups each gets a quantum at a time, with more they share as much time, but 0.5 ms at least."""
    for count, slice_ms in ((4, 5.0), (8, 5.0), (40, 1.0), (160, 0.5)):
        groups = [{"consumers": 4, "cost_ns": 100 * US} for _ in range(count)]
        told = simulator.load(policy="vruntime", workers=1, cores=1, groups=groups, seconds=4.0, window=[1.0, 4.0])
        longest = max(one["wait_max_ns"] for one in told) / MS
        # A request waits for the slices of the others, once round, and for its own group's three before it.
        assert longest <= count * (slice_ms + 0.1) + 1
        assert longest >= (count - 1) * slice_ms * 0.9


def test_jain_formula() -> None:
    """1 for equal values, 1/n when one has everything, and the value of the analysis for nine shares of 5.3 % and one of 52.6 %."""
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([0, 0, 0, 5]) == pytest.approx(0.25)
    assert jain([0.053] * 9 + [0.526]) == pytest.approx(0.33, abs=0.01)
