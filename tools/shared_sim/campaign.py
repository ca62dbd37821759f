"""Random walks of ADR 15's state machine, and the planted mistakes that they must find.

    python -m tools.shared_sim.campaign                      20,000 walks of the rules, then every mistake
    python -m tools.shared_sim.campaign --walks 2000         fewer
    python -m tools.shared_sim.campaign --mistakes 0         the rules alone; N: at most N walks for each mistake
    python -m tools.shared_sim.campaign --only "half"        one mistake
    python -m tools.shared_sim.campaign --seed 7             that walk of the rules again

Exit code 1: a walk broke a promise (the line names its seed), or a mistake was not found.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools.shared_sim.mistakes import MISTAKES
from tools.shared_sim.rules import Rules
from tools.shared_sim.scenes import SCENES
from tools.shared_sim.world import Violation, walk

STEPS = 800


def first_violation(rules: Rules, walks: int, first: int = 1, steps: int = STEPS) -> tuple[int, str]:
    """(number of walks until a promise broke, which): 0, "" when none did."""
    for number in range(walks):
        try:
            walk(rules, first + number, steps)
        except Violation as violation:
            return number + 1, str(violation)
        except (IndexError, KeyError) as error:  # an entry that must be there is not
            return number + 1, repr(error)
    return 0, ""


def scene_violation(name: str, rules: Rules) -> str:
    """The text of what the scene of a mistake shows; "": it has none, or the scene shows nothing."""
    try:
        if name in SCENES:
            SCENES[name](rules)
    except Violation as violation:
        return str(violation)
    return ""


def run_rules(walks: int, first: int, steps: int) -> int:
    """Walks by the rules as they are. Returns the number of violations."""
    began, failed, confirms, take_overs, acks, rewrites = time.monotonic(), 0, 0, 0, 0, 0
    for seed in range(first, first + walks):
        try:
            world = walk(Rules(), seed, steps)
        except Violation as violation:
            failed += 1
            print(f"FAILED seed {seed}: {violation}", flush=True)
            continue
        confirms += world.confirms
        take_overs += world.take_overs
        acks += len(world.acked)
        rewrites += world.rewrites
    seconds = time.monotonic() - began
    text = f"{walks:,} walks of {steps} events from seed {first}: {failed} violations"
    print(
        f"{text}; {confirms:,} confirms, {acks:,} messages acked, {take_overs:,} take-overs, {rewrites:,} rewrites; {seconds:.0f} s",
        flush=True,
    )
    return failed


def run_mistakes(walks: int, only: str, first: int, steps: int) -> int:
    """Each planted mistake, until a walk finds it. Returns how many were not."""
    missed, total = 0, 0
    for name, kind in MISTAKES.items():
        if only.lower() not in name.lower():
            continue
        place, how = "its scene", scene_violation(name, kind())
        if not how:
            number, how = first_violation(kind(), walks, first, steps)
            place = f"walk {number:,}" if number else "NOT FOUND"
            missed += not number
        total += 1
        print(f"| {name} | {place} | {how[:90]} |", flush=True)
    print(f"{total - missed} of {total} mistakes caught", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=20_000)
    parser.add_argument("--mistakes", type=int, default=20_000, help="walks for each mistake, at most")
    parser.add_argument("--steps", type=int, default=STEPS, help="events of a walk")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="one walk")
    parser.add_argument("--only", default="", help="mistakes whose name has this")
    options = parser.parse_args()
    if options.seed is not None:
        return run_rules(1, options.seed, options.steps)
    failed = run_rules(options.walks, options.first, options.steps) if not options.only else 0
    if options.mistakes:
        failed += run_mistakes(options.mistakes, options.only, options.first, options.steps)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
