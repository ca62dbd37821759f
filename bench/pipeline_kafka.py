"""`make bench-pipeline ARGS=--kafka`: queue or topic into Parquet with Spark, FlintMQ and Kafka in turn, as a table in docs/PERFORMANCE.md.

in: pairs, messages; KAFKA_HOME and KAFKA_SPARK_JARS (tools/kafka_jars.sh). out: bench/results/kafka-DATE.jsonl (a line for each run), the
table between its markers. Both read a body of 1 KiB, Kafka's connector 7 columns, FlintMQ's source 25.
A pair is one run of each, the second first in every other pair; a pair before the first one counts for nothing. The table has medians,
and how many pairs FlintMQ won.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import kafka
from bench.brokers import disk_directory
from bench.pipeline_rows import Bench, Sizes, run_now
from bench.run import conditions
from bench.spark_cpu import measure, measure_kafka, starts
from flintmq.pipeline.session import spark_session

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/PERFORMANCE.md"
BEGIN, END = "<!-- bench-kafka:begin -->", "<!-- bench-kafka:end -->"
QUERIES, BATCH, ROWS = 6, 100_000, "batches,large,starts"
Run = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One line of the table. value: of a run; better: `less` or `more`; goal: of docs, for FlintMQ's median and Kafka's."""

    row: str
    caption: str
    value: Callable[[Run], float]
    more: bool
    goal: str
    met: Callable[[float, float], bool]


def _broker_s(run: Run) -> float:
    return float(sum(run["cpu_s_per_m"].get(name, 0.0) for name in ("broker", "service", "kafka")))


def _python_mib(run: Run) -> float:
    """Of Spark's Python processes that are there for the query."""
    return float(sum(part["pss"] for part in run["memory_mib"].values())) if run["source"] == "flintmq" else 0.0


FIGURES = (
    Figure("batches", "batches of 100,000: s of processor per M", lambda run: run["all"], False, "<= Kafka's", lambda a, b: a <= b),
    Figure("batches", "batches of 100,000: rows/s, steady", lambda run: run["steady"], True, ">= 130,000", lambda a, b: a >= 130_000),
    Figure("large", "one large batch, all columns: s of processor per M", lambda run: run["all"], False, "<= 8", lambda a, b: a <= 8),
    Figure(
        "starts",
        "s of a query beyond its triggers",
        lambda run: statistics.median(run["beyond_triggers_s"]),
        False,
        "<= 0.4",
        lambda a, b: a <= 0.4,
    ),
    Figure("batches", "of it the broker's: s of processor per M", _broker_s, False, "<= Kafka's", lambda a, b: a <= b),
    Figure("batches", "MiB of Spark's Python processes (proportional)", _python_mib, False, "<= 150", lambda a, b: a <= 150),
)


def kafka_starts(bench: Bench, options: argparse.Namespace, where: Path) -> Run:
    """Small queries one after the other, as `bench.spark_cpu.starts` does with FlintMQ."""
    scratch, beyond = bench.folder("kafka"), []
    with kafka.kafka(where, scratch) as server:
        server.fill("small", 50, options.size)
        run_now(server.stream(bench.spark, "small", options.batch), bench.folder("warm"), bench.folder("cp"))
        for _ in range(options.starts):
            frame, target, checkpoint = server.stream(bench.spark, "small", options.batch), bench.folder("out"), bench.folder("cp")
            began = time.perf_counter()
            query, _ = run_now(frame, target, checkpoint)
            triggers = sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1e3
            beyond.append(round(time.perf_counter() - began - triggers, 3))
    shutil.rmtree(scratch)
    return {"beyond_triggers_s": beyond}


def one(bench: Bench, row: str, source: str, given: argparse.Namespace, where: Path) -> Run:
    """One run."""
    batch = given.messages if row == "large" else given.batch
    options = argparse.Namespace(messages=given.messages, batch=batch, size=1024, partitions=2, columns="", starts=QUERIES)
    if row == "starts":
        run = starts(bench, options) if source == "flintmq" else kafka_starts(bench, options, where)
    else:
        run = measure(bench, options) if source == "flintmq" else measure_kafka(bench, options, where)
    return run | {"row": row, "source": source}


def render(about: Run, runs: list[Run]) -> str:
    """The table of one sitting."""
    pairs = about["pairs"]
    lines = [
        f"Sitting of {about['date']}: {about['cpu']}, {about['cores']} cores, Spark {about['spark']} `local[2]`, Kafka's jars of "
        f"tools/kafka_jars.sh, FlintMQ {about['commit']}; {about['messages']:,} messages of 1 KiB; medians of {pairs} pairs in turn.",
        "",
        "| what | FlintMQ | Kafka | pairs won | goal | |",
        "|---|---:|---:|---:|---|---|",
    ]
    for figure in FIGURES:
        mine, theirs = (
            [figure.value(run) for run in runs if (run["row"], run["source"]) == (figure.row, name)] for name in ("flintmq", "kafka")
        )
        if not mine or not theirs:
            continue
        won = sum((a > b) if figure.more else (a < b) for a, b in zip(mine, theirs, strict=True))
        a, b = statistics.median(mine), statistics.median(theirs)
        verdict = "ok" if figure.met(a, b) else "**MISSED**"
        lines.append(f"| {figure.caption} | {a:,.2f} | {b:,.2f} | {won} of {len(mine)} | {figure.goal} | {verdict} |")
    return "\n".join(lines) + "\n"


def main(given: list[str], write: Callable[[Path, str, str, str], None]) -> int:
    """Args: given: the command line; write: replaces what stands between two markers of a document."""
    parser = argparse.ArgumentParser(prog="bench/pipeline_kafka.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=BATCH, help="messages of a micro-batch; another one writes no document")
    parser.add_argument("--only", default=ROWS)
    parser.add_argument("--no-write", action="store_true", help="do not write the document")
    options = parser.parse_args(given)
    where = kafka.home()
    if where is None or not kafka.connector():
        parser.error("Kafka is not here: sh tools/kafka_jars.sh DIRECTORY, then set KAFKA_HOME and KAFKA_SPARK_JARS as it says")
    import pyspark

    scratch = Path(tempfile.mkdtemp(prefix="kafka-", dir=disk_directory()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    options.quick = False
    about = conditions(options, "") | {"spark": pyspark.__version__, "pairs": options.pairs, "messages": options.messages}
    spark = spark_session("bench", scratch, settings={"spark.jars": kafka.connector()})
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    runs: list[Run] = []
    results = ROOT / "bench/results"
    results.mkdir(parents=True, exist_ok=True)
    try:
        bench = Bench(spark, scratch, Sizes())
        with (results / f"kafka-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl").open("w") as file:
            for number in range(options.pairs + 1):
                for row in options.only.split(","):
                    for source in ("flintmq", "kafka") if number % 2 == 0 else ("kafka", "flintmq"):
                        run = one(bench, row, source, options, where)
                        if number:  # the first pair warms the JVM, whose compilers take a third of it
                            runs.append(run)
                            print(json.dumps(run), file=file, flush=True)
                        print(f"pair {number} {row} {source}: {run.get('all', run.get('beyond_triggers_s'))}", flush=True)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    table = render(about, runs)
    print(table)
    if not options.no_write and options.batch == BATCH and options.only == ROWS:
        write(DOCUMENT, table, BEGIN, END)
    return 0
