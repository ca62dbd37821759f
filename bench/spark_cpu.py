"""Where the processor time of "queue -> Parquet in batches" goes: by process, by thread of the JVM, and what the processes keep in memory.

in: options. out: one line of JSON for each round on stdout, and a table of seconds of CPU per million messages.

Processor time only: on a machine with other work seconds of the clock compare nothing. Threads and processes that end between two looks
(a tenth of a second apart) lose what they used since the last one, as in `CpuMeter`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.brokers import disk_directory  # noqa: E402
from bench.pipeline_rows import Bench, Sizes, check_parquet, run_now, steady_rate  # noqa: E402
from bench.spark_parts import TICKS  # noqa: E402
from flintmq.pipeline.session import spark_session  # noqa: E402
from pyspark_flintmq import quick  # noqa: E402

# seconds between two looks
LOOK_S = 0.1
# what a thread of the JVM is called -> the part it belongs to; the first that fits
_THREADS = (
    ("Executor task", "task: Arrow to rows, Parquet"),
    ("stdout writer", "task: what it sends to Python"),
    ("stream execut", "query: plans, logs, commits"),
    (r"C[12] Compiler", "JIT compiler"),
    ("(GC|G1|Parallel|VM )", "garbage collector"),
)


def _part(thread: str) -> str:
    return next((part for sign, part in _THREADS if re.match(sign, thread)), "other threads")


class Parts:
    """Seconds of CPU by part while it is open. Args: pids: of whole processes, by name; jvm. A context manager."""

    def __init__(self, pids: dict[str, int], jvm: int) -> None:
        self._pids, self._jvm = pids, jvm
        self._first: dict[tuple[str, int], float] = {}
        self._last: dict[tuple[str, int], float] = {}
        self._names: dict[tuple[str, int], str] = {}
        self.memory: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Parts:
        self._look()
        self._first = dict(self._last)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for name, pid in self._pids.items():
            self._note(("process", pid), name, Path(f"/proc/{pid}"))
        for task in Path(f"/proc/{self._jvm}/task").iterdir():
            self._note(("thread", int(task.name)), None, task)
        for pid in below(self._jvm):
            self._note(("process", pid), f"python: {_python_role(pid)}", Path(f"/proc/{pid}"))

    def _note(self, key: tuple[str, int], name: str | None, folder: Path) -> None:
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            return
        comm, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        self._last[key] = (int(fields[11]) + int(fields[12])) / TICKS
        self._names.setdefault(key, name or f"jvm: {_part(comm)}")

    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for key, seconds in self._last.items():
            found[self._names[key]] += seconds - self._first.get(key, 0.0)
        return {name: round(value, 2) for name, value in sorted(found.items())}


def below(root: int) -> list[int]:
    """The processes below a process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, level = [], [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def _python_role(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "other"
    role = re.fullmatch(r"pyspark\.(?:\w+\.)*(\w+)", next((word for word in reversed(words) if word), ""))
    return role[1] if role else "other"  # a command of Hadoop's file system, which the JVM runs


def memory(root: int) -> dict[str, dict[str, float]]:
    """MiB of the Python processes below the JVM, by role: resident, proportional (shared pages divided among those that share them), and
    unshared.
    """
    found: dict[str, dict[str, float]] = {}
    for pid in below(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        figures = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in text.splitlines()[1:]}
        figures["Uss"] = figures["Private_Clean"] + figures["Private_Dirty"]
        entry = found.setdefault(_python_role(pid), {"processes": 0, "rss": 0.0, "pss": 0.0, "uss": 0.0})
        entry["processes"] += 1
        for name in ("Rss", "Pss", "Uss"):
            entry[name.lower()] = round(entry[name.lower()] + figures[name], 1)
    return found


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """One round: a short run to warm the way, then `messages` in batches of `batch`."""
    source = {"maxMessagesPerTrigger": options.batch, "maxBytesPerTrigger": 2**40, "minPartitions": options.partitions}
    if options.columns:
        source["columns"] = options.columns
    with bench.broker():
        warm = bench.fill(min(4 * options.batch, options.messages), "w", options.size)
        queue = bench.fill(options.messages, "f", options.size)
        run_now(bench.stream(warm, **source), bench.folder("warm"), bench.folder("cp"))
        target = bench.folder("out")
        parts = Parts(bench.pids, bench.jvm)
        with parts:
            _, batches = run_now(bench.stream(queue, **source), target, bench.folder("cp"))
        if not options.columns or "position" in options.columns.split(","):
            check_parquet(target, options.messages)
        shutil.rmtree(target)
    return told("flintmq", options, parts, batches, bench.jvm)


def told(name: str, options: argparse.Namespace, parts: Parts, batches: list[dict[str, Any]], jvm: int) -> dict[str, Any]:
    """What a round says."""
    seconds, millions = parts.seconds(), options.messages / 1e6
    phases = {phase for each in batches for phase in each["durationMs"]}
    return {
        "source": name,
        "cpu_s_per_m": {part: round(value / millions, 2) for part, value in seconds.items()},
        "all": round(sum(seconds.values()) / millions, 2),
        "steady": round(steady_rate(batches)),
        "ms": {phase: statistics.median(each["durationMs"].get(phase, 0) for each in batches[1:] or batches) for phase in sorted(phases)},
        "memory_mib": memory(jvm),
    }


def count_rows(target: Path, count: int) -> None:
    """Raises: RuntimeError."""
    import pyarrow.dataset as ds

    if (rows := ds.dataset(str(target), format="parquet").count_rows()) != count:
        raise RuntimeError(f"{rows} rows instead of {count}")


def starts(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """One round: `starts` queries of 50 messages one after the other (AvailableNow): what each costs, and its time beyond its triggers."""
    beyond = []
    with bench.broker():
        run_now(bench.stream(bench.fill(50, "w", options.size)), bench.folder("warm"), bench.folder("cp"))
        queues = [bench.fill(50, f"f{number}", options.size) for number in range(options.starts)]
        parts = Parts(bench.pids, bench.jvm)
        with parts:
            for queue in queues:
                frame, target, checkpoint = bench.stream(queue), bench.folder("out"), bench.folder("cp")
                began = time.perf_counter()
                query, _ = run_now(frame, target, checkpoint)
                triggers = sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1e3
                beyond.append(round(time.perf_counter() - began - triggers, 3))
                check_parquet(target, 50)
    seconds = parts.seconds()
    return {
        "cpu_s_per_query": {name: round(value / options.starts, 2) for name, value in seconds.items()},
        "all": round(sum(seconds.values()) / options.starts, 2),
        "beyond_triggers_s": beyond,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/spark_cpu.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a micro-batch")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--columns", default="", help="of the source; all when left out")
    parser.add_argument("--starts", type=int, default=0, help="measure so many small queries instead: the fixed cost of one")
    parser.add_argument("--plain-python", action="store_true", help="Spark's Python processes as Spark starts them (pyspark_flintmq.quick)")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.plain_python:
        quick.quick_python = lambda directory: sys.executable
    scratch = Path(tempfile.mkdtemp(prefix="spark-cpu-", dir=disk_directory()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = spark_session("bench", scratch)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    try:
        bench = Bench(spark, scratch, Sizes())
        for _ in range(options.rounds):
            print(json.dumps((starts if options.starts else measure)(bench, options)), flush=True)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
