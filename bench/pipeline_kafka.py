"""`make bench-pipeline ARGS=--kafka`: Spark, a consumer and a long run with FlintMQ and Kafka in turn, as a table in docs/PERFORMANCE.md.

in: rows, pairs, messages; KAFKA_HOME and KAFKA_SPARK_JARS (tools/kafka_jars.sh). out: bench/results/kafka-DATE.jsonl (a line for each
run), the table between its markers. Both read a body of 1 KiB, Kafka's connector 7 columns, FlintMQ's source 25.
A pair is one run of each, the second first in every other pair; a pair before the first one counts for nothing. The table has medians,
and how many pairs FlintMQ won. Each line has its own sitting: what is not measured now stays as it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import kafka, kafka_rows
from bench.brokers import disk_directory
from bench.pipeline_rows import Bench, Sizes, run_now
from bench.run import conditions
from bench.spark_cpu import measure, measure_kafka, starts
from flintmq.pipeline.session import spark_session

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/PERFORMANCE.md"
BEGIN, END = "<!-- bench-kafka:begin -->", "<!-- bench-kafka:end -->"
QUERIES, BATCH, MESSAGES, PAIRS = 6, 100_000, 1_000_000, 5
# rows without `--only`; `soak` takes as long as it is told
ROWS = "batches,large,starts,latency,sink,consume"
HEAD = ("| what | FlintMQ | Kafka | pairs won | goal | | sitting |", "|---|---:|---:|---:|---|---|---|")
Run = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One line of the table. value: of a run; more: the larger one wins; met: of FlintMQ's median, Kafka's, and the share of pairs won."""

    row: str
    caption: str
    value: Callable[[Run], float]
    more: bool
    goal: str
    met: Callable[[float, float, float], bool]


def _broker_s(run: Run) -> float:
    return float(sum(run["cpu_s_per_m"].get(name, 0.0) for name in ("broker", "service", "kafka")))


def _python_mib(run: Run) -> float:
    """Of Spark's Python processes that are there for the query."""
    return float(sum(part["pss"] for part in run["memory_mib"].values())) if run["source"] == "flintmq" else 0.0


def _of(name: str) -> Callable[[Run], float]:
    return lambda run: float(run[name])


def _nine_of_ten(a: float, b: float, won: float) -> bool:
    return won >= 0.9


BELOW = "below Kafka's in 9 of 10 pairs"
FIGURES = (
    Figure("batches", "batches of 100,000: s of processor per M", lambda run: run["all"], False, "<= Kafka's", lambda a, b, won: a <= b),
    Figure("batches", "batches of 100,000: rows/s, steady", lambda run: run["steady"], True, ">= 130,000", lambda a, b, won: a >= 130_000),
    Figure("large", "one large batch, all columns: s of processor per M", lambda run: run["all"], False, "<= 8", lambda a, b, won: a <= 8),
    Figure(
        "starts",
        "s of a query beyond its triggers",
        lambda run: statistics.median(run["beyond_triggers_s"]),
        False,
        "<= 0.4",
        lambda a, b, won: a <= 0.4,
    ),
    Figure("batches", "of it the broker's: s of processor per M", _broker_s, False, "<= Kafka's", lambda a, b, won: a <= b),
    Figure("batches", "MiB of Spark's Python processes (proportional)", _python_mib, False, "<= 150", lambda a, b, won: a <= 150),
    Figure("latency", "micro-batches at 5,000/s: s from append to Spark's commit, p50", _of("p50_s"), False, BELOW, _nine_of_ten),
    Figure("latency", "the same, p99", _of("p99_s"), False, BELOW, _nine_of_ten),
    Figure("latency", "of it the broker's cores", _of("cores"), False, "<= 0.08", lambda a, b, won: a <= 0.08),
    Figure("sink", "DataFrame -> stream (FlintMQ: once, synced): rows/s", _of("rate"), True, ">= 120,000", lambda a, b, won: a >= 120_000),
    Figure("sink", "the same: s of processor per M", _of("all"), False, "<= Kafka's", lambda a, b, won: a <= b),
    Figure("consume", "a plain consumer of a stream: s of the broker per M", _of("broker_s"), False, "<= 0.7", lambda a, b, won: a <= 0.7),
    Figure("soak", "MiB of the broker's processes in a long run, highest", _of("highest"), False, "", lambda a, b, won: True),
    Figure("soak", "the same: last quarter / first quarter", _of("growth"), False, "<= 1.1", lambda a, b, won: a <= 1.1),
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
    if row in kafka_rows.WORK:
        return kafka_rows.WORK[row](bench, source, given, where) | {"row": row, "source": source}
    batch = given.messages if row == "large" else given.batch
    options = argparse.Namespace(messages=given.messages, batch=batch, size=1024, partitions=2, columns="", starts=QUERIES)
    if row == "starts":
        run = starts(bench, options) if source == "flintmq" else kafka_starts(bench, options, where)
    else:
        run = measure(bench, options) if source == "flintmq" else measure_kafka(bench, options, where)
    return run | {"row": row, "source": source}


def lines_of(about: Run, runs: list[Run]) -> dict[str, str]:
    """The lines of one sitting, by what they tell."""
    found = {}
    for figure in FIGURES:
        mine, theirs = (
            [figure.value(run) for run in runs if (run["row"], run["source"]) == (figure.row, name)] for name in ("flintmq", "kafka")
        )
        if not mine or not theirs:
            continue
        won = sum((a > b) if figure.more else (a < b) for a, b in zip(mine, theirs, strict=True))
        a, b = statistics.median(mine), statistics.median(theirs)
        verdict = "" if not figure.goal else "ok" if figure.met(a, b, won / len(mine)) else "**MISSED**"
        values = f"| {figure.caption} | {a:,.2f} | {b:,.2f} | {won} of {len(mine)} | {figure.goal} | {verdict} |"
        found[figure.caption] = f"{values} {about['date']}, {about['commit']} |"
    return found


def known_lines(document: str) -> dict[str, str]:
    """The lines that a document has, by what they tell."""
    table = document.partition(BEGIN)[2].partition(END)[0]
    return {found[1]: found[0] for found in re.finditer(r"^\| ([^|]+) \|.*$", table, re.MULTILINE) if found[1] != "what"}


def render(about: Run, lines: dict[str, str]) -> str:
    """The table of all sittings."""
    first = (
        f"{about['cpu']}, {about['cores']} cores, Spark {about['spark']} `local[2]`, Kafka's jars of tools/kafka_jars.sh; "
        f"{MESSAGES:,} messages of 1 KiB; medians of the pairs, run in turn. The sittings are in UTC, with FlintMQ's commit."
    )
    return "\n".join((first, "", *HEAD, *(lines[figure.caption] for figure in FIGURES if figure.caption in lines))) + "\n"


def main(given: list[str], write: Callable[[Path, str, str, str], None]) -> int:
    """Args: given: the command line; write: replaces what stands between two markers of a document."""
    parser = argparse.ArgumentParser(prog="bench/pipeline_kafka.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--batch", type=int, default=BATCH, help="messages of a micro-batch")
    parser.add_argument("--only", default=ROWS, help=f"rows, separated by commas, of {ROWS},soak")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run of `latency`")
    parser.add_argument("--soak-s", type=float, default=1800.0, help="seconds of `soak` for each of the two; it is run once, without pairs")
    parser.add_argument("--no-write", action="store_true", help="do not write the document; nor does a run of other sizes or of less pairs")
    options = parser.parse_args(given)
    rows = options.only.split(",")
    if unknown := set(rows) - {figure.row for figure in FIGURES}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    where = kafka.home()
    if where is None or not kafka.connector():
        parser.error("Kafka is not here: sh tools/kafka_jars.sh DIRECTORY, then set KAFKA_HOME and KAFKA_SPARK_JARS as it says")
    import pyspark

    scratch = Path(tempfile.mkdtemp(prefix="kafka-", dir=disk_directory()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    options.quick = False
    about = conditions(options, "") | {"spark": pyspark.__version__}
    spark = spark_session("bench", scratch, settings={"spark.jars": kafka.connector()})
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    runs: list[Run] = []
    results = ROOT / "bench/results"
    results.mkdir(parents=True, exist_ok=True)
    try:
        bench = Bench(spark, scratch, Sizes())
        with (results / f"kafka-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl").open("w") as file:
            for number in range(options.pairs + 1):
                for row in rows:
                    if row == "soak" and number != 1:
                        continue
                    for source in ("flintmq", "kafka") if number % 2 == 0 else ("kafka", "flintmq"):
                        run = one(bench, row, source, options, where)
                        if number:  # the first pair warms the JVM, whose compilers take a third of it
                            runs.append(run)
                            print(json.dumps(run), file=file, flush=True)
                        values = {figure.caption: figure.value(run) for figure in FIGURES if figure.row == row}
                        print(f"pair {number} {row} {source}: {values}", flush=True)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    lines = known_lines(DOCUMENT.read_text()) | lines_of(about, runs)
    table = render(about, lines)
    print(table)
    usual = (options.batch, options.messages) == (BATCH, MESSAGES) and (options.pairs >= PAIRS or rows == ["soak"])
    if usual and not options.no_write:
        write(DOCUMENT, table, BEGIN, END)
    return 0
