"""Two checkouts of FlintMQ under the same workloads in the same minutes: what a change costs (`make bench-beside ARGS="OTHER_CHECKOUT"`).

    python -m bench.beside OTHER [--only W1a,W2,...] [--rounds 5]

in: another checkout, built (`make build` there), for example a worktree of the commit before a change. out: for each figure the median of
both and the median of the ratios this / other, one ratio a round; the order of the two changes from round to round, because the machine's
speed drifts. Exit code 0; 64 when the other checkout is none; 65 when a run failed its check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import table
from bench.workloads import WORKLOADS, Figure, Workload

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = "W1a,W1b,W2,W3,W4,W4r,W5b,W6b,W7,W8,W9"


def run(checkout: Path, workload: Workload) -> dict[str, Any] | None:
    """One run in that checkout, by its own code. None: it failed."""
    results = checkout / "bench/results"
    before = set(results.glob("*.jsonl"))
    command = [".venv/bin/python", "-m", "bench.run", "--only", workload.name, "--skip-peer", "--no-write", "--pairs", "1"]
    subprocess.run(command, cwd=checkout, stdout=subprocess.DEVNULL, check=False)
    for path in set(results.glob("*.jsonl")) - before:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("workload") == workload.name and record["result"].get("ok"):
                path.unlink()
                return dict(record)
    return None


def show(workload: Workload, figure: Figure, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    pairs = [(table.figure_of(figure, ours), table.figure_of(figure, other)) for ours, other in rows]
    known = [(ours, other) for ours, other in pairs if ours is not None and other]
    if known:
        mine, others = statistics.median(ours for ours, _ in known), statistics.median(other for _, other in known)
        ratios = sorted(ours / other for ours, other in known)
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(
            f"| {workload.name} | {figure.caption} | {mine:.4g} | {others:.4g} | {statistics.median(ratios):.3f} | {spread} |", flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/beside.py", description="Two checkouts side by side.")
    parser.add_argument("other", type=Path, help="the other checkout, built")
    parser.add_argument("--only", default=DEFAULT, help=f"workloads (default {DEFAULT})")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not (options.other / ".venv/bin/python").exists():
        print(f"{options.other} is no built checkout of FlintMQ: run 'make build' there", file=sys.stderr)
        return 64
    wanted = options.only.split(",")
    failed = False
    print("| workload | figure | this | other | ratio | of all rounds |\n|---|---|---:|---:|---:|---|", flush=True)
    for workload in [each for each in WORKLOADS if each.name in wanted]:
        rows = []
        for turn in range(options.rounds):
            first, second = (ROOT, options.other) if turn % 2 == 0 else (options.other, ROOT)
            found = {first: run(first, workload), second: run(second, workload)}
            ours, other = found[ROOT], found[options.other]
            if ours is None or other is None:
                failed = True
                print(f"{workload.name} round {turn + 1}: {'this' if ours is None else 'other'} failed", file=sys.stderr)
            else:
                rows.append((ours, other))
        for figure in workload.figures:
            show(workload, figure, rows)
    return 65 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
