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
from pathlib import Path

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
# Function and kind of operation, and why nothing can notice.
EXPECTED: dict[tuple[str, str, str], str] = {}
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
    for part in (runs // 8, runs):
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
    patch = Path(__file__).with_name("mutants_source.py")
    with Simulator("build/actor_mutant", f"{patch} {mutant.name}") as simulator:
        return hunt(simulator, mutant.name, None, runs, order(mutant.mix))


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
    for name, site, function, mutation in survey(simulator):
        kind = name.split()[1]
        reason = EXPECTED.get((function, kind, mutation)) or EXPECTED.get((function, kind, ""))
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
