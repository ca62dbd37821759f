"""What the actor system itself costs: dispatching, scheduling, parking, waking, and the memory of an idle actor.

`python bench/actors.py [--rounds 5] [--write]`

in: nothing. out: a line of JSON with the median of the rounds; with --write the table in docs/SCHEDULER.md between its marks.

Loops run in compiled code on one thread without workers, so a figure is the cost of the operation and of nothing else; only the last
two (wake to look, and what sleeping workers use) are taken with the workers of a node.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from flintmq.config import Limits  # noqa: E402
from flintmq.scheduler.outcomes import PARK, Outcome, Space  # noqa: E402
from flintmq.scheduler.system import ActorSystem  # noqa: E402
from tests.drivers.actor_driver import Load  # noqa: E402

DOCUMENT = ROOT / "docs/SCHEDULER.md"
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"
ACTORS = 10_000
PARKED = 100_000
# goals of issue 5
DISPATCH_NS_MAX, ACTOR_BYTES_MAX, WAKE_S_MAX = 2_000, 1_024, 0.005
# wake-ups measured with workers, and the pause before each in which the workers fall asleep
WAKES, PAUSE_S = 300, 0.003


def resident() -> int:
    """Bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def single() -> dict[str, float]:
    """Costs on one thread, nanoseconds each."""
    found: dict[str, float] = {}
    load = Load(ActorSystem(Limits(), workers=1), 1_000, 8_000)
    load.dispatch()
    load.run()
    found["dispatch_ns"] = load.dispatch()  # 1 of 8 schedules its actor
    found["process_ns"] = load.run()
    load = Load(ActorSystem(Limits(), workers=1), ACTORS, ACTORS)
    load.dispatch()
    load.run()
    found["dispatch_schedule_ns"] = load.dispatch()  # each schedules another actor
    found["slice_ns"] = load.run()
    found["dispatch_deadline_ns"] = load.dispatch(deadline_ms=60_000)
    load.run()
    return found


def memory() -> dict[str, float]:
    """Bytes of an idle actor, run queue and table counted. First of all: memory that was given back would be used again unseen."""
    actors = ActorSystem(Limits(), workers=1)
    before = resident()
    load = Load(actors, 10 * ACTORS, 1)
    used = (resident() - before) / (10 * ACTORS) - 8  # Load's own pointer
    del load
    return {"actor_bytes": used}


def parking() -> dict[str, float]:
    """100,000 requests parked at 10,000 actors, then all woken."""
    actors = ActorSystem(Limits(), workers=1)
    load = Load(actors, ACTORS, PARKED)
    load.dispatch(parks=True, hold_ms=60_000)
    found = {"park_ns": load.run()}
    found["parked"] = actors.gauges()["parked"]
    found["wake_ns"] = load.satisfy()
    found["woken_ns"] = load.run()
    if load.answered != PARKED:
        raise RuntimeError(f"{PARKED - load.answered} parked requests were not answered")
    return found


def waking() -> dict[str, float]:
    """With the workers of a node, idle: from the wake to the look, and the CPU that sleeping workers use."""
    actors = ActorSystem(Limits())
    actors.start()
    there: list[int] = []
    done = threading.Event()

    def process() -> int:
        return Outcome.MESSAGES if there else PARK

    for _ in range(WAKES):
        there.clear()
        done.clear()
        actors.dispatch(Space.TEST, 1, 1, process, lambda outcome: done.set(), hold_ms=10_000)
        time.sleep(PAUSE_S)
        there.append(1)
        actors.wake(Space.TEST, 1, 1)
        done.wait(10)
    gauges = actors.gauges()
    used = time.process_time()
    time.sleep(2)
    used = (time.process_time() - used) / 2
    actors.stop()
    if gauges["holds_ended_total"] or gauges["wakes_lost_total"]:
        raise RuntimeError("a wake was lost")
    return {"wake_to_look_p99_ms": gauges["wake_wait_p99_s"] * 1e3, "asleep_cpu_share": used}


def table(found: dict[str, float]) -> str:
    """Markdown."""
    lines = ["| what | cost | goal |", "|---|---|---|"]
    for what, cost, goal in (
        ("dispatch to an actor, 1 of 8 times scheduling it", f"{found['dispatch_ns']:.0f} ns", ""),
        (f"dispatch and schedule, each time another of {ACTORS:,} actors", f"{found['dispatch_schedule_ns']:.0f} ns", "< 2,000 ns"),
        ("the same with a deadline", f"{found['dispatch_deadline_ns']:.0f} ns", "< 2,000 ns"),
        ("process a request in a slice of 8 (empty process)", f"{found['process_ns']:.0f} ns", ""),
        ("a slice of one request", f"{found['slice_ns']:.0f} ns", ""),
        ("an idle actor", f"{found['actor_bytes']:.0f} bytes", "< 1,024 bytes"),
        (f"park one of {PARKED:,} requests at {ACTORS:,} actors", f"{found['park_ns']:.0f} ns", ""),
        ("wake an actor", f"{found['wake_ns']:.0f} ns", ""),
        ("wake to look with sleeping workers, p99", f"{found['wake_to_look_p99_ms']:.2f} ms", "< 5 ms"),
        ("CPU of the sleeping system", f"{found['asleep_cpu_share']:.2%} of a core", ""),
    ):
        lines.append(f"| {what} | {cost} | {goal} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the table into docs/SCHEDULER.md")
    args = parser.parse_args()
    found = memory()
    rounds = [single() | parking() for _ in range(args.rounds)]
    found |= {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    found |= waking()
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    if args.write:
        text = DOCUMENT.read_text()
        head, rest = text.split(BEGIN, 1)
        DOCUMENT.write_text(f"{head}{BEGIN}\n{table(found)}\n{END}{rest.split(END, 1)[1]}")
    missed = [
        text
        for text, wrong in (
            (f"dispatch and schedule take {found['dispatch_schedule_ns']:.0f} ns", found["dispatch_schedule_ns"] >= DISPATCH_NS_MAX),
            (f"an idle actor takes {found['actor_bytes']:.0f} bytes", found["actor_bytes"] >= ACTOR_BYTES_MAX),
            (f"wake to look takes {found['wake_to_look_p99_ms']:.1f} ms", found["wake_to_look_p99_ms"] >= WAKE_S_MAX * 1e3),
        )
        if wrong
    ]
    for text in missed:
        print(f"goal missed: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
