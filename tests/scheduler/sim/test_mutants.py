"""The checks can fail: a scheduler with one operation made wrong is found out, for each kind of property. All mutants: `make actors`."""

from __future__ import annotations

import pytest

from tools.actor_sim import mixes, mutants
from tools.actor_sim.mutants_source import SCHEDULER, SOURCES
from tools.actor_sim.simulator import Simulator

# function, kind of operation, what is wrong with it; mixes that must find it
NAMED = {
    "two may set SCHEDULED": ("actor.actor_schedule", "cas", "torn", ("all", "suspend", "plain")),
    "suspend count not atomic": ("actor.actor_suspend", "cas", "torn", ("suspend", "suspend_times", "all")),
    "SCHEDULED is cleared over a newer word": ("worker._end", "cas", "torn", ("suspend", "close_retire", "all")),
    "a request is taken without the lock": ("worker._requests", "lock", "skipped", ("mailbox", "all")),
    "a request is put without the lock": ("actor.actor_dispatch", "lock", "skipped", ("mailbox", "all")),
    "the run queue is changed without the lock": ("lines.run_queue_put", "lock", "skipped", ("plain", "all")),
    "sleep decided without the lock": ("lines.run_queue_sleep", "lock", "skipped", ("plain", "all")),
    "a worker is not woken": ("lines.run_queue_put", "wake", "skipped", ("plain", "all")),
    "wake of the waiters left out": ("actor.actor_wake", "store", "skipped", ("wake", "wake_times")),
    "wake of the oldest left out": ("actor.actor_wake_next", "store", "skipped", ("wake_next", "next_times")),
    "expired without the lock": ("deadlines._fire", "lock", "skipped", ("wake_times", "all")),
    "retired over a schedule": ("actor_table._close_idle", "cas", "forced", ("retire", "retire_times", "memory_retire")),
    "retired over a late schedule": ("actor_table._close_idle", "cas", "torn", ("retire_late",)),
    "references not counted": ("actor.actor_incref", "add", "skipped", ("retire", "all")),
    "a figure not atomic": ("worker._park", "add", "torn", ("wake", "wake_times", "all")),
}


@pytest.fixture(scope="module")
def sites(simulator: Simulator) -> list[tuple[str, str, str, str]]:
    return mutants.survey(simulator)


@pytest.mark.parametrize("name", NAMED)
def test_site_mutant_is_killed(simulator: Simulator, sites: list[tuple[str, str, str, str]], name: str) -> None:
    """A scheduler that is wrong in this way fails a check."""
    function, kind, mutation, where = NAMED[name]
    found = [(label, site) for label, site, owner, what in sites if owner == function and what == mutation and label.split()[1] == kind]
    assert found, f"{function} has no {kind} any more"
    verdicts = [mutants.hunt(simulator, label, (site, mutation), names=where) for label, site in found]
    assert any(verdict.found for verdict in verdicts)


def test_right_scheduler_survives(simulator: Simulator) -> None:
    """The hunt itself finds nothing in the scheduler as it is."""
    assert mutants.hunt(simulator, "none", None, runs=100).found == ""


@pytest.mark.parametrize("mutant", SOURCES, ids=lambda mutant: mutant.name)
def test_source_mutants_follow_the_code(mutant: object) -> None:
    """Each replacement fits the sources exactly once, and names a mix."""
    one = next(source for source in SOURCES if source is mutant)
    assert (SCHEDULER / one.file).read_text().count(one.old) == 1
    assert one.mix == "load" or one.mix in mixes.MIXES
    assert one.old != one.new
