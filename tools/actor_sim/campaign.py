"""The long campaign: a million randomised interleavings of the compiled scheduler, and the mutants that prove that the checks can fail.

    python -m tools.actor_sim.campaign                     1,000,000 interleavings over all mixes, then the mutants
    python -m tools.actor_sim.campaign --runs 20000        fewer
    python -m tools.actor_sim.campaign --mutants 0         no mutants
    python -m tools.actor_sim.campaign --replay wake_times 4711    one interleaving again, with its trace

Exit code 1: something failed; the line names mix and seed, which replay it.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools.actor_sim import mixes, mutants
from tools.actor_sim.simulator import Simulator

BATCH = 2_000


def interleavings(simulator: Simulator, runs: int, first: int) -> int:
    """Runs them over all mixes in turn. Returns the number of failures."""
    begin = time.monotonic()
    left = {name: runs // len(mixes.MIXES) + (1 if at < runs % len(mixes.MIXES) else 0) for at, name in enumerate(mixes.MIXES)}
    done = sites = switches = failures = 0
    seeds = dict.fromkeys(left, first)
    while any(left.values()):
        for name, more in left.items():
            if not more:
                continue
            count = min(BATCH, more)
            result = simulator.run(name, seeds[name], count)
            left[name] -= count
            done += result.runs
            sites += result.sites
            switches += result.switches
            seeds[name] += count
            if result.failure:
                failures += 1
                left[name] = 0
                print(f"FAILED {name} seed {result.seed}: {result.failure}   (--replay {name} {result.seed})", flush=True)
    seconds = time.monotonic() - begin
    print(
        f"{done:,} interleavings of {len(mixes.MIXES)} mixes from seed {first}: {failures} failed; {sites:,} sites passed,"
        f" {switches:,} switches, {seconds:.0f} s ({done / max(seconds, 1e-9):,.0f}/s)"
    )
    used = simulator.sites()
    places = [site for site in used if not site["function"].startswith(("scene", "run", "toy"))]
    print(
        f"places of the scheduler where threads may switch: {len(places)}; a switch happened at {sum(1 for site in places if site['left'])}"
    )
    return failures


def replay(simulator: Simulator, mix: str, seed: int, last: int) -> int:
    """One interleaving, with the last places it passed."""
    result = simulator.run(mix, seed, 1, trace=True)
    for thread, site, at in result.trace[-last:]:
        print(f"{at - 1_000_000_000:>12} ns  thread {thread}  {site}")
    print(f"{mix} seed {seed}: {result.failure or 'passes'}")
    return 1 if result.failure else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=1, help="0: leave the mutants out")
    parser.add_argument("--replay", nargs=2, metavar=("MIX", "SEED"))
    parser.add_argument("--last", type=int, default=120, help="lines of the trace")
    options = parser.parse_args()
    with Simulator() as simulator:
        if options.replay:
            return replay(simulator, options.replay[0], int(options.replay[1]), options.last)
        failures = interleavings(simulator, options.runs, options.first) if options.runs else 0
        if options.mutants:
            failures += mutants.report(simulator)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
