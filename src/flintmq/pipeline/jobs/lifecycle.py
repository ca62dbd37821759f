"""Lifecycle: how long messages took from publish to enqueue, delivery and settlement, per queue, consumer or group, and exchange.

in: a log. out: percentiles of the four spans, counts by how messages ended; a page with charts.

L1  A place (a message in one queue) is one row: a message in three queues has three lives.
L2  A transaction's enqueue happens when its commit is decided, and its dequeue likewise.
L3  A place whose beginning lies below the log's horizon is `truncated`: it is counted, and has no spans that are not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.pipeline.jobs import report
from flintmq.pipeline.jobs.job import LogParameters, Summary
from flintmq.pipeline.jobs.reading import LogReading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPANS = (
    ("enqueue", "published to enqueued"),
    ("deliver", "enqueued to delivered"),
    ("settle", "delivered to settled"),
    ("total", "published to settled"),
)
QUANTILES = (0.5, 0.9, 0.99)
POINTS = ("p50", "p90", "p99", "max")
REASONS = ("ack", "reject", "expire", "drop", "purge", "move")
# accuracy of percentiles: one part in this many of the ranks
_ACCURACY = 1000
# rows of a table for people; the JSON has all
_SHOWN = 30


@dataclass(frozen=True)
class LifecycleParameters(LogParameters):
    """Parameters of `lifecycle`. since and until choose by the time of the enqueue."""


@dataclass
class LifecycleResult:
    """What `build` made; `rows` is filled by `summarise`."""

    reading: LogReading
    places: DataFrame
    frame: DataFrame


class Lifecycle:
    """The job `lifecycle`."""

    name = "lifecycle"
    about = "latency from publish to settlement per queue, consumer group and exchange, and how messages ended"
    parameters = LifecycleParameters

    def build(self, spark: SparkSession, params: LifecycleParameters) -> LifecycleResult:
        """`places`: one row per life; `frame`: figures per (by, key). Raises: SourceError."""
        reading = LogReading(spark, params)
        try:
            lives = places(reading)
            return LifecycleResult(reading, lives, figures(reading, lives))
        except BaseException:
            reading.close()
            raise

    def summarise(self, result: LifecycleResult) -> Summary:
        """Runs the job."""
        rows = [row.asDict(recursive=True) for row in result.frame.collect()]
        return _summary(result.reading, rows)

    def report(self, result: LifecycleResult, summary: Summary) -> str | None:
        """Spans per queue, consumer and exchange on a logarithmic axis, and how messages ended."""
        return _page(summary.figures)

    def close(self, result: LifecycleResult) -> None:
        """Lets the view go."""
        result.reading.close()


# --- the plan -----------------------------------------------------------------------------------------------------------


def places(reading: LogReading) -> DataFrame:
    """One row per (message, queue, position) that counts: msg_lsn, queue_id, position, exchange, published, enqueued, delivered, settled
    (times), reason (null: not settled), consumer_id, delivery_count."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = ["time", "msg_lsn", "reason", "consumer_id", "delivered_time", "delivery_count", "exchange", "published_time"]
    frame = reading.records(columns).where(f.col("kind").isin("Message-Start", "Message-Copy", "Message-Enqueue", "Message-Dequeue"))
    kind, counts = f.col("kind"), f.col("counts")
    enqueue, dequeue = (kind == "Message-Enqueue") & counts, (kind == "Message-Dequeue") & counts
    when = f.coalesce("decided", "time")
    # One shuffle by message: places of one message are grouped where its start is.
    grouped = (
        frame.select(
            "msg_lsn",
            f.when(kind != "Message-Start", f.col("queue_id")).alias("queue_id"),
            f.when(kind != "Message-Start", f.coalesce("place", "position")).alias("position"),
            f.col("published_time").alias("published"),
            "exchange",
            f.when(enqueue, when).alias("enqueued"),
            (kind == "Message-Copy").alias("copied"),
            f.when(dequeue, f.struct(when.alias("settled"), "reason", "consumer_id", "delivered_time", "delivery_count")).alias("end"),
        )
        .where(f.col("msg_lsn").isNotNull())
        .repartition(f.col("msg_lsn"))
        .groupBy("msg_lsn", "queue_id", "position")
        .agg(
            f.min("published").alias("published"),
            f.max("exchange").alias("exchange"),
            f.min("enqueued").alias("enqueued"),
            f.max("copied").alias("copied"),
            f.min("end").alias("end"),
        )
    )
    message = Window.partitionBy("msg_lsn")
    lives = grouped.withColumn("published", f.min("published").over(message)).withColumn("exchange", f.max("exchange").over(message))
    lives = lives.where(f.col("position").isNotNull() & (f.col("enqueued").isNotNull() | f.col("copied") | f.col("end").isNotNull()))
    lives = _with_purges(reading, lives)
    lives = lives.select(
        "msg_lsn",
        "queue_id",
        "position",
        "exchange",
        "published",
        "enqueued",
        f.col("end.delivered_time").alias("delivered"),
        f.col("end.settled").alias("settled"),
        f.col("end.reason").alias("reason"),
        f.col("end.consumer_id").alias("consumer_id"),
        f.col("end.delivery_count").alias("delivery_count"),
    )
    return reading.in_time(reading.of_queues(lives), "enqueued")


def _with_purges(reading: LogReading, lives: DataFrame) -> DataFrame:
    """The ends of places that purges ended: their records name runs of positions, not messages. Runs a Spark job of its own over the
    records' kinds; what has no end and stands in a run gets it."""
    from pyspark.sql import functions as f

    records = reading.table("records", log="messages", columns="kind,queue_id,position,count,time")
    rows = records.where(f.col("kind") == "Queue-Purge").select("queue_id", "position", "count", "time").collect()
    runs: list[list[Any]] = []
    for queue, first, count, time in sorted(rows):
        if runs and runs[-1][0] == queue and runs[-1][2] + 1 == first:
            runs[-1][2] = first + count - 1  # slices of one purge
        else:
            runs.append([queue, first, first + count - 1, time])
    if not runs:
        return lives
    purges = reading.spark.createDataFrame(runs, "_queue long, _first long, _last long, _time timestamp")
    here = (f.col("queue_id") == f.col("_queue")) & f.col("position").between(f.col("_first"), f.col("_last"))
    joined = lives.join(f.broadcast(purges), here, "left")
    none = f.lit(None)
    purged = f.struct(
        f.col("_time").alias("settled"),
        f.lit("purge").alias("reason"),
        none.cast("long").alias("consumer_id"),
        none.cast("timestamp").alias("delivered_time"),
        f.lit(0).cast("int").alias("delivery_count"),
    )
    end = f.coalesce("end", f.when(f.col("_time").isNotNull(), purged))
    return joined.withColumn("end", end).drop("_queue", "_first", "_last", "_time")


def consumer_names(reading: LogReading) -> DataFrame:
    """consumer_id, consumer: its group, or its tag when it is in none. Small: sent to every task."""
    from pyspark.sql import functions as f

    named = reading.table("consumers")
    label = f.when(f.col("group") != "", f.concat(f.lit("group "), f.col("group"))).otherwise(f.col("tag"))
    return f.broadcast(named.groupBy("consumer_id").agg(f.max_by(label, "lsn").alias("consumer")))


def figures(reading: LogReading, lives: DataFrame) -> DataFrame:
    """Per (by, key): n, counts by reason, open, truncated, redelivered, and the spans' percentiles in microseconds."""
    from pyspark.sql import functions as f

    def span(first: str, last: str) -> Column:
        taken = f.unix_micros(last) - f.unix_micros(first)
        return f.when(taken < 0, f.lit(0).cast("long")).otherwise(taken)  # clocks may be set back

    lives = lives.join(consumer_names(reading), "consumer_id", "left")
    keys = [
        f.struct(f.lit("all").alias("by"), f.lit("").alias("key")),
        f.struct(f.lit("queue").alias("by"), f.col("queue_id").cast("string").alias("key")),
        f.struct(f.lit("exchange").alias("by"), f.coalesce("exchange", f.lit("?")).alias("key")),
        f.when(
            f.col("consumer_id").isNotNull(),
            f.struct(f.lit("consumer").alias("by"), f.coalesce("consumer", f.format_string("consumer %d", "consumer_id")).alias("key")),
        ),
    ]
    # A queue without definition was deleted, and its entries with it. Where the definitions are elsewhere, nothing is known.
    gone = ~f.col("queue_id").isin(list(reading.view.queues)) if reading.view.queues else f.lit(False)
    is_open = f.col("reason").isNull()
    measured = lives.select(
        f.explode(f.array_compact(f.array(*keys))).alias("to"),
        "reason",
        (is_open & ~gone).alias("is_open"),
        (is_open & gone).alias("is_gone"),
        (f.col("enqueued").isNull() | f.col("published").isNull()).alias("is_truncated"),
        (f.coalesce("delivery_count", f.lit(0)) > 0).alias("again"),
        span("published", "enqueued").alias("enqueue"),
        span("enqueued", "delivered").alias("deliver"),
        span("delivered", "settled").alias("settle"),
        span("published", "settled").alias("total"),
    )
    spans = [
        part
        for name, _ in SPANS
        for part in (f.percentile_approx(name, list(QUANTILES), _ACCURACY).alias(f"{name}_p"), f.max(name).alias(f"{name}_max"))
    ]
    return measured.groupBy("to.by", "to.key").agg(
        f.count("*").alias("n"),
        *(f.count_if(f.col("reason") == reason).alias(reason) for reason in REASONS),
        f.count_if("is_open").alias("open"),
        f.count_if("is_gone").alias("gone"),
        f.count_if("is_truncated").alias("truncated"),
        f.count_if("again").alias("redelivered"),
        *spans,
    )


# --- the summary --------------------------------------------------------------------------------------------------------


def _named(reading: LogReading, by: str, key: str) -> str:
    if by == "queue":
        return reading.queue_name(int(key))
    return (key or "(default exchange)") if by == "exchange" else key


def _summary(reading: LogReading, rows: list[dict[str, Any]]) -> Summary:
    groups: dict[str, list[dict[str, Any]]] = {"all": [], "queue": [], "consumer": [], "exchange": []}
    for row in rows:
        spans = {}
        for name, _ in SPANS:
            if row[f"{name}_max"] is not None:
                values = [*row[f"{name}_p"], row[f"{name}_max"]]
                spans[name] = {point: value / 1000 for point, value in zip(POINTS, values, strict=True)}
        counts = {name: row[name] for name in ("n", *REASONS, "open", "gone", "truncated", "redelivered")}
        groups[row["by"]].append({"name": _named(reading, row["by"], row["key"]), **counts, "spans_ms": spans})
    for group in groups.values():
        group.sort(key=lambda one: (-one["n"], one["name"]))
    total = groups.pop("all")
    empty = dict.fromkeys(("n", *REASONS, "open", "gone", "truncated", "redelivered"), 0)
    facts = {
        "all": total[0] if total else {"name": "", **empty, "spans_ms": {}},
        "queues": groups["queue"],
        "consumers": groups["consumer"],
        "exchanges": groups["exchange"],
        "horizon": reading.view.logs["messages"].horizon,
        "end": reading.view.logs["messages"].end,
    }
    return Summary("lifecycle", _lines(reading, facts), facts)


def _lines(reading: LogReading, facts: dict[str, Any]) -> list[str]:
    all_ = facts["all"]
    lines = [f"lifecycle of {all_['n']:,} messages in queues (milliseconds: p50 / p90 / p99 / max)", ""]
    heads = "".join(f"{text:>36}" for _, text in SPANS)
    for title, key in (("queue", "queues"), ("consumer", "consumers"), ("exchange", "exchanges")):
        lines.append(f"{title:<26}{'messages':>12}{heads}")
        for one in facts[key][:_SHOWN]:
            cells = "".join(f"{_cell(one['spans_ms'].get(name)):>36}" for name, _ in SPANS)
            lines.append(f"{report.cut(one['name'], 25):<26}{one['n']:>12,}{cells}")
        if len(facts[key]) > _SHOWN:
            lines.append(f"... and {len(facts[key]) - _SHOWN:,} more")
        lines.append("")
    lines.append("ended: " + (", ".join(f"{one} {all_[one]:,}" for one in REASONS if all_[one]) or "none"))
    lines.append(f"open: {all_['open']:,}; gone with a deleted queue: {all_['gone']:,}; redelivered at least once: {all_['redelivered']:,}")
    if all_["truncated"]:
        lines.append(f"truncated: {all_['truncated']:,} messages whose beginning the log does not hold any more")
    if note := reading.truncated_line():
        lines.append(note)
    return lines


def _cell(values: dict[str, float] | None) -> str:
    return "-" if values is None else " / ".join(f"{values[point]:.4g}" for point in POINTS)


def _page(facts: dict[str, Any]) -> str:
    all_ = facts["all"]
    total = all_["spans_ms"].get("total")
    parts = [
        report.tiles(
            [
                (f"{all_['n']:,}", "messages in queues"),
                (f"{sum(all_[one] for one in REASONS):,}", "settled"),
                (f"{all_['open']:,}", "open"),
                *([(report.milliseconds(total[point]), f"publish to settlement, {point}") for point in ("p50", "p99")] if total else []),
            ]
        )
    ]
    for title, key in (("Queues", "queues"), ("Consumers and groups", "consumers"), ("Exchanges", "exchanges")):
        if not facts[key]:
            continue
        parts.append(report.heading(title))
        for name, text in (SPANS[3], SPANS[1], SPANS[2]):
            rows = [(one["name"], [one["spans_ms"][name][point] for point in POINTS]) for one in facts[key][:20] if name in one["spans_ms"]]
            if rows:
                parts.append(report.range_chart(f"{title}: {text}", rows, names=POINTS))
        head = [title, "messages", *REASONS, "open", "redelivered", "truncated"]
        body = [
            [one["name"], *(f"{one[name]:,}" for name in ("n", *REASONS, "open", "redelivered", "truncated"))] for one in facts[key][:200]
        ]
        parts.append(report.table(head, body))
    ended = [(reason, float(all_[reason])) for reason in REASONS if all_[reason]]
    parts.append(report.heading("How messages ended"))
    parts.append(report.bar_chart("Messages by how they ended", [*ended, ("open", float(all_["open"]))], unit="messages"))
    return report.page("Lives of messages", "How long messages took from their publish to their end, as the log tells it.", parts)
