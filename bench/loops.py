"""What a second I/O loop gives: `python -m bench.loops [--rounds 5] [--seconds 3]`.

Rows: one loop with one queue; one loop with two; two loops with a queue of their own each (W1b, 1 KiB, transient); two loops with one queue
between them, its producer on one and its consumer on the other. Figures: messages a second, and the broker's processor seconds per million.
The generator is pinned to the first processor, so on two cores it takes one from the broker: the scale is that of one loop's processor time
per message to that of two, twice, which other work on the machine changes least. Goal: 1.7 for queues of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from tests.support import servers

ROWS = {"one loop, one queue": (1, 1), "one loop, two queues": (1, 2), "two loops, two queues": (2, 2), "two loops, one queue": (2, 1)}
GOAL = 1.7


def measure(loops: int, queues: int, seconds: float) -> tuple[float, float]:
    """Of a new broker: (messages a second, its processor seconds per million)."""
    with servers.flintmq("--memory", "--io-threads", str(loops)) as server:
        count = str(queues)
        load = ["--size", "1024", "--time", str(seconds), "--drain-timeout", "20", "--pid", str(server.pid)]
        ends = ["--producers", count, "--queues", count, "--consumers", count]
        command = [sys.executable, "-m", "flintmq.cli.main", "perf", "--json", "--port", str(server.port), *load, *ends]
        done = subprocess.run(["taskset", "-c", "0", *command], capture_output=True, text=True, check=False)
        result = json.loads(done.stdout)
        if not result["ok"]:
            raise SystemExit(f"the check failed: {done.stdout}")
        return float(result["end_to_end_rate"]), float(result["broker"]["cpu_s_per_million"])


def main() -> int:
    """See module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for number in range(options.rounds):
        for name in ROWS if number % 2 == 0 else reversed(ROWS):
            runs[name].append(measure(*ROWS[name], options.seconds))
    one = [cpu for _, cpu in runs["one loop, one queue"]]
    met = True
    for name, rows in runs.items():
        scale = statistics.median(2 * base / cpu for base, (_, cpu) in zip(one, rows, strict=True))
        line = f"{name:24} {statistics.median(rate for rate, _ in rows):12,.0f}/s {statistics.median(cpu for _, cpu in rows):7.3f} s/M"
        if name == "two loops, two queues":
            met = scale >= GOAL
            line += f"  scale {scale:.2f}, goal {GOAL}: {'ok' if met else 'MISSED'}"
        print(line, flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
