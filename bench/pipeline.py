"""`make bench-pipeline`: queues, Spark and Parquet at full speed, beside what people write today and what Spark can do at best.

in: options. out: bench/results/pipeline-DATE.jsonl (first line: the sitting), the table between the markers of
docs/pipeline/benchmarks.md. Exit code 0 also when targets are missed: they are marked; 65 when a run failed its check.

Rounds: every row once, then again, because the machine's speed drifts; the table has medians. One Spark session (`local[2]`, as
`flintmq.pipeline.session` makes it) does all rows and is warm before the first; each run has a broker of its own, on a disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file: `python bench/pipeline.py`
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.brokers import disk_directory  # noqa: E402
from bench.pipeline_rows import QUICK, ROWS, Bench, Row, Sizes  # noqa: E402
from bench.run import conditions  # noqa: E402
from bench.table import number  # noqa: E402
from flintmq.pipeline.session import spark_session  # noqa: E402

RESULTS = ROOT / "bench/results"
DOCUMENT = ROOT / "docs/pipeline/benchmarks.md"
BEGIN, END = "<!-- bench-pipeline:begin -->", "<!-- bench-pipeline:end -->"
GROUPS = ("broker", "service", "jvm", "python")
Record = dict[str, Any]


def measure(bench: Bench, row: Row) -> Record:
    """One run of a row."""
    load, began = os.getloadavg()[0], time.perf_counter()
    bench.meter.cpu_s = {}
    try:
        record: Record = {"ok": True, "values": {name: round(value, 4) for name, value in row.work(bench).items()}}
    except Exception as error:  # one row that fails does not end the others
        record = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000], "values": {}}
    messages = row.messages(bench.sizes) if row.messages else None
    meter = bench.meter
    return record | {
        "row": row.name,
        "messages": messages,
        "cpu_s": meter.cpu_s,
        "measured_s": round(meter.elapsed_s, 2),
        "other_cores": round(meter.other_cores, 2),
        "elapsed_s": round(time.perf_counter() - began, 1),
        "load": round(load, 2),
    }


def per_million(record: Record) -> dict[str, float]:
    """Seconds of CPU per million messages, by process."""
    if not record.get("messages") or not record["ok"]:
        return {}
    return {name: record["cpu_s"].get(name, 0.0) / record["messages"] * 1e6 for name in GROUPS}


def tell(row: Row, turn: int, record: Record) -> None:
    text = ", ".join(f"{figure.caption} {number(record['values'].get(figure.key))}" for figure in row.figures)
    cpu = " ".join(f"{name} {value:.2f}" for name, value in per_million(record).items())
    noise = f"[{record['elapsed_s']} s, measured {record['measured_s']} s, other {record['other_cores']}, load {record['load']}]"
    failed = "" if record["ok"] else f"  FAILED {record['error']}"
    print(f"{row.name:<10} {turn + 1}  {text}  cpu-s/M: {cpu or '-'}  {noise}{failed}", flush=True)


def render(about: Record, records: list[Record]) -> str:
    """The table of one sitting."""
    noise = statistics.median(record["other_cores"] for record in records)
    lines = [
        f"Sitting of {about['date']}: {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, Linux {about['kernel']}, "
        f"Python {about['python']}, Spark {about['spark']} `local[2]`; FlintMQ {about['flintmq']} ({about['commit']}); store, checkpoints "
        f"and Parquet on {about['filesystem']}; bodies of 100 bytes unless said; medians of {about['rounds']}; other processes used "
        f"{number(noise)} cores (median).",
        "",
        "| what | figure | median | runs | target | | broker | service | JVM | Python |",
        "|---|---|---:|---|---|---|---:|---:|---:|---:|",
    ]
    for row in ROWS:
        runs = [record for record in records if record["row"] == row.name]
        if not runs:
            continue
        costs = [per_million(record) for record in runs]
        failed = sum(not record["ok"] for record in runs)
        for index, figure in enumerate(row.figures):
            values = [record["values"][figure.key] for record in runs if figure.key in record["values"]]
            middle = statistics.median(values) if values else None
            met = figure.target.met(middle, None)
            if row.name == "partitions" and figure.key == "ratio" and met is False:
                met = statistics.median(record["values"].get("busy1", 0) for record in runs) >= 0.9
            title = f"`{row.name}`: {row.title}{f' ({failed} runs failed)' if failed else ''}" if index == 0 else ""
            cpu = [statistics.median(cost[name] for cost in costs if cost) if index == 0 and any(costs) else None for name in GROUPS]
            each = ", ".join(number(value) for value in values) if len(values) > 1 else ""
            cells = [title, figure.caption, number(middle), each, figure.target.text]
            cells += ["" if met is None else "ok" if met else "**MISSED**", *("" if value is None else f"{value:.2f}" for value in cpu)]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "The last four columns: seconds of CPU per million messages."]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces what stands between the markers. Raises: ValueError when they are missing."""
    head, found, rest = path.read_text().partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{path.name} has no {begin} ... {end}")
    path.write_text(f"{head}{begin}\n{text}{end}{tail}")


def parse() -> argparse.Namespace:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="bench/pipeline.py", description="Queues, Spark and Parquet.")
    parser.add_argument("--only", default="", help=f"comma-separated, of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument("--quick", action="store_true", help="fewer messages; the document is not written")
    parser.add_argument("--no-write", action="store_true", help="do not write the document")
    parser.add_argument("--table", default="", help="measure nothing: write the document from this file of results")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    if unknown := set(options.only) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    if "--kafka" in sys.argv[1:]:
        from bench import pipeline_kafka

        return pipeline_kafka.main([one for one in sys.argv[1:] if one != "--kafka"], write)
    options = parse()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if options.table:
        first, *records = [json.loads(line) for line in Path(options.table).read_text().splitlines()]
        write(DOCUMENT, render(first["sitting"], records))
        return 0
    import pyspark

    options.pairs = options.rounds
    about = conditions(options, "") | {"spark": pyspark.__version__, "rounds": options.rounds}
    scratch = Path(tempfile.mkdtemp(prefix="pipeline-", dir=disk_directory()))
    # The workers find this package too: the constant source is in it.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = spark_session("bench", scratch)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    path = RESULTS / f"pipeline-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl"
    records: list[Record] = []
    try:
        bench = Bench(spark, scratch, QUICK if options.quick else Sizes())
        with path.open("w") as file:
            print(json.dumps({"sitting": about}), file=file, flush=True)
            for turn in range(options.rounds):
                for row in rows:
                    record = measure(bench, row)
                    tell(row, turn, record)
                    print(json.dumps(record), file=file, flush=True)
                    records.append(record)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print(render(about, records))
    if not (options.only or options.quick or options.no_write):
        write(DOCUMENT, render(about, records))
    return 65 if any(not record["ok"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
