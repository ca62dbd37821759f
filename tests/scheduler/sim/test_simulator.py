"""The simulator itself: it finds what it must, finds nothing where nothing is, and replays."""

from __future__ import annotations

from tools.actor_sim.simulator import Simulator

SEEDS = range(300)


def test_lost_update_is_found(simulator: Simulator) -> None:
    """Two threads that load and store find fewer than six increments for some seed, and six with atomic additions or a lock for all."""
    assert min(simulator.toy("lost_update", seed)[1] for seed in SEEDS) < 4
    assert {simulator.toy("atomic", seed)[:2] for seed in SEEDS} == {("ended", 6)}
    assert {simulator.toy("locked", seed)[:2] for seed in SEEDS} == {("ended", 6)}


def test_lost_wake_is_found(simulator: Simulator) -> None:
    """Who reads the futex word after its look sleeps for ever under some seed; who reads it before never does."""
    assert "quiet" in {simulator.toy("missed_wake", seed)[0] for seed in SEEDS}
    assert {simulator.toy("kept_wake", seed)[0] for seed in SEEDS} == {"ended"}


def test_livelock_ends(simulator: Simulator) -> None:
    """A loop without an end is told as stuck."""
    assert simulator.toy("endless", 1)[0] == "stuck"


def test_replay(simulator: Simulator) -> None:
    """A seed gives the same run again: result, number of switches and simulated time."""
    for seed in SEEDS:
        assert simulator.toy("lost_update", seed) == simulator.toy("lost_update", seed)
    one = simulator.run("all", 77, 1, trace=True)
    two = simulator.run("all", 77, 1, trace=True)
    assert one.trace == two.trace and one.trace


def test_seeds_differ(simulator: Simulator) -> None:
    """Different seeds run differently."""
    assert len({simulator.toy("lost_update", seed)[2] for seed in SEEDS}) > 3
