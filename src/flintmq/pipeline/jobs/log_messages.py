"""Messages of a range of the log, each with the queue that it entered: what `archive` and `replay` take from a log.

in: where the log is (LogParameters), a time range, queue names. out: a DataFrame with the columns of `format("flintmq")`, one row for each
message and queue; consumed messages too, as long as the log has them.
M1  A row is an enqueue that counts: not of a transaction that was rolled back, or that is not decided (reading.py, R2). One of a
    transaction entered its queue when that was decided, at the position that it got then.
M2  A message that was copied forward is one row; its time is that of its enqueue where the log still has that, else of its publishing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.arrow.schema import MESSAGES
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.job import LogParameters
from flintmq.pipeline.jobs.reading import LogReading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENQUEUE, COPY = "Message-Enqueue", "Message-Copy"


@dataclass(frozen=True)
class Range:
    """A part of the log. since_us, until_us: microseconds since 1970, the second not included; queues: names in the vhost, empty: all."""

    since_us: int | None
    until_us: int | None
    queues: tuple[str, ...]

    @classmethod
    def of(cls, params: LogParameters) -> Range:
        """Raises: OperatorError (64) for a time that is none."""
        since, until = moment_us("--since", params.since), moment_us("--until", params.until)
        if since is not None and until is not None and since >= until:
            raise OperatorError(f"--since {params.since} is not before --until {params.until}", 64)
        return cls(since, until, names_of(params.queue))


def names_of(text: str) -> tuple[str, ...]:
    """Names separated by commas, sorted, each once."""
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def moment_us(option: str, text: str) -> int | None:
    """Microseconds since 1970 of a time as the source's options have it; None for "". Raises: OperatorError (64)."""
    if not text:
        return None
    from pyspark_flintmq.errors import SourceError
    from pyspark_flintmq.queue_options import _time_us

    try:
        return _time_us(option, text)
    except SourceError as error:
        raise OperatorError(error.text.replace(f"option '{option}'", option), 64) from None


def log_messages(spark: SparkSession, params: LogParameters, stack: ExitStack) -> DataFrame:
    """See module. Lazy, but it takes a view of the log that `stack` lets go.

    Raises: SourceError, OperatorError.
    """
    from pyspark.sql import functions as f

    wanted = Range.of(params)
    reading = LogReading(spark, params)
    stack.callback(reading.close)
    names = [(number, name) for number, (vhost, name) in sorted(reading.view.queues.items()) if vhost == params.vhost]
    if wanted.queues:
        names = [(number, name) for number, name in names if number in reading.queue_ids]
    queues = f.broadcast(spark.createDataFrame(names, "queue_id LONG, queue STRING"))

    # Times are looked at here and not by the source: a Message-Copy in the range may stand for an enqueue outside of it, and the other way.
    records = reading.records(["time", "msg_lsn", "published_time"]).where(f.col("kind").isin(ENQUEUE, COPY)).join(queues, "queue_id")
    # Whether a copy counts is not asked: its transaction may be the one that takes the message away, and that it stood there is sure.
    enqueues = records.where((f.col("kind") == ENQUEUE) & f.col("counts")).withColumn("entered", f.coalesce("decided", "time"))
    keys = ["msg_lsn", "queue_id"]
    known = records.where(f.col("kind") == ENQUEUE).select(*keys).distinct()
    copies = records.where((f.col("kind") == COPY) & f.col("place").isNotNull()).dropDuplicates(keys).join(known, keys, "left_anti")
    shape = ["msg_lsn", "queue", "place", "entered"]
    places = enqueues.select(*shape)
    places = places.unionByName(copies.withColumn("entered", f.coalesce("published_time", "time")).select(*shape))
    if wanted.since_us is not None:
        places = places.where(f.col("entered") >= f.timestamp_micros(f.lit(wanted.since_us)))
    if wanted.until_us is not None:
        places = places.where(f.col("entered") < f.timestamp_micros(f.lit(wanted.until_us)))

    contents = reading.table("messages", body="full").dropDuplicates(["lsn"])
    rename: dict[str, Any] = {"queue": f.col("in.queue"), "position": f.col("in.place"), "enqueued_time": f.col("in.entered")}
    rename["redelivered"] = f.lit(False)
    joined = places.alias("in").join(contents.alias("content"), f.col("in.msg_lsn") == f.col("content.lsn"))
    return joined.select(*(rename.get(name, f.col(f"content.{name}")).alias(name) for name, _, _ in MESSAGES))
