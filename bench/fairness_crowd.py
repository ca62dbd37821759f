"""Very many groups whose consumers wait: parked requests, wakes, ends of holds, on real threads.

    python -m bench.fairness_crowd                     10,000 groups, 100,000 parked requests
    python -m bench.fairness_crowd --groups 1000

The compiled scheduler is driven by compiled code (tools/actor_sim/scenes/parked.py), in a process of its own. Goals are checked;
exit code 1 when one is missed. Wants a quiet machine. (What a single operation costs: bench/actors.py.)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tools.actor_sim.simulator import Simulator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "fairness_crowd.json"
BEGIN, END = "<!-- measured: bench/fairness_crowd.py -->", "<!-- end crowd -->"


def rows(told: dict[str, Any], cost: dict[str, Any], groups: int, each: int) -> list[tuple[str, str, str, bool]]:
    """What, measured, goal, reached."""
    total = groups * each
    late = told["hold_late_p50_ns"] / 1e6, told["hold_late_max_ns"] / 1e6
    return [
        ("dispatch + schedule, actor idle", f"{cost['schedule_ns']:.0f} ns", "< 2 us", cost["schedule_ns"] < 2000),
        ("dispatch, actor busy", f"{cost['dispatch_ns']:.0f} ns", "< 2 us", cost["dispatch_ns"] < 2000),
        ("requests through the system, one producer", f"{cost['through_per_s'] / 1e6:.2f} M/s", "", True),
        ("an idle actor", f"{told['actor_bytes']:.0f} B", "< 1 KiB", told["actor_bytes"] < 1024),
        (f"{groups:,} groups, {total:,} parked requests", f"all parked in {told['park_s']:.2f} s", "all", told["parked"] == total),
        ("a parked request, besides its own memory", f"{told['parked_bytes']:.0f} B", "", True),
        (
            "wake to answer of one of these groups, idle system",
            f"p50 {told['wake_p50_ns'] / 1e3:.0f} us, p99 {told['wake_p99_ns'] / 1e3:.0f} us",
            "p99 < 5 ms",
            told["wake_p99_ns"] < 5e6,
        ),
        ("all groups woken at once: all answered in", f"{told['wake_all_s'] * 1e3:.0f} ms", "", told["answered"] == total),
        (
            f"{total:,} holds that end at one moment: answered late by",
            f"p50 {late[0]:.1f} ms, max {late[1]:.1f} ms; early: {told['hold_early']}",
            "none early",
            told["hold_early"] == 0,
        ),
        ("wakes lost to timers", f"{told['wakes_lost']}", "0", told["wakes_lost"] == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=10, help="parked requests of a group")
    parser.add_argument("--wakes", type=int, default=2_000, help="measured one by one")
    parser.add_argument("--workers", type=int, default=4 * (os.cpu_count() or 1))
    parser.add_argument("--no-write", action="store_true", help="leave documents and results alone")
    options = parser.parse_args()
    with Simulator(plain=True) as simulator:
        cost = simulator.dispatch(count=1_000_000, workers=options.workers)
    with Simulator(plain=True) as simulator:
        told = simulator.measure(groups=options.groups, each=options.each, wakes=options.wakes, workers=options.workers, hold_s=1.0)
    found = rows(told, cost, options.groups, options.each)
    lines = ["| what | measured | goal |", "|---|---|---|"]
    for what, measured, goal, reached in found:
        print(f"{'' if reached else 'MISSED '}{what}: {measured}{f' (goal {goal})' if goal else ''}")
        lines.append(f"| {what} | {measured} | {goal} |")
    if not options.no_write:
        RESULTS.write_text(json.dumps({"measure": told, "dispatch": cost}, indent=1) + "\n")
        page = ROOT / "docs" / "FAIRNESS.md"
        head, rest = page.read_text().split(BEGIN, 1)
        page.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END, 1)[1])
    return 0 if all(reached for *_, reached in found) else 1


if __name__ == "__main__":
    sys.exit(main())
