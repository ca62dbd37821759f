"""`make bench`: FlintMQ and RabbitMQ under the same workloads in the same minutes; the table goes to docs/PERFORMANCE.md.

in: options. out: bench/results/DATE.jsonl (first line: conditions), the table. Exit code 0 also when targets are missed: they are
marked; 65 when a run of FlintMQ failed its check; 69 when nothing could be measured.

Each pair runs both brokers back to back, the order changing from pair to pair, because the machine's speed drifts. Both brokers are
children of this process on ports of their own; the durable rows keep their data in fresh directories on the disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file: `python bench/run.py`
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench import disk, table  # noqa: E402
from bench.brokers import PAUSE_S, Broker, disk_directory  # noqa: E402
from bench.runners import measure  # noqa: E402
from bench.workloads import WORKLOADS, Workload  # noqa: E402
from tests.support import servers  # noqa: E402

RESULTS = ROOT / "bench/results"
DOCUMENT = ROOT / "docs/PERFORMANCE.md"


def conditions(options: argparse.Namespace, rabbitmq_version: str) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    from flintmq import __version__

    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "flintmq": __version__,
        "commit": commit or "no commit",
        "rabbitmq": rabbitmq_version,
        "filesystem": disk.filesystem(disk_directory()),
        "pairs": options.pairs,
        "quick": options.quick,
    }


def tell(workload: Workload, broker: str, pair: int, record: dict[str, Any]) -> None:
    figures = ", ".join(f"{figure.caption} {table.number(table.figure_of(figure, record))}" for figure in workload.figures)
    error = "" if record["result"].get("ok") else f"  FAILED {record['result'].get('error', 'the check')}"
    noise = f"[{record['elapsed_s']} s, other {record['other_cores']}]"
    print(f"{workload.name:<4} pair {pair + 1}  {broker:<9} {figures}  {noise}{error}", flush=True)


def sitting(options: argparse.Namespace, chosen: list[Workload], brokers: list[Broker]) -> Iterator[dict[str, Any]]:
    """All runs, in order."""
    for workload in chosen:
        for pair in range(options.pairs):
            for broker in brokers if pair % 2 == 0 else brokers[::-1]:
                if broker.name == table.PEER and not workload.peer:
                    continue
                try:
                    record = measure(workload, broker, quick=options.quick)
                except (RuntimeError, OSError) as error:  # it did not start, or the disk refused
                    broker.stop()
                    record = {"result": {"ok": False, "error": str(error)}, "elapsed_s": 0.0, "other_cores": 0.0, "arguments": ()}
                record |= {"workload": workload.name, "pair": pair, "broker": broker.name, "load": round(os.getloadavg()[0], 2)}
                tell(workload, broker.name, pair, record)
                yield record
                time.sleep(PAUSE_S)


def parse() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(prog="bench/run.py", description="FlintMQ and RabbitMQ side by side.")
    parser.add_argument("--only", default="", help=f"comma-separated, of {','.join(names)}")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each broker per workload (default 3)")
    parser.add_argument("--quick", action="store_true", help="shorter runs; the document is not written")
    parser.add_argument("--skip-peer", action="store_true", help="FlintMQ alone; the document is not written")
    parser.add_argument("--skip-ours", action="store_true", help="RabbitMQ alone; the document is not written")
    parser.add_argument("--no-write", action="store_true", help="do not write the document")
    parser.add_argument("--table", action="store_true", help="measure nothing: write the document from the results that are there")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    if unknown := set(options.only) - set(names):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    return options


def main() -> int:
    options = parse()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if options.table:
        table.write(DOCUMENT, table.render([each for each in table.load(RESULTS) if not each[0].get("partial")]))
        return 0
    chosen = [workload for workload in WORKLOADS if not options.only or workload.name in options.only]
    brokers = [] if options.skip_ours else [Broker(table.OURS)]
    peer_version = "not measured"
    if not options.skip_peer:
        if reason := servers.rabbitmq_missing():
            print(f"without RabbitMQ: {reason}", file=sys.stderr)
        else:
            brokers.append(Broker(table.PEER))
            peer_version = servers.rabbitmq_version()
    partial = options.quick or options.no_write or len(brokers) < 2
    about = conditions(options, peer_version) | {"partial": partial}
    failed = measured = False
    path = RESULTS / f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl"
    records = []
    try:
        with path.open("w") as file:
            print(json.dumps({"conditions": about}), file=file, flush=True)
            for record in sitting(options, chosen, brokers):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
                measured = measured or bool(record["result"].get("ok"))
                failed = failed or (record["broker"] == table.OURS and not record["result"].get("ok"))
    except servers.Unavailable as error:
        print(error, file=sys.stderr)
    finally:
        for broker in brokers:
            broker.stop()
    print("\n" + table.render([(about, records)]))
    if measured and not partial:
        table.write(DOCUMENT, table.render([each for each in table.load(RESULTS) if not each[0].get("partial")]))
        print(f"written: {DOCUMENT.relative_to(ROOT)}")
    return 69 if not measured else 65 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
