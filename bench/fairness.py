"""Fairness: the four policies on the same workloads, in simulated time and on real threads.

    python -m bench.fairness                  simulated: all workloads and policies; writes the table of docs/FAIRNESS.md and docs/img
    python -m bench.fairness --real           the two headline workloads on real threads too (a minute; wants a quiet machine)
    python -m bench.fairness --only consumers --policies vruntime,total

Both run the compiled scheduler. Simulated: so many workers work at once as there are cores, in time slices of 1 ms, who has used least
first, as Linux does; a request costs exactly what it says, I/O waits hold a worker but no core, and the scheduler itself costs nothing.
Real: a request spins until its thread has used that much CPU time.

Goals are checked; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import fairness_svg as svg
from tools.actor_sim.simulator import Simulator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "fairness.json"
POLICIES = ("vruntime", "last_run", "total", "fifo")
REAL = ("vruntime", "last_run")  # on real threads, where ten seconds are ten seconds
SERIES = 256  # as scenes/load.pxd
QUANTUM_MS = 5.0
US, MS = 1_000, 1_000_000


@dataclass
class Workload:
    """groups: as scenes/load.py wants them; workers, cores; seconds: of the run; window: measured (from, to); old: numbers of the groups
    that the newcomer must not disturb; measure: weights divide the time before the Jain index."""

    name: str
    about: str
    groups: list[dict[str, Any]]
    workers: int = 2
    cores: int = 2
    seconds: float = 12.0
    window: tuple[float, float] = (2.0, 12.0)
    newcomer: int = -1
    real: bool = False
    weights: bool = False
    told: dict[str, Any] = field(default_factory=dict)


def geometric(low: float, high: float, count: int) -> list[int]:
    """From low to high in equal ratios."""
    return [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]


def workloads() -> list[Workload]:
    """All of them, in the order of the table."""
    consumers = [{"consumers": count, "cost_ns": 200 * US} for count in geometric(1, 100, 10)]
    costs = [{"consumers": 10, "cost_ns": cost} for cost in geometric(50 * US, 5 * MS, 10)]
    weights = [{"consumers": 10, "cost_ns": 200 * US, "weight": weight} for weight in (100, 200, 400) for _ in range(3)]
    many = [{"consumers": 4, "cost_ns": 200 * US, "weight": weight} for weight in (100, 200, 400) for _ in range(10)]
    cold = [{"consumers": 10, "cost_ns": 200 * US} for _ in range(9)] + [{"consumers": 10, "cost_ns": 0, "io_ns": 50 * MS}]
    old = [{"consumers": 1, "cost_ns": 200 * US} for _ in range(9)]
    newcomer = [*old, {"consumers": 100, "cost_ns": 2 * MS, "join_s": 30}]
    sleeper = [{"consumers": 10, "cost_ns": 200 * US, "leave_s": 0.2, "key": 1}]
    sleeper += [{"consumers": 1, "cost_ns": 200 * US} for _ in range(9)]
    sleeper += [{"consumers": 100, "cost_ns": 2 * MS, "join_s": 30, "key": 1}]
    return [
        Workload("consumers", "10 groups with 1 to 100 consumers, requests of 200 us", consumers, real=True),
        Workload("consumers-8", "the same with 4 workers a core", consumers, workers=8),
        Workload("cost", "10 groups with requests of 50 us to 5 ms", costs, real=True),
        Workload("cost-8", "the same with 4 workers a core", costs, workers=8),
        Workload("weights", "9 groups of weight 1, 2, 4", weights, weights=True),
        Workload("weights-8", "30 groups of weight 1, 2, 4, with 4 workers a core", many, workers=8, weights=True),
        Workload("cold", "9 groups of 200 us requests, one that reads the disk for 50 ms; one worker", cold, workers=1, cores=1),
        Workload("cold-8", "the same, 8 workers on 2 cores", cold, workers=8),
        Workload(
            "newcomer",
            "9 busy groups; after 30 s one with 100 consumers, 2 ms requests; one worker",
            newcomer,
            1,
            1,
            40,
            (30, 40),
            9,
        ),
        Workload("sleeper", "the same, but the newcomer ran at the start and slept for 30 s", sleeper, 1, 1, 40, (30, 40), 10),
    ]


def jain(values: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def figures(load: Workload, told: list[dict[str, Any]]) -> dict[str, Any]:
    """What the table and the plots need of a run."""
    present = [i for i in range(len(told)) if load.groups[i].get("leave_s", 1e9) > load.window[0]]
    weights = [load.groups[i].get("weight", 100) / 100 for i in present]
    busy = [told[i]["busy_ns"] for i in present]
    whole = sum(busy)
    shares = [value / whole if whole else 0.0 for value in busy]
    wanted = [weight / sum(weights) for weight in weights]
    found = {
        "jain_time": jain([value / weight for value, weight in zip(busy, weights, strict=True)]),
        "jain_messages": jain([told[i]["served"] / weight for i, weight in zip(present, weights, strict=True)]),
        "shares": shares,
        "share_error": max(abs(got / want - 1) for got, want in zip(shares, wanted, strict=True)),
        "wait_p99_ms": max(told[i]["wait_p99_ns"] for i in present) / MS,
        "wait_max_ms": max(told[i]["wait_max_ns"] for i in present) / MS,
        "utilisation": whole / ((load.window[1] - load.window[0]) * 1e9 * load.workers),
    }
    if load.newcomer >= 0:
        old = [i for i in present if i != load.newcomer]
        part = load.seconds / SERIES
        joined = int(load.groups[load.newcomer]["join_s"] / part)
        waits = [max(told[i]["series_wait_ns"][at] for i in old) / MS for at in range(SERIES)]
        served = [sum(told[i]["series_ns"][at] for i in old) for at in range(SERIES)]
        # A part in which an old group did not run at all tells nothing in itself: the wait shows when it ends, or lasts until the end.
        silent = max(longest_silence(told[i]["series_ns"], joined) for i in old) * part * 1e3
        found["old_wait_before_ms"] = max(waits[joined // 2 : joined])
        found["old_wait_after_ms"] = max([*waits[joined:], silent])
        cost = load.groups[load.newcomer]["cost_ns"] / MS
        found["newcomer_adds_ms"] = max(told[i]["newcomer_added_first_ns"] for i in old) / MS
        found["newcomer_takes_ms"] = max(told[i]["newcomer_added_ns"] for i in old) / MS
        # Who slept may be up to a quantum behind the virtual time: it has one more.
        found["newcomer_bound_ms"] = QUANTUM_MS * (2 if "key" in load.groups[load.newcomer] else 1) + cost
        found["newcomer_first_s"] = sum(told[load.newcomer]["series_ns"][joined : joined + int(1 / part)]) / (int(1 / part) * part * 1e9)
        found["waits_ms"] = waits
        found["old_busy_ns"] = served
    return found


def longest_silence(series: Sequence[int], first: int) -> int:
    """Most parts in a row without any work, less one: a run over a border is no silence."""
    longest = now = 0
    for value in series[first:]:
        now = 0 if value else now + 1
        longest = max(longest, now)
    return max(0, longest - 1)


def run(simulator: Simulator, load: Workload, policy: str) -> dict[str, Any]:
    """The figures of one run."""
    told = simulator.load(
        policy=policy,
        workers=load.workers,
        cores=load.cores,
        groups=load.groups,
        seconds=load.seconds,
        window=list(load.window),
        newcomer=load.newcomer,
    )
    return figures(load, told)


def measure(loads: Sequence[Workload], policies: Sequence[str], simulator: Simulator, *, real: bool = False, quiet: bool = False) -> None:
    """Runs everything; the figures go into `told` of the workloads."""
    for load in loads:
        for policy in policies:
            found = run(simulator, load, policy)
            load.told[("real " if real else "") + policy] = found
            if quiet:
                continue
            extra = f", newcomer adds {found['newcomer_adds_ms']:.2f} ms" if load.newcomer >= 0 else ""
            print(
                f"{load.name:12} {'real ' if real else ''}{policy:9} J(time) {found['jain_time']:.4f}"
                f"  J(messages) {found['jain_messages']:.4f}  share error {found['share_error']:7.1%}"
                f"  wait p99 {found['wait_p99_ms']:.1f} ms, max {found['wait_max_ms']:.1f} ms{extra}",
                flush=True,
            )


def missed(loads: Sequence[Workload]) -> list[str]:
    """Goals that were not reached."""
    found = []
    for load in loads:
        for policy in ("vruntime", "real vruntime"):
            told = load.told.get(policy)
            if not told:
                continue
            if load.name.startswith(("consumers", "cost", "cold")) and told["jain_time"] < 0.99 and load.name != "cold-8":
                found.append(f"{load.name} ({policy}): J(time) {told['jain_time']:.4f}, at least 0.99")
            if load.weights and told["share_error"] > 0.02:
                found.append(f"{load.name} ({policy}): shares are off by {told['share_error']:.1%}, at most 2 %")
            if load.newcomer >= 0 and told["newcomer_adds_ms"] > told["newcomer_bound_ms"]:
                found.append(f"{load.name} ({policy}): adds {told['newcomer_adds_ms']:.2f} ms, at most {told['newcomer_bound_ms']:.2f}")
    return found


def table(loads: Sequence[Workload], policies: Sequence[str]) -> str:
    """Markdown: a row for each workload and kind of threads; each cell has a figure of every policy, in their order."""
    lines = [
        f"In each cell: {', '.join(policies)}.",
        "",
        "| workload | J(time) | worst share off by | longest wait, ms | newcomer adds, ms |",
        "|---|---|---|---|---|",
    ]
    for load in loads:
        for real in ("", "real "):
            told = [load.told[real + policy] for policy in policies if load.told.get(real + policy)]
            if not told:
                continue
            wait, adds = "old_wait_after_ms" if load.newcomer >= 0 else "wait_max_ms", ""
            if load.newcomer >= 0:
                adds = f"{_cell(told, 'newcomer_adds_ms', ',.1f')} (at most {told[0]['newcomer_bound_ms']:.0f})"
            lines.append(
                f"| {load.about}{', real threads' if real else ''} | {_cell(told, 'jain_time', '.3f')}"
                f" | {_cell(told, 'share_error', '.1%')} | {_cell(told, wait, ',.1f')} | {adds} |"
            )
    return "\n".join(lines)


def _cell(told: Sequence[dict[str, Any]], figure: str, form: str) -> str:
    return ", ".join(f"{one[figure]:{form}}" for one in told)


def plots(loads: Sequence[Workload], policies: Sequence[str]) -> None:
    """Three pictures in docs/img."""
    by_name = {load.name: load for load in loads}
    folder = ROOT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    shown = [by_name[name] for name in ("consumers", "cost", "weights", "cold", "newcomer", "sleeper") if name in by_name]
    words = {
        "consumers": "1:100 consumers",
        "cost": "1:100 request cost",
        "weights": "weights 1/2/4",
        "cold": "one cold group",
        "newcomer": "newcomer",
        "sleeper": "long sleeper",
    }
    values = [[load.told[policy]["jain_time"] for policy in policies] for load in shown]
    text = svg.bars(
        "Jain index of worker time over 10 s (1 = fair)", [words[load.name] for load in shown], policies, values, top=1.0, unit="Jain index"
    )
    (folder / "fairness-jain.svg").write_text(text)
    if "cold" in by_name:
        cold = by_name["cold"]
        rows = ["cold group", "each cheap group (mean)"]
        told = [cold.told[policy]["shares"] for policy in policies]
        values = [[shares[9] for shares in told], [sum(shares[:9]) / 9 for shares in told]]
        text = svg.bars("Share of worker time: one group reads 50 ms from disk, nine do not", rows, policies, values, top=1.0, unit="share")
        (folder / "fairness-cold.svg").write_text(text)
    if "newcomer" in by_name:
        load = by_name["newcomer"]
        part = load.seconds / SERIES
        series = []
        for policy in policies:
            told = load.told[policy]
            points = []
            silent = 0
            for at, (wait, busy) in enumerate(zip(told["waits_ms"], told["old_busy_ns"], strict=True)):
                silent = 0 if busy else silent + 1
                # Who is not served at all has waited at least since then. Two parts together, as a wait may end just behind a border.
                points.append((at * part, max(told["waits_ms"][max(0, at - 1) : at + 1]) if busy else max(wait, silent * part * 1e3)))
            series.append([point for point in points if point[0] >= 20])
        text = svg.lines(
            "Longest wait of an old group while a newcomer with 100 consumers joins",
            policies,
            series,
            unit="ms",
            log=True,
            mark=(load.groups[load.newcomer]["join_s"], "newcomer joins"),
        )
        (folder / "fairness-newcomer.svg").write_text(text)


def write_page(text: str) -> None:
    """Puts the table between its marks in docs/FAIRNESS.md."""
    page = ROOT / "docs" / "FAIRNESS.md"
    begin, end = "<!-- measured: bench/fairness.py -->", "<!-- end -->"
    old = page.read_text()
    head, rest = old.split(begin, 1)
    page.write_text(head + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="also on real threads")
    parser.add_argument("--only", default="", help="names of workloads, by commas")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--no-write", action="store_true", help="leave documents and results alone")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    policies = options.policies.split(",")
    loads = [load for load in workloads() if not wanted or load.name in wanted]
    with Simulator() as simulator:
        measure(loads, policies, simulator)
    if options.real:
        with Simulator(plain=True) as simulator:
            measure([load for load in loads if load.real], [name for name in policies if name in REAL], simulator, real=True)
    if not options.no_write and not wanted and policies == list(POLICIES):
        RESULTS.parent.mkdir(exist_ok=True)
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.real else {}
        for load in loads:  # what was measured on real threads before stays
            load.told.update({name: told for name, told in before.get(load.name, {}).items() if name.startswith("real ")})
        kept = {"waits_ms", "old_busy_ns"}
        slim = {load.name: {name: {k: v for k, v in told.items() if k not in kept} for name, told in load.told.items()} for load in loads}
        RESULTS.write_text(json.dumps(slim, indent=1) + "\n")
        plots(loads, policies)
        write_page(table(loads, policies))
    problems = missed(loads)
    for problem in problems:
        print("MISSED", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
