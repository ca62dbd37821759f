"""What the jobs over the log have in common: records as data frames, with the outcome of their transactions and their true positions.

in: a session and LogParameters. out: `LogReading`: a view of the log that stays as it is until `close`, data frames over it.

R1  All frames of one reading see the same moment.
R2  A record counts (`counts` true) when it is in no transaction or in a committed one. Of a transaction that the log has forgotten (it
    ended below the transaction log's horizon) the outcome is not known: its records count, as recovery takes them.
R3  A purge's record names runs of positions: each of them is a Message-Dequeue here, whose message is not named.
R4  `place` is the position that an enqueue got: its own, or the one that the Commit's rows give its waiting number; null: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flintmq.arrow.log import ContainerFacts, block_epochs, first_epoch, transactions
from flintmq.pipeline.jobs.job import LogParameters

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Transactions that are sent to every task; more are joined by a shuffle.
BROADCAST_MAX = 2_000_000
# levels of priority are the upper 8 bits of a position
LEVEL_BITS = 56


class LogReading:
    """One view of a log. Args: params: where the log is, and which part. Raises: SourceError."""

    def __init__(self, spark: SparkSession, params: LogParameters) -> None:
        from pyspark_flintmq.log_options import LogOptions
        from pyspark_flintmq.log_view import open_view

        self.spark = spark
        self.params = params
        raw = params.source_options()
        self._stack = ExitStack()
        self.view = self._stack.enter_context(open_view(raw))
        try:
            self._raw = {**raw, "snapshot": self.view.text()}
            names = [name.strip() for name in params.queue.split(",") if name.strip()]
            options = LogOptions.parse({**raw, "queues": ",".join(names)}) if names else None
            self.queue_ids = sorted(self.view.queue_ids(options)) if options else []
            times = LogOptions.parse({"stream": "records", "startingTimestamp": params.since, "endingTimestamp": params.until})
            self.since_us, self.until_us = times.since_us, times.until_us
        except BaseException:
            self.close()
            raise
        self._transactions: pa.Table | None = None

    def close(self) -> None:
        """Gives a running broker's containers free. Again is no error."""
        self._stack.close()

    def queue_name(self, number: int) -> str:
        """For people: the name (with its vhost unless that is `/`), or the id of a queue that is gone."""
        vhost, name = self.view.queues.get(number, ("", ""))
        if not vhost:
            return f"queue {number} (deleted)" if self.view.queues else f"queue {number}"
        return name if vhost == "/" else f"{vhost}:{name}"

    # --- frames

    def table(self, stream: str, **options: str) -> DataFrame:
        """A stream of the log source, of this view."""
        return self.spark.read.format("flintmq").options(**{**self._raw, "stream": stream, **options}).load()

    def records(self, columns: Sequence[str]) -> DataFrame:
        """Records of the message log with `counts`, `outcome` (null: in no transaction, or forgotten), `decided` and `place` (R2 to R4).

        Args: columns: of the stream `records` besides lsn, kind, tx_lsn, queue_id, position, waiting.
        """
        from pyspark.sql import functions as f

        needed = {"lsn", "kind", "tx_lsn", "queue_id", "position", "waiting", "count", *columns}
        frame = self.table("records", log="messages", columns=",".join(sorted(needed)))
        purge = f.col("kind") == "Queue-Purge"
        run = f.when(purge, f.sequence(f.col("position"), f.col("position") + f.col("count") - 1))
        frame = frame.select("*", f.explode_outer(run).alias("_at"))
        frame = frame.withColumn("position", f.coalesce("_at", "position")).drop("_at", "count")
        frame = frame.withColumn("kind", f.when(purge, "Message-Dequeue").otherwise(f.col("kind")))
        known = self.transactions()
        if not known.num_rows:
            none = f.lit(None)
            counts = f.col("tx_lsn").isNull() | (f.col("tx_lsn") < self.view.logs["transactions"].end)
            return frame.select(
                "*", counts.alias("counts"), none.cast("string").alias("outcome"), none.cast("timestamp").alias("decided"), _place(None)
            )
        outcomes = self._small(known.select(["tx_lsn", "state", "decided"]), known.num_rows)
        frame = frame.join(outcomes.withColumnRenamed("state", "outcome"), "tx_lsn", "left")
        forgotten = f.col("outcome").isNull() & (f.col("tx_lsn") < self.view.logs["transactions"].end)
        frame = frame.withColumn("counts", f.col("tx_lsn").isNull() | (f.col("outcome") == "committed") | forgotten)
        frame = frame.withColumn("counts", f.coalesce("counts", f.lit(False)))
        rows = commit_rows(known)
        if not rows.num_rows:
            return frame.withColumn("place", f.col("position"))
        given = self._small(rows, rows.num_rows).select(
            f.col("tx_lsn").alias("_tx"), f.col("queue_id").alias("_queue"), "number", "first", "count"
        )
        here = (
            (f.col("tx_lsn") == f.col("_tx"))
            & (f.col("queue_id") == f.col("_queue"))
            & f.col("waiting").isNotNull()
            & (f.col("waiting") >= f.col("number"))
            & (f.col("waiting") < f.col("number") + f.col("count"))
        )
        frame = frame.join(given, here, "left")
        return frame.withColumn("place", _place("first")).drop("_tx", "_queue", "number", "first", "count")

    def transactions(self) -> pa.Table:
        """The table `tx` of this view; read once, by this process: it is small beside the messages."""
        import pyarrow as pa

        if self._transactions is None:
            facts = self.view.logs["transactions"]
            containers = [ContainerFacts(number, path, facts.size, number * facts.size, 0, 0) for number, path in facts.containers]
            batch = transactions(containers, end=facts.end, mode=self.params.mode.upper())
            self._transactions = pa.Table.from_batches([batch])
        return self._transactions

    def of_queues(self, frame: DataFrame, column: str = "queue_id") -> DataFrame:
        """Only the queues that the parameters name."""
        from pyspark.sql import functions as f

        return frame.where(f.col(column).isin(self.queue_ids)) if self.queue_ids else frame

    def in_time(self, frame: DataFrame, column: str) -> DataFrame:
        """Only rows of the time that the parameters name."""
        from pyspark.sql import functions as f

        for bound, first in ((self.since_us, True), (self.until_us, False)):
            if bound is not None:
                moment = f.timestamp_micros(f.lit(bound))
                frame = frame.where(f.col(column) >= moment if first else f.col(column) < moment)
        return frame

    def small(self, table: pa.Table) -> DataFrame:
        """An Arrow table as a data frame that is sent to every task, unless it is large."""
        return self._small(table, table.num_rows)

    def _small(self, table: pa.Table, rows: int) -> DataFrame:
        from pyspark.sql import functions as f

        frame = self.spark.createDataFrame(table)
        return f.broadcast(frame) if rows <= BROADCAST_MAX else frame

    def consumers(self) -> dict[int, tuple[str, str]]:
        """Consumer id -> (tag, group), as the log's Name records tell. Runs a Spark job."""
        rows = self.table("consumers").collect()
        return {row["consumer_id"]: (row["tag"], row["group"]) for row in sorted(rows, key=lambda row: row["lsn"])}

    # --- the log's own figures

    def truncated_line(self) -> str | None:
        """What to say when the log does not reach back to the broker's first message."""
        horizon = self.view.logs["messages"].horizon
        if not horizon:
            return None
        return f"the log is complete from LSN {horizon:,} on; what began before is counted as truncated"


def _place(first: str | None) -> Column:
    from pyspark.sql import functions as f

    if first is None:
        return f.col("position").alias("place")
    given = f.when(f.col(first) > 0, f.col(first) + f.col("waiting") - f.col("number"))
    return f.coalesce(f.col("position"), given)


def commit_rows(known: pa.Table) -> pa.Table:
    """Positions that commits gave, one row per run: tx_lsn, queue_id, number (waiting number of its first), first, count."""
    import pyarrow as pa

    rows: dict[str, list[int]] = {name: [] for name in ("tx_lsn", "queue_id", "number", "first", "count")}
    for tx_lsn, state, runs in zip(*(known.column(name).to_pylist() for name in ("tx_lsn", "state", "rows")), strict=True):
        if state != "committed" or not runs:
            continue
        numbers: dict[int, int] = {}
        for run in runs:
            number = numbers.get(run["queue_id"], 0)
            numbers[run["queue_id"]] = number + run["count"]
            for name, value in (
                ("tx_lsn", tx_lsn),
                ("queue_id", run["queue_id"]),
                ("number", number),
                ("first", run["first"]),
                ("count", run["count"]),
            ):
                rows[name].append(value)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in rows.items()})


def set_rows(known: pa.Table) -> pa.Table:
    """Positions that transactions acquired as sets, one row per run: tx_lsn, state, ended, queue_id, first, count."""
    import pyarrow as pa

    names = ("tx_lsn", "state", "ended", "queue_id", "first", "count")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    for tx_lsn, state, ended, runs in zip(*(known.column(name).to_pylist() for name in ("tx_lsn", "state", "ended", "sets")), strict=True):
        for run in runs or ():
            for name, value in zip(names, (tx_lsn, state, ended, run["queue_id"], run["first"], run["count"]), strict=True):
                rows[name].append(value)
    types = {"state": pa.string(), "ended": pa.bool_()}
    return pa.table({name: pa.array(values, types.get(name, pa.int64())) for name, values in rows.items()})


def epoch_ends(view: Any) -> list[int]:
    """LSNs at which an epoch of the broker ended in the message log, the view's own end included: what was under way there may be
    unfinished. Raises: OSError."""
    facts = view.logs["messages"]
    firsts = [first_epoch(path, number, facts.size) for number, path in facts.containers]
    ends = {facts.end}
    for i, (number, path) in enumerate(facts.containers):
        # An epoch begins inside a container, or with its first block: the first blocks tell where to look.
        after = firsts[i + 1] if i + 1 < len(firsts) else None
        if after is not None and after == firsts[i]:
            continue
        epoch, end = 0, 0
        for block_epoch, block_end in block_epochs(path, number, facts.size):
            if epoch and block_epoch > epoch:
                ends.add(end)
            epoch, end = max(epoch, block_epoch), block_end
        if epoch and after is not None and after > epoch:
            ends.add(end)
    return sorted(ends)


def moment(us: int) -> str:
    """A time for people: UTC, to the millisecond."""
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
