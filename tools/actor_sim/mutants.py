"""Mutants of the scheduler: one operation made wrong at a time, to prove that the checks can fail.

Two kinds. *Site mutants* need no compiler: an atomic operation or lock of the running code is made wrong where the simulator passes it (a
compare-and-swap that is torn or always succeeds, an addition that is torn or left out, a store, lock or wake that does not happen).
*Source mutants* change a line of the scheduler's sources in a copy (a recheck left out, a wrong bound) and compile it.

in: the simulator. out: killed or survived for each, with the mix, seed and property that found it. Survivors that must be expected (an
operation that only costs time, or a figure that nobody relies on) are named in EXPECTED with the reason.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from bench import fairness
from tools.actor_sim import mixes
from tools.actor_sim.mutants_source import SOURCES, SourceMutant
from tools.actor_sim.simulator import Result, Simulator

MUTATIONS = {
    "cas": ("forced", "torn"),
    "add": ("torn", "skipped"),
    "swap": ("torn", "skipped"),
    "store": ("skipped",),
    "lock": ("skipped",),
    "wake": ("skipped",),
}
# What nobody can notice: beginning of a mutant's name -> why.
FIGURE = "a figure that nothing depends on"
GAUGE = "the gauges of fairness, once a second: no mix looks at them (tests/scheduler/test_order.py does)"
EXPECTED: dict[str, str] = {
    "actor._woken add 1": FIGURE + " (the epoch tells raced wakes)",
    "actor._woken add 3 skipped": "adds 0: it orders memory, which is not simulated",
    "actor._woken store 1": FIGURE,
    "actor.actor_schedule add 1 skipped": "adds 0: it orders memory, which is not simulated",
    "actor.actor_dispatch add 1": FIGURE,
    "lines.mailbox_take swap 1 torn": "a wake in the gap is a wake before the look",
    "lines.mailbox_take swap 2 torn": "a wake in the gap is a wake before the look",
    "lines.run_queue_reserve store 1": "the room is enlarged again each time: costs time only",
    "actor_table.table_get add 4": FIGURE,
    "timers.timers_arm add 2 torn": "others add under the same lock; only a stop may come between",
    "timers.timers_sleep lock 2": "only this thread stores it; a stale value costs a needless wake",
    "timers.timers_taken lock 1": "one store, and nobody else stores while the actor is taken",
    "timers.timers_kick add": "a stop in the microseconds between the timer's look and its sleep is seen a second later",
    "deadlines._fire add 2": FIGURE,
    "deadlines._fire add 3": FIGURE,
    "deadlines._sample lock": GAUGE,
    "deadlines._sample_actor lock": GAUGE,
    "deadlines._sample_actor swap": GAUGE,
    "deadlines._sample_if_busy swap": GAUGE,
    "worker._drop add": FIGURE,
    "worker._end store": FIGURE,
    "worker._note_wait lock": FIGURE,
    "worker._note_wait store": FIGURE,
    "worker._park add 1": FIGURE,
    "worker._park add 2": FIGURE,
    "worker._pause store 1": FIGURE,
    "worker._requests store 1": FIGURE,
    "worker._slice store 1": FIGURE,
}
RUNS = 400  # interleavings of each mix for a mutant


@dataclass
class Verdict:
    """A mutant's fate."""

    name: str
    found: str = ""  # the failure; "": survived
    mix: str = ""
    seed: int = -1
    runs: int = 0


def survey(simulator: Simulator, runs: int = 60) -> list[tuple[str, str, str, str]]:
    """All site mutants of the scheduler that the mixes come to: (name, site id, function, mutation)."""
    for name in mixes.MIXES:
        result = simulator.run(name, 1, runs)
        if result.failure:
            raise RuntimeError(f"the scheduler itself fails: {name} seed {result.seed}: {result.failure}")
    groups: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for site in simulator.sites():
        module = site["function"].split(".")[0]
        if site["kind"] in MUTATIONS and module not in ("scene", "run", "toy", "checks", "compat"):
            groups[site["function"], site["kind"]].append((site["line"], site["id"]))
    found = []
    for (function, kind), places in sorted(groups.items()):
        for number, (_, site_id) in enumerate(sorted(places), 1):
            for mutation in MUTATIONS[kind]:
                found.append((f"{function} {kind} {number} {mutation}", site_id, function, mutation))
    return found


def order(first: str | None = None) -> list[str]:
    """Mixes, the richest first: they find most; then `first` before all others."""
    names = sorted(mixes.MIXES, key=lambda name: -len(mixes.MIXES[name]))
    return ([first] if first else []) + [name for name in names if name != first]


def hunt(simulator: Simulator, name: str, mutant: tuple[str, str] | None, runs: int = RUNS, names: Iterable[str] | None = None) -> Verdict:
    """Runs a mutant through the mixes until a check fails."""
    verdict = Verdict(name)
    for part in (runs // 8, runs, runs * 10):
        for mix in names or order():
            result: Result = simulator.run(mix, 1, part, mutant=mutant)
            if mutant and result.runs == 0 and not result.failure:
                # A fresh child has not passed the site yet.
                for other in mixes.MIXES:
                    simulator.run(other, 1, 60)
                result = simulator.run(mix, 1, part, mutant=mutant)
            verdict.runs += result.runs
            if result.failure:
                verdict.found, verdict.mix, verdict.seed = result.failure, mix, result.seed
                return verdict
    return verdict


def hunt_source(mutant: SourceMutant, runs: int = RUNS) -> Verdict:
    """Builds a source mutant in a copy of its own and runs it through the mixes."""
    with Simulator("build/actor_mutant", mutant.name) as simulator:
        if mutant.mix != "load":
            return hunt(simulator, mutant.name, None, runs, order(mutant.mix))
        loads = [load for load in fairness.workloads() if load.name in ("weights", "cold", "newcomer", "sleeper")]
        fairness.measure(loads, ("vruntime",), simulator, quiet=True)
        problems = fairness.missed(loads)
        return Verdict(mutant.name, problems[0] if problems else "", "load", 1, len(loads))


def told(verdict: Verdict) -> Verdict:
    """A line about it."""
    fate = f"killed by {verdict.mix} seed {verdict.seed}: {verdict.found}" if verdict.found else "SURVIVES"
    print(f"mutant {verdict.name}: {fate}", flush=True)
    return verdict


def report(simulator: Simulator) -> int:
    """All mutants, a line each. Returns the number of those that survive and are not expected to."""
    begin = time.monotonic()
    verdicts = []
    expected = []
    for name, site, _, mutation in survey(simulator):
        reason = next((why for start, why in EXPECTED.items() if f"{name} ".startswith(f"{start} ")), "")
        if reason:
            expected.append((name, reason))
            continue
        verdicts.append(told(hunt(simulator, name, (site, mutation))))
    verdicts += [told(hunt_source(mutant)) for mutant in SOURCES]
    for name, reason in expected:
        print(f"mutant {name}: not run: {reason}")
    survivors = [verdict for verdict in verdicts if not verdict.found]
    print(
        f"{len(verdicts)} mutants, {len(verdicts) - len(survivors)} killed, {len(expected)} left out as unnoticeable,"
        f" {time.monotonic() - begin:.0f} s"
    )
    return len(survivors)
