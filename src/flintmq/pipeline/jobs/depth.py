"""Depth: how many messages stood in each queue over time, and what came and went.

in: a log. out: per queue and time bucket: depth, enqueues, dequeues by reason; a page with charts.

D1  What stood in a queue before the first bucket, or is known only by its end or a copy (its beginning lies below the log's horizon), is in
    the base from which the depth starts.
D2  The last depth is what is open at the log's end; a deleted queue's falls to 0 when it is deleted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import report
from flintmq.pipeline.jobs.job import EX_USAGE, LogParameters, Summary, parameter
from flintmq.pipeline.jobs.lifecycle import REASONS
from flintmq.pipeline.jobs.reading import LogReading, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# time buckets in the whole range, when the width is not given
BUCKETS = 240
BUCKETS_MAX = 100_000
EVENTS = ("enqueued", *REASONS, "deleted")
_WIDTHS_MS = (
    10,
    20,
    50,
    100,
    200,
    500,
    *(1000 * s for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)),
)
_SHOWN = 30
_BASE = -1


@dataclass(frozen=True)
class DepthParameters(LogParameters):
    """Parameters of `depth`."""

    bucket: float = parameter(0.0, "seconds of a time bucket, 0.01 to 86400; 0: about 240 buckets in all")


@dataclass
class DepthResult:
    """What `build` made. start_us: of bucket 0; width_us: of a bucket."""

    reading: LogReading
    frame: DataFrame
    start_us: int
    width_us: int
    buckets: int


class Depth:
    """The job `depth`."""

    name = "depth"
    about = "messages in each queue over time, and what came and went"
    parameters = DepthParameters

    def build(self, spark: SparkSession, params: DepthParameters) -> DepthResult:
        """`frame`: queue_id, bucket (-1: before the first), event, n. Raises: SourceError, OperatorError."""
        if params.bucket and not 0.01 <= params.bucket <= 86_400:
            raise OperatorError(f"bucket must be 0.01 to 86400 seconds, not {params.bucket}", EX_USAGE)
        reading = LogReading(spark, params)
        try:
            first, last = time_range(reading)
            width = round(params.bucket * 1_000_000) or nice_width((last - first) / BUCKETS)
            start = first // width * width
            buckets = (last - start) // width + 1
            if buckets > BUCKETS_MAX:
                raise OperatorError(
                    f"{buckets:,} buckets of {width / 1e6:g} s: at most {BUCKETS_MAX:,}; choose wider ones, or less time", EX_USAGE
                )
            return DepthResult(reading, events(reading, start, width, buckets), start, width, buckets)
        except BaseException:
            reading.close()
            raise

    def summarise(self, result: DepthResult) -> Summary:
        """Runs the job."""
        rows = [(row["queue_id"], row["bucket"], row["event"], row["n"]) for row in result.frame.collect()]
        series = depth_series(rows, result.buckets)
        return _summary(result, series)

    def report(self, result: DepthResult, summary: Summary) -> str | None:
        """Depth over time, and rates in and out, per queue."""
        return _page(summary.figures)

    def close(self, result: DepthResult) -> None:
        """Lets the view go."""
        result.reading.close()


# --- the plan -----------------------------------------------------------------------------------------------------------


def events(reading: LogReading, start_us: int, width_us: int, buckets: int) -> DataFrame:
    """queue_id, bucket, event (of EVENTS), n: one shuffle by place, then sums. `until` leaves out what is behind it."""
    from pyspark.sql import functions as f

    kinds = ("Message-Enqueue", "Message-Dequeue", "Message-Copy", "Queue-End")
    frame = reading.of_queues(reading.records(["time", "reason"]).where(f.col("kind").isin(*kinds)))
    kind, counts, when = f.col("kind"), f.col("counts"), f.unix_micros(f.coalesce("decided", "time"))
    stood = (
        frame.groupBy("queue_id", f.coalesce("place", "position").alias("position"))
        .agg(
            f.min(f.when((kind == "Message-Enqueue") & counts, when)).alias("came"),
            f.max(kind == "Message-Copy").alias("copied"),
            f.min(f.when((kind == "Message-Dequeue") & counts, f.struct(when.alias("time"), "reason"))).alias("went"),
            f.min(f.when(kind == "Queue-End", when)).alias("deleted"),
        )
        .where(f.col("came").isNotNull() | f.col("copied") | f.col("went").isNotNull() | f.col("deleted").isNotNull())
    )

    def event(time: object, name: object) -> object:
        bucket = f.floor((time - f.lit(start_us)) / f.lit(width_us)).cast("int")  # type: ignore[operator]
        return f.struct(f.greatest(bucket, f.lit(_BASE)).alias("bucket"), name.alias("event"))  # type: ignore[attr-defined]

    came = event(f.coalesce("came", f.lit(0).cast("long")), f.lit("enqueued"))  # not known: long ago
    here = f.col("came").isNotNull() | f.col("copied") | f.col("went").isNotNull()
    pairs = f.array_compact(
        f.array(
            f.when(here, came),
            f.when(f.col("went").isNotNull(), event(f.col("went.time"), f.col("went.reason"))),
            f.when(f.col("deleted").isNotNull(), event(f.col("deleted"), f.lit("deleted"))),
        )
    )
    happened = stood.select("queue_id", f.explode(pairs).alias("one")).select("queue_id", "one.bucket", "one.event")
    return happened.where(f.col("bucket") < buckets).groupBy("queue_id", "bucket", "event").agg(f.count("*").alias("n"))


def time_range(reading: LogReading) -> tuple[int, int]:
    """Microseconds: the first and the last moment that the job covers: what the parameters say, else the log's own."""
    from flintmq.arrow.scan import scan_container

    facts = reading.view.logs["messages"]
    times: list[int] = []
    for _, path in (*facts.containers[:1], *facts.containers[-2:]):
        for batch in scan_container(path, columns=["time"], end=facts.end, mode="PERMISSIVE"):
            column = batch.column("time").cast("int64")
            times += [column[0].as_py(), column[-1].as_py()]
    first, last = (min(times), max(times)) if times else (0, 0)
    first = reading.since_us if reading.since_us is not None else first
    last = reading.until_us - 1 if reading.until_us is not None else last
    return first, max(first, last)


def nice_width(us: float) -> int:
    """The round bucket width, microseconds, that is not below `us`."""
    return next((width * 1000 for width in _WIDTHS_MS if width * 1000 >= us), math.ceil(us / 86_400e6) * 86_400_000_000)


# --- the summary --------------------------------------------------------------------------------------------------------


def depth_series(rows: Iterable[tuple[int, int, str, int]], buckets: int) -> dict[int, dict[str, Any]]:
    """Per queue: base, and per bucket depth (at its end), enqueued, dequeued; totals by event. Pure.

    Args: rows: queue_id, bucket, event, n as `events` gives them.
    """
    by_queue: dict[int, dict[str, Any]] = {}
    for queue, bucket, event, n in rows:
        one = by_queue.setdefault(
            queue, {"base": 0, "enqueued": [0] * buckets, "dequeued": [0] * buckets, "deleted_at": None, "totals": dict.fromkeys(EVENTS, 0)}
        )
        if event == "deleted":
            one["deleted_at"] = max(bucket, 0)
        elif bucket < 0:
            one["base"] += n if event == "enqueued" else -n
        else:
            one["enqueued" if event == "enqueued" else "dequeued"][bucket] += n
            one["totals"][event if event in EVENTS else "ack"] += n
    for one in by_queue.values():
        depth, series = one["base"], []
        for i in range(buckets):
            depth += one["enqueued"][i] - one["dequeued"][i]
            if one["deleted_at"] == i:
                one["totals"]["deleted"], depth = depth, 0
            series.append(depth)
        one["depth"] = series
    return by_queue


def _summary(result: DepthResult, series: dict[int, dict[str, Any]]) -> Summary:
    queues = []
    for number, one in series.items():
        peak = max([one["base"], *one["depth"]])
        index = one["depth"].index(peak) if peak in one["depth"] else 0
        last = one["depth"][-1] if one["depth"] else one["base"]
        queues.append(
            {"queue_id": number, "name": result.reading.queue_name(number), "peak": peak, "peak_bucket": index, "last": last, **one}
        )
    queues.sort(key=lambda one: (-one["peak"], one["name"]))
    facts = {
        "start_us": result.start_us,
        "bucket_s": result.width_us / 1e6,
        "buckets": result.buckets,
        "queues": queues,
        "horizon": result.reading.view.logs["messages"].horizon,
    }
    lines = [
        f"depth of {len(queues):,} queues from {moment(result.start_us)} in {result.buckets:,} buckets of {result.width_us / 1e6:g} s",
        "",
    ]
    lines.append(
        f"{'queue':<26}{'base':>10}{'enqueued':>12}"
        + "".join(f"{name:>10}" for name in (*REASONS, "deleted"))
        + f"{'peak':>10}{'last':>10}  peak at"
    )
    for one in queues[:_SHOWN]:
        top = moment(result.start_us + one["peak_bucket"] * result.width_us)
        totals = one["totals"]
        cells = "".join(f"{totals[name]:>10,}" for name in (*REASONS, "deleted"))
        lines.append(
            f"{report.cut(one['name'], 25):<26}{one['base']:>10,}{totals['enqueued']:>12,}{cells}"
            f"{one['peak']:>10,}{one['last']:>10,}  {top}"
        )
    if len(queues) > _SHOWN:
        lines.append(f"... and {len(queues) - _SHOWN:,} more")
    if note := result.reading.truncated_line():
        lines += ["", note]
    return Summary("depth", lines, facts)


def _page(facts: dict[str, Any]) -> str:
    queues, width = facts["queues"], facts["bucket_s"]
    lines = [
        report.Series(one["name"], [(i * width, float(depth)) for i, depth in enumerate(one["depth"])])
        for one in queues[: report.SERIES_MAX]
    ]
    came = [sum(one["enqueued"][i] for one in queues) / width for i in range(facts["buckets"])]
    went = [sum(one["dequeued"][i] for one in queues) / width for i in range(facts["buckets"])]
    rates = [report.Series(name, [(i * width, rate) for i, rate in enumerate(values)]) for name, values in (("in", came), ("out", went))]
    parts = [
        report.tiles(
            [
                (f"{len(queues):,}", "queues"),
                (f"{sum(one['totals']['enqueued'] for one in queues):,}", "messages in"),
                (f"{sum(sum(one['dequeued']) for one in queues):,}", "messages out"),
                (f"{sum(one['last'] for one in queues):,}", "at the end"),
            ]
        ),
        report.heading("Depth", "The deepest queues." if len(queues) > report.SERIES_MAX else ""),
        report.line_chart("Messages in queues", lines, unit="messages", start_us=facts["start_us"], height=320, steps=True),
        report.heading("In and out", "All queues together."),
        report.line_chart("Messages a second", rates, unit="1/s", start_us=facts["start_us"], height=200),
        report.heading("Queues"),
        report.table(
            ["queue", "base", "in", *REASONS, "deleted", "peak", "last"],
            [
                [one["name"], f"{one['base']:,}", *(f"{one['totals'][name]:,}" for name in EVENTS), f"{one['peak']:,}", f"{one['last']:,}"]
                for one in queues[:200]
            ],
        ),
    ]
    return report.page("Depth of queues", f"Messages in each queue, in buckets of {width:g} s.", parts)
