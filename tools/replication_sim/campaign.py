"""Random walks of ADR 13's state machine, and the planted mistakes that they must find.

    python -m tools.replication_sim.campaign                      20,000 walks of the rules, then every mistake
    python -m tools.replication_sim.campaign --walks 2000         fewer
    python -m tools.replication_sim.campaign --mistakes 0         the rules alone; N: at most N walks for each mistake
    python -m tools.replication_sim.campaign --only "half"        one mistake
    python -m tools.replication_sim.campaign --seed 7             that walk of the rules again

Exit code 1: a walk broke a promise (the line names its seed), or a mistake was not found.
"""

from __future__ import annotations

import sys
import time

from tools.replication_sim.mistakes import MISTAKES
from tools.replication_sim.rules import Rules
from tools.replication_sim.scenes import SCENES
from tools.replication_sim.world import Violation, walk
from tools.walks import command, look_for

STEPS = 600
# of power losses in a scene
SCENE_SEEDS = 8


def first_violation(rules: Rules, walks: int, first: int = 1, steps: int = STEPS) -> tuple[int, str]:
    """(number of walks until a promise broke, which): 0, "" when none did."""
    for number in range(walks):
        try:
            walk(rules, first + number, steps)
        except Violation as violation:
            if str(violation).startswith("P4") and _is_slow(first + number, steps):
                continue  # the rules themselves need more rounds there: it says nothing
            return number + 1, str(violation)
        except (IndexError, KeyError) as error:  # a log in which what must be is not
            return number + 1, repr(error)
    return 0, ""


def scene_violation(name: str, rules: Rules) -> str:
    """What the scene of a mistake shows; "": it has none, or the scene shows nothing."""
    scene = SCENES.get(name)
    for seed in range(SCENE_SEEDS if scene is not None else 0):
        try:
            scene(rules, seed)
        except Violation as violation:
            return str(violation)
    return ""


def _is_slow(seed: int, steps: int) -> bool:
    try:
        walk(Rules(), seed, steps)
    except Violation:
        return True
    return False


def run_rules(walks: int, first: int, steps: int) -> int:
    """Walks by the rules as they are. Returns the number of violations."""
    began, failed, confirmed, epochs = time.monotonic(), 0, 0, 0
    for seed in range(first, first + walks):
        try:
            world = walk(Rules(), seed, steps)
        except Violation as violation:
            failed += 1
            print(f"FAILED seed {seed}: {violation}", flush=True)
            continue
        confirmed += len(world.confirmed)
        epochs += len(world.confirmers)
    seconds = time.monotonic() - began
    text = f"{walks:,} walks of {steps} events from seed {first}: {failed} failed; {confirmed:,} blocks confirmed in {epochs:,} epochs"
    print(f"{text}, {seconds:.0f} s", flush=True)
    return failed


def run_mistakes(walks: int, only: str, first: int, steps: int) -> int:
    """Each planted mistake, until its scene or a walk finds it. Returns how many were not."""
    return look_for(MISTAKES, scene_violation, lambda rules: first_violation(rules, walks, first, steps), only)


if __name__ == "__main__":
    sys.exit(command(__doc__, STEPS, run_rules, run_mistakes))
