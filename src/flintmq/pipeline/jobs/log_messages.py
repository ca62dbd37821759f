"""Messages of a range of the log, each with the queue that it entered: what `archive` and `replay` take from a log.

in: where the log is (LogParameters), a time range, queue names. out: a DataFrame with the columns of `format("flintmq")`, one row for each
message and queue; consumed messages too, as long as the log has them.
M1  A row is an enqueue that counts: not of a transaction that was rolled back, or that is not decided.
M2  A message that was copied forward is one row; its time is that of its enqueue where the log still has that, else of its publishing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError
from flintmq.pipeline.arrow.schema import MESSAGES
from flintmq.pipeline.failures import explained
from flintmq.pipeline.jobs.job import LogParameters

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

    Raises: OperatorError.
    """
    from pyspark.sql import functions as f

    from pyspark_flintmq.log_view import open_view

    wanted = Range.of(params)
    try:
        view = stack.enter_context(open_view(params.source_options()))
    except Exception as error:
        raise explained(error, "the log") from error
    options = {**params.source_options(), "snapshot": view.text()}

    def stream(name: str, **more: str) -> DataFrame:
        return spark.read.format("flintmq").options(**options, **more, stream=name).load()

    names = {number: name for number, (vhost, name) in view.queues.items() if vhost == params.vhost}
    if missing := set(wanted.queues) - set(names.values()):
        raise OperatorError(f"FLINTMQ_QUEUE_MISSING: the store has no queue {', '.join(sorted(missing))} in vhost {params.vhost}", 69)
    chosen = [(number, name) for number, name in sorted(names.items()) if not wanted.queues or name in wanted.queues]
    queues = f.broadcast(spark.createDataFrame(chosen, "queue_id LONG, queue STRING"))

    # Times are looked at here and not by the source: a Message-Copy in the range may stand for an enqueue outside of it, and the other way.
    columns = "lsn,kind,time,msg_lsn,tx_lsn,queue_id,position,published_time"
    records = stream("records", log="messages", columns=columns).where(f.col("kind").isin(ENQUEUE, COPY))
    entered = records.where(f.col("queue_id").isNotNull()).join(queues, "queue_id")
    tx = stream("tx", columns="tx_lsn,state")
    committed = tx.where(f.col("state") == "committed").select(f.col("tx_lsn").alias("decided_tx"))
    # A copy's tx_lsn may be the transaction that takes the message away again: that it stood in the queue is not in doubt then.
    enqueues = (
        entered.where(f.col("kind") == ENQUEUE)
        .join(f.broadcast(committed), f.col("tx_lsn") == f.col("decided_tx"), "left")
        .where(f.col("tx_lsn").isNull() | f.col("decided_tx").isNotNull())
    )
    keys = ["msg_lsn", "queue_id"]
    known = entered.where(f.col("kind") == ENQUEUE).select(*keys).distinct()
    copies = entered.where((f.col("kind") == COPY) & f.col("position").isNotNull()).dropDuplicates(keys).join(known, keys, "left_anti")
    shape = ["msg_lsn", "queue", "position", "entered"]
    places = enqueues.withColumn("entered", f.col("time")).select(*shape)
    places = places.unionByName(copies.withColumn("entered", f.coalesce("published_time", "time")).select(*shape))
    if wanted.since_us is not None:
        places = places.where(f.col("entered") >= f.timestamp_micros(f.lit(wanted.since_us)))
    if wanted.until_us is not None:
        places = places.where(f.col("entered") < f.timestamp_micros(f.lit(wanted.until_us)))

    contents = stream("messages", body="full").dropDuplicates(["lsn"])
    rename: dict[str, Any] = {"queue": f.col("place.queue"), "position": f.col("place.position"), "enqueued_time": f.col("place.entered")}
    rename["redelivered"] = f.lit(False)
    joined = places.alias("place").join(contents.alias("content"), f.col("place.msg_lsn") == f.col("content.lsn"))
    return joined.select(*(rename.get(name, f.col(f"content.{name}")).alias(name) for name, _, _ in MESSAGES))
