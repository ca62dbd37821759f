"""`make bench-pipeline ARGS=--kafka`: Spark, a consumer and a long run with FlintMQ and Kafka in turn, as a table in docs/PERFORMANCE.md.

in: rows, pairs, messages; KAFKA_HOME and KAFKA_SPARK_JARS, else the jars of build/kafka, which tools/kafka_jars.sh fetches once. out:
bench/results/kafka-DATE.jsonl (a line for each run), the table between its markers. Both read a body of 1 KiB.
A pair is one run of each side, another one first in each pair. Of the row `own` each side has a JVM of its own in each pair, and its runs
say what is cold (bench/kafka_jvm.py); the others share a JVM, and a pair before their first one counts for nothing. The table has medians,
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
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import kafka, kafka_rows
from bench.brokers import disk_directory
from bench.pipeline_rows import Bench, Sizes
from bench.run import conditions
from flintmq.pipeline.session import spark_session

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/PERFORMANCE.md"
BEGIN, END = "<!-- bench-kafka:begin -->", "<!-- bench-kafka:end -->"
BATCH, MESSAGES, PAIRS = 100_000, 1_000_000, 5
# of the row `own`: (source, columns)
SIDES = (("flintmq", 7), ("kafka", 7), ("flintmq", 25))
# rows without `--only`; `soak` takes as long as it is told
ROWS = "own,latency,sink,consume"
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


def _figures_of_batches() -> tuple[Figure, ...]:
    """Lines of what a JVM of its own does, with the same columns on both sides and with all of FlintMQ's."""
    rows = (
        ("cold", "one large batch, first query of a JVM", "<= 0.75 of Kafka's", 0.75),
        ("large", "one large batch, warm", "<= 0.75 of Kafka's", 0.75),
        ("batches", "batches of 100,000, warm", "<= Kafka's", 1.0),
    )
    return tuple(
        Figure(
            f"{row}{columns}",
            f"{caption}, {columns} columns: s of processor per M",
            _of("all"),
            False,
            goal,
            lambda a, b, won, share=share: a <= share * b,  # type: ignore[misc]
        )
        for row, caption, goal, share in rows
        for columns in (7, 25)
    )


BELOW = "below Kafka's in 9 of 10 pairs"
FIGURES = (
    *_figures_of_batches(),
    Figure(
        "batches25", "batches of 100,000, the broker's part: s of processor per M", _broker_s, False, "<= Kafka's", lambda a, b, won: a <= b
    ),
    Figure("batches25", "batches of 100,000, warm, 25 columns: rows/s", _of("steady"), True, ">= 130,000", lambda a, b, won: a >= 130_000),
    Figure("starts25", "s of a query beyond its triggers, warm", _of("beyond_s"), False, "<= 0.3", lambda a, b, won: a <= 0.3),
    Figure("large25", "MiB of Spark's Python processes (proportional), 2 s idle", _python_mib, False, "<= 150", lambda a, b, won: a <= 150),
    Figure("latency", "micro-batches at 5,000/s: s from append to Spark's commit, p50", _of("p50_s"), False, BELOW, _nine_of_ten),
    Figure("latency", "the same, p99", _of("p99_s"), False, BELOW, _nine_of_ten),
    Figure("latency", "of it the broker's cores", _of("cores"), False, "<= 0.08", lambda a, b, won: a <= 0.08),
    Figure("sink", "DataFrame -> stream (FlintMQ: once, synced): rows/s", _of("rate"), True, ">= 120,000", lambda a, b, won: a >= 120_000),
    Figure("sink", "the same: s of processor per M", _of("all"), False, "<= Kafka's", lambda a, b, won: a <= b),
    Figure("consume", "a plain consumer of a stream: s of the broker per M", _of("broker_s"), False, "<= 0.7", lambda a, b, won: a <= 0.7),
    Figure("soak", "MiB of the broker's processes in a long run, highest", _of("highest"), False, "", lambda a, b, won: True),
    Figure("soak", "the same: last quarter / first quarter", _of("growth"), False, "<= 1.1", lambda a, b, won: a <= 1.1),
)


def own_jvm(source: str, columns: int, given: argparse.Namespace) -> list[Run]:
    """What one side does in a JVM of its own. Kafka's runs stand beside FlintMQ's of either number of columns. Raises: RuntimeError."""
    command = [sys.executable, "-m", "bench.kafka_jvm", source, str(columns), str(given.messages), str(given.batch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr[-2000:]}")
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    beside = (7, 25) if source == "kafka" else (columns,)
    return [run | {"row": f"{run['row']}{number}"} for run in runs for number in beside]


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
    if unknown := set(rows) - {*ROWS.split(","), "soak"}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if reason := kafka.fetched():
        parser.error(reason)
    where = kafka.home()
    assert where is not None
    import pyspark

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    options.quick = False
    about = conditions(options, "") | {"spark": pyspark.__version__}
    runs: list[Run] = []
    results = ROOT / "bench/results"
    results.mkdir(parents=True, exist_ok=True)
    with (results / f"kafka-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl").open("w") as file:

        def note(run: Run, number: int) -> None:
            if number:
                runs.append(run)
                print(json.dumps(run), file=file, flush=True)
            values = {figure.caption: round(figure.value(run), 3) for figure in FIGURES if figure.row == run["row"]}
            print(f"pair {number} {run['row']} {run['source']}: {values}", flush=True)

        if "own" in rows:
            for number in range(options.pairs):
                for source, columns in SIDES[number % 3 :] + SIDES[: number % 3]:
                    for run in own_jvm(source, columns, options):
                        note(run, number + 1)
        if shared := [row for row in rows if row != "own"]:
            _one_jvm(shared, options, where, note)
    lines = known_lines(DOCUMENT.read_text()) | lines_of(about, runs)
    table = render(about, lines)
    print(table)
    usual = (options.batch, options.messages) == (BATCH, MESSAGES) and (options.pairs >= PAIRS or rows == ["soak"])
    if usual and not options.no_write:
        write(DOCUMENT, table, BEGIN, END)
    return 0


def _one_jvm(rows: list[str], options: argparse.Namespace, where: Path, note: Callable[[Run, int], None]) -> None:
    """The rows of both sides that share a JVM: pair 0 warms it, whose compilers take a third of that pair."""
    scratch = Path(tempfile.mkdtemp(prefix="kafka-", dir=disk_directory()))
    spark = spark_session("bench", scratch, settings={"spark.jars": kafka.connector()})
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000)
    try:
        bench = Bench(spark, scratch, Sizes())
        for number in range(options.pairs + 1):
            for row in rows:
                if row == "soak" and number != 1:
                    continue
                for source in ("flintmq", "kafka") if number % 2 == 0 else ("kafka", "flintmq"):
                    note(kafka_rows.WORK[row](bench, source, options, where) | {"row": row, "source": source}, number)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
