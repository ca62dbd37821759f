"""Fairness: who got how many of a queue's deliveries, in all and in windows of 1 s and 10 s, with Jain's index.

in: a log. out: shares and indices per queue; a page with charts.

F1  A delivery counts when it settled the message (ack, reject) and the log knows the consumer; by the time of the delivery.
F2  Jain's index of counts x over n consumers is (sum x)^2 / (n sum x^2): 1 all alike, 1/n one has all. In a window, n are the consumers (or
    groups) of the queue between whose first and last delivery the window lies: one that got nothing then counts with 0.
F3  Windows with fewer than `busy` deliveries per consumer are left out of the windows' figures: a queue that is nearly empty is not unfair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import report
from flintmq.pipeline.jobs.job import EX_USAGE, LogParameters, Summary, parameter
from flintmq.pipeline.jobs.lifecycle import consumer_names
from flintmq.pipeline.jobs.reading import LogReading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOWS_S = (1, 10)
_SHOWN = 30
# points of a line in the report: more windows than these are thinned out
_POINTS = 400


@dataclass(frozen=True)
class FairnessParameters(LogParameters):
    """Parameters of `fairness`."""

    by: str = parameter(
        "group",
        "whose shares: of groups (x-group; a consumer without one is its own), or of single consumers",
        choices=("group", "consumer"),
    )
    busy: int = parameter(10, "deliveries per consumer from which on a window counts, 1 to 1000000")


@dataclass
class FairnessResult:
    """What `build` made: `shares` (queue_id, who, n, first_s, last_s), `windows` (queue_id, width, window, n, total, jain); `counted`: what
    both come from, kept by Spark until `close`."""

    reading: LogReading
    counted: DataFrame
    shares: DataFrame
    windows: DataFrame


class Fairness:
    """The job `fairness`."""

    name = "fairness"
    about = "share of each queue's deliveries per consumer group, and Jain's index in windows of 1 s and 10 s"
    parameters = FairnessParameters

    def build(self, spark: SparkSession, params: FairnessParameters) -> FairnessResult:
        """Raises: SourceError, OperatorError."""
        if params.by not in ("group", "consumer") or not 1 <= params.busy <= 1_000_000:
            raise OperatorError("by must be group or consumer, busy 1 to 1000000", EX_USAGE)
        reading = LogReading(spark, params)
        try:
            return FairnessResult(reading, *_plan(reading, params))
        except BaseException:
            reading.close()
            raise

    def summarise(self, result: FairnessResult) -> Summary:
        """Runs the job."""
        shares = [row.asDict() for row in result.shares.collect()]
        windows = [row.asDict() for row in result.windows.collect()]
        return _summary(result.reading, shares, windows)

    def report(self, result: FairnessResult, summary: Summary) -> str | None:
        """Shares as bars, Jain's index over time."""
        return _page(summary.figures)

    def close(self, result: FairnessResult) -> None:
        """Lets the view go."""
        result.counted.unpersist()
        result.reading.close()


# --- the plan -----------------------------------------------------------------------------------------------------------


def _plan(reading: LogReading, params: FairnessParameters) -> tuple[DataFrame, DataFrame, DataFrame]:
    from pyspark.sql import functions as f

    frame = reading.records(["time", "reason", "consumer_id", "delivered_time"])
    frame = frame.where((f.col("kind") == "Message-Dequeue") & f.col("counts") & f.col("consumer_id").isNotNull())
    frame = reading.of_queues(frame.where(f.col("reason").isin("ack", "reject"))).withColumn("at", f.coalesce("delivered_time", "time"))
    frame = reading.in_time(frame, "at")
    counted = frame.groupBy("queue_id", "consumer_id", f.floor(f.unix_micros("at") / f.lit(1_000_000)).alias("second")).agg(
        f.count("*").alias("n")
    )
    named = counted.join(consumer_names(reading), "consumer_id", "left")
    if params.by == "group":
        who = f.coalesce("consumer", f.format_string("consumer %d", "consumer_id"))
    else:
        who = f.concat_ws(" ", "consumer", f.format_string("#%d", "consumer_id"))
    # Of one queue and consumer there is one row a second: small enough to be kept for both frames.
    counted = named.groupBy("queue_id", who.alias("who"), "second").agg(f.sum("n").alias("n")).persist()
    shares = counted.groupBy("queue_id", "who").agg(
        f.sum("n").alias("n"), f.min("second").alias("first_s"), f.max("second").alias("last_s")
    )
    parts = []
    for width in WINDOWS_S:
        wide = counted.groupBy("queue_id", "who", f.floor(f.col("second") / f.lit(width)).alias("window")).agg(f.sum("n").alias("n"))
        sums = wide.groupBy("queue_id", "window").agg(f.sum("n").alias("total"), f.sum(f.col("n") * f.col("n")).alias("squares"))
        lives = f.broadcast(
            shares.select(
                f.col("queue_id").alias("_queue"),
                f.floor(f.col("first_s") / f.lit(width)).alias("low"),
                f.floor(f.col("last_s") / f.lit(width)).alias("high"),
            )
        )
        there = (f.col("queue_id") == f.col("_queue")) & (f.col("low") <= f.col("window")) & (f.col("window") <= f.col("high"))
        joined = sums.join(lives, there).groupBy("queue_id", "window", "total", "squares").agg(f.count("*").alias("n"))
        parts.append(
            joined.where((f.col("n") > 1) & (f.col("total") >= f.col("n") * params.busy)).select(
                "queue_id",
                f.lit(width).alias("width"),
                "window",
                "n",
                "total",
                (f.col("total") * f.col("total") / (f.col("n") * f.col("squares"))).alias("jain"),
            )
        )
    windows = parts[0].unionByName(parts[1])
    return counted, shares, windows


# --- the summary --------------------------------------------------------------------------------------------------------


def jain(counts: list[int]) -> float:
    """Jain's index; 1.0 for nothing at all. Source: Jain, Chiu, Hawe, DEC TR-301 (1984)."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def _summary(reading: LogReading, shares: list[dict[str, Any]], windows: list[dict[str, Any]]) -> Summary:
    queues = []
    for number in sorted({row["queue_id"] for row in shares}):
        own = sorted((row for row in shares if row["queue_id"] == number), key=lambda row: (-row["n"], row["who"]))
        total = sum(row["n"] for row in own)
        entry: dict[str, Any] = {
            "queue_id": number,
            "name": reading.queue_name(number),
            "deliveries": total,
            "jain": jain([row["n"] for row in own]),
            "shares": [{"who": row["who"], "deliveries": row["n"], "share": row["n"] / total} for row in own],
            "windows": {},
        }
        for width in WINDOWS_S:
            rows = sorted((row for row in windows if row["queue_id"] == number and row["width"] == width), key=lambda row: row["window"])
            values = sorted(row["jain"] for row in rows)
            entry["windows"][str(width)] = {
                "count": len(values),
                "mean": sum(values) / len(values) if values else None,
                "p10": values[len(values) // 10] if values else None,
                "min": values[0] if values else None,
                "series": [[row["window"] * width, row["jain"]] for row in rows],
            }
        queues.append(entry)
    queues.sort(key=lambda one: (-one["deliveries"], one["name"]))
    facts = {"queues": queues, "horizon": reading.view.logs["messages"].horizon, "end": reading.view.logs["messages"].end}
    return Summary("fairness", _lines(reading, facts), facts)


def _lines(reading: LogReading, facts: dict[str, Any]) -> list[str]:
    lines = ["fairness of deliveries (Jain's index: 1 all alike; windows that were busy)", ""]
    lines.append(
        f"{'queue':<26}{'deliveries':>12}{'who':>6}{'in all':>9}" + "".join(f"{f'{w} s mean':>12}{f'{w} s worst':>12}" for w in WINDOWS_S)
    )
    for one in facts["queues"][:_SHOWN]:
        cells = "".join(_index(one["windows"][str(w)]["mean"], 12) + _index(one["windows"][str(w)]["min"], 12) for w in WINDOWS_S)
        lines.append(f"{report.cut(one['name'], 25):<26}{one['deliveries']:>12,}{len(one['shares']):>6}{one['jain']:>9.3f}{cells}")
        for share in one["shares"][:8] if len(one["shares"]) > 1 else ():
            lines.append(f"  {report.cut(share['who'], 23):<24}{share['deliveries']:>12,}{share['share']:>15.1%}")
        if len(one["shares"]) > 8:
            lines.append(f"  ... and {len(one['shares']) - 8:,} more")
    if not facts["queues"]:
        lines.append("no delivery whose consumer the log knows")
    if note := reading.truncated_line():
        lines += ["", note]
    return lines


def _index(value: float | None, width: int) -> str:
    return f"{'-' if value is None else f'{value:.3f}':>{width}}"


def _page(facts: dict[str, Any]) -> str:
    parts = [
        report.tiles(
            [
                (f"{len(facts['queues']):,}", "queues"),
                (f"{sum(one['deliveries'] for one in facts['queues']):,}", "deliveries"),
                *([(f"{min(one['jain'] for one in facts['queues']):.3f}", "lowest index in all")] if facts["queues"] else []),
            ]
        )
    ]
    for one in facts["queues"][:20]:
        parts.append(
            report.heading(one["name"], f"{one['deliveries']:,} deliveries to {len(one['shares'])}; Jain's index in all {one['jain']:.3f}.")
        )
        parts.append(
            report.bar_chart(
                f"{one['name']}: shares", [(share["who"], share["share"]) for share in one["shares"][:15]], unit="share", percent=True
            )
        )
        lines, start = [], 0
        series = {width: one["windows"][str(width)]["series"] for width in WINDOWS_S}
        if any(len(points) > 1 for points in series.values()):
            start = min(points[0][0] for points in series.values() if points)
            for width, points in series.items():
                step = max(1, len(points) // _POINTS)
                lines.append(report.Series(f"windows of {width} s", [(float(second - start), value) for second, value in points[::step]]))
            parts.append(
                report.line_chart(
                    f"{one['name']}: Jain's index over time", lines, unit="index", start_us=start * 1_000_000, height=200, y_max=1.0
                )
            )
    return report.page("Fairness of deliveries", "Who got how much of each queue. Jain's index is 1 when all get the same.", parts)
