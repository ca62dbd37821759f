"""The command of a campaign of random walks: the rules of a state machine, and the planted mistakes that its walks must find.

in: how one walk of the rules, a scene, walks with a mistake are run. out: a line for each mistake; exit code 1 when a promise broke, or a
mistake was not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any


def look_for(
    mistakes: Mapping[str, Callable[[], Any]],
    scene: Callable[[str, Any], str],
    walks: Callable[[Any], tuple[int, str]],
    only: str,
) -> int:
    """Each planted mistake, until its scene or a walk finds it. Returns how many were not.

    Args: scene: (name, rules) -> what its scene shows, "": nothing; walks: rules -> (number of walks until a promise broke, which), 0:
    none did; only: a part of the names that are looked for.
    """
    missed, total = 0, 0
    for name, kind in mistakes.items():
        if only.lower() not in name.lower():
            continue
        place, how = "its scene", scene(name, kind())
        if not how:
            number, how = walks(kind())
            place = f"walk {number:,}" if number else "NOT FOUND"
            missed += not number
        total += 1
        print(f"| {name} | {place} | {how[:90]} |", flush=True)
    print(f"{total - missed} of {total} mistakes caught", flush=True)
    return missed


def command(text: str | None, steps: int, rules: Callable[[int, int, int], int], mistakes: Callable[[int, str, int, int], int]) -> int:
    """Runs what the command line asks for; the exit code. Args: text: of --help; steps: events of a walk; rules: (walks, first seed, steps)
    -> violations; mistakes: (walks for each at most, part of their names, first seed, steps) -> how many were not found."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=20_000)
    parser.add_argument("--mistakes", type=int, default=20_000, help="walks for each mistake, at most")
    parser.add_argument("--steps", type=int, default=steps, help="events of a walk")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="one walk")
    parser.add_argument("--only", default="", help="mistakes whose name has this")
    options = parser.parse_args()
    if options.seed is not None:
        return rules(1, options.seed, options.steps)
    failed = rules(options.walks, options.first, options.steps) if not options.only else 0
    if options.mistakes:
        failed += mistakes(options.mistakes, options.only, options.first, options.steps)
    return 1 if failed else 0
