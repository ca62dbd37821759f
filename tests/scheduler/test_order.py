"""Who runs next and for how long: policies, weights, newcomers, sleepers, slices; figures of fairness; retirement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("flintmq.scheduler.system")

from flintmq.scheduler.outcomes import PARK, POLICIES, Outcome
from tests.scheduler.conftest import Bench

MakeBench = Callable[..., Bench]


def backlog(bench: Bench, key: int, count: int, cost_ms: int, weight: int = 0) -> None:
    """Requests of one actor that cost that much each."""
    for number in range(count):
        assert bench.ask((key, number), key=key, cost_ms=cost_ms, weight=weight)


def times(bench: Bench) -> dict[int, float]:
    """Seconds used by each actor."""
    return {group["a"]: group["time_s"] for group in bench.actors.groups()}


def test_equal_time_for_unequal_requests(make_bench: MakeBench) -> None:
    """vruntime: one actor's requests cost 50 times another's; both get the same time, within a quantum and a request."""
    bench = make_bench()
    backlog(bench, 1, 2_000, 1)
    backlog(bench, 2, 40, 50)
    while bench.clock.monotonic_ns() < 2_000_000_000:
        bench.actors.step()
    used = times(bench)
    assert abs(used[1] - used[2]) <= (5 + 1 + 5 + 50) / 1000


@pytest.mark.parametrize("weights", [(100, 200), (100, 300, 600), (1, 10)])
def test_weighted_shares(make_bench: MakeBench, weights: tuple[int, ...]) -> None:
    """Shares of time follow the weights within 2 % once the quanta no longer show."""
    bench = make_bench(actor_quantum_us=1_000)
    for key, weight in enumerate(weights):
        backlog(bench, key, 9_000, 1, weight)
    for _ in range(6_000):
        bench.actors.step()
    used = times(bench)
    for key, weight in enumerate(weights):
        share = used[key] / sum(used.values())
        assert abs(share - weight / sum(weights)) <= 0.02


def test_newcomer_has_no_claim_on_the_past(make_bench: MakeBench) -> None:
    """An actor that comes after a long time of others gets its share from now on, no more: the old one waits one slice at most."""
    bench = make_bench()
    backlog(bench, 1, 4_000, 1)
    for _ in range(400):
        bench.actors.step()
    backlog(bench, 2, 1_000, 1)
    bench.looks.clear()
    for _ in range(40):
        bench.actors.step()
    runs = [key for key, _ in bench.looks]
    longest = max(len(run) for run in "".join(map(str, runs)).split("1"))
    assert longest <= 10
    assert abs(Counter(runs)[1] - Counter(runs)[2]) <= 10


def test_sleeper_saves_up_one_quantum_at_most(make_bench: MakeBench) -> None:
    """An actor that slept while another worked is one quantum ahead when it comes back, not the whole time."""
    bench = make_bench()
    backlog(bench, 2, 1, 1)
    bench.run()
    backlog(bench, 1, 3_000, 1)
    for _ in range(300):
        bench.actors.step()
    backlog(bench, 2, 1_000, 1)
    bench.looks.clear()
    for _ in range(100):
        bench.actors.step()
    counts = Counter(key for key, _ in bench.looks)
    assert abs(counts[1] - counts[2]) <= 15


def test_policy_total_starves_the_old(make_bench: MakeBench) -> None:
    """total (the original's): a newcomer runs alone until it has used as much time as the old actor ever did."""
    bench = make_bench(policy="total")
    backlog(bench, 1, 2_000, 1)
    for _ in range(200):
        bench.actors.step()
    backlog(bench, 2, 900, 1)
    bench.looks.clear()
    for _ in range(150):
        bench.actors.step()
    assert {key for key, _ in bench.looks} == {2}


def test_policy_last_run_is_round_robin(make_bench: MakeBench) -> None:
    """last_run: turns alternate whatever they cost, so the costly actor gets more time."""
    bench = make_bench(policy="last_run")
    backlog(bench, 1, 1_000, 1)
    backlog(bench, 2, 100, 50)
    for _ in range(40):
        bench.actors.step()
    used = times(bench)
    assert used[2] > 8 * used[1]


def test_policy_fifo(make_bench: MakeBench) -> None:
    """fifo: the order of becoming runnable, slice by slice."""
    bench = make_bench(policy="fifo")
    for key in (3, 1, 2):
        backlog(bench, key, 4, 3)
    bench.run()
    assert [key for key, _ in bench.looks] == [3, 3, 1, 1, 2, 2] * 2


def test_slice_is_one_request_then_time(make_bench: MakeBench) -> None:
    """A slice ends after the first request that reaches the quantum, and always has at least one."""
    bench = make_bench(actor_quantum_us=5_000)
    backlog(bench, 1, 10, 2)
    bench.actors.step()
    assert len(bench.looks) == 3
    backlog(bench, 2, 2, 50)
    bench.looks.clear()
    bench.actors.step()
    assert len(bench.looks) == 1


def test_slices_shrink_with_the_number_of_runnable_actors(make_bench: MakeBench) -> None:
    """With 32 runnable actors a slice is a quarter of the quantum."""
    bench = make_bench(actor_quantum_us=8_000)
    for key in range(32):
        backlog(bench, key, 20, 1)
    bench.actors.step()
    assert len(bench.looks) == 2


def test_suspended_in_its_slice(make_bench: MakeBench) -> None:
    """The state word is read before each request: a suspension ends the slice after the present one."""
    bench = make_bench()
    tokens: list[int] = []
    bench.ask("one", result=lambda: tokens.append(bench.actors.suspend(0, 1, 0)))
    bench.ask("two")
    bench.run()
    assert bench.looks == ["one"]
    bench.actors.resume(0, 1, 0, tokens[0])
    bench.run()
    assert bench.looks == ["one", "two"]


@pytest.mark.parametrize("policy", POLICIES)
def test_jain_of_unequal_costs(make_bench: MakeBench, policy: str) -> None:
    """Ten backlogged actors, one 100 times as costly: Jain's index over 10 s is 1 with vruntime and low with the original's orders."""
    bench = make_bench(policy=policy, actor_mailbox_max=100_000)
    for key in range(9):
        backlog(bench, key, 12_000, 1)
    backlog(bench, 9, 1_200, 100)
    end = bench.clock.monotonic_ns() + 12_500_000_000
    while bench.clock.monotonic_ns() < end:
        bench.actors.step()
        bench.actors.tick()
    assert bench.gauges["actors_backlogged"] == 10
    if policy == "vruntime":
        assert bench.actors.jain(10) > 0.99
        assert bench.gauges["service_lag_quanta_10s"] < 25
    elif policy in ("last_run", "fifo"):
        assert bench.actors.jain(10) < 0.5


def test_idle_actors_are_not_counted(make_bench: MakeBench) -> None:
    """Fairness is judged among those that had work all the time."""
    bench = make_bench()
    backlog(bench, 1, 5_000, 1)
    for second in range(3):
        bench.ask("now and then", key=2)
        for _ in range(190):
            bench.actors.step()
        bench.actors.tick()
        assert bench.clock.monotonic_ns() > (second + 1) * 900_000_000
    assert bench.gauges["actors_backlogged"] == 1
    assert bench.actors.jain(1) == 1.0


def test_idle_actors_retire_and_come_back(make_bench: MakeBench) -> None:
    """After actor_idle_ms without work an actor is given up; one with parked requests or suspended stays; its key works as before."""
    bench = make_bench(actor_idle_ms=1_000)
    bench.ask("idle", key=1)
    bench.ask("parked", key=2, result=PARK, hold_ms=60_000)
    bench.ask("suspended", key=3)
    bench.run()
    assert bench.actors.suspend(0, 3, 0)
    for _ in range(200):
        bench.later(16)
    assert sorted(group["a"] for group in bench.actors.groups()) == [2, 3]
    assert bench.gauges["retired_total"] == 1
    bench.ask("back", key=1)
    bench.run()
    assert ("back", Outcome.MESSAGES) in bench.answers


def test_groups_tell_waits_and_services(make_bench: MakeBench) -> None:
    """Quantiles of a group are near what its requests did."""
    bench = make_bench()
    backlog(bench, 1, 100, 4)
    bench.run()
    group = bench.actors.groups()[0]
    assert 0.004 <= group["service_p50_s"] <= 0.006
    assert 0.2 <= group["queue_wait_p50_s"] <= 0.3
    assert group["served"] == 100
    assert 0.39 < group["time_s"] < 0.41
