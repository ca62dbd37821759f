"""archive: messages into Parquet or Delta by date and queue; or the log's records into Parquet.

in: queues (taken out, exactly once, by a streaming query), or a range of the log (looked at, nothing is taken).
out: OUT/date=.../queue=.../, the columns of `format("flintmq")`. With source `records`: the table `records` (log_records.py).
A1  From queues: each message once, whatever is killed. Parquet: Spark's file sink (readers must honour OUT/_spark_metadata, as Spark does);
    Delta: each micro-batch is one commit that carries the query's id and the batch's number.
A2  From the log: OUT is whole or not an archive yet (_SUCCESS); the same range again is refused, or (Delta) adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import delta
from flintmq.pipeline.jobs.failures import one_clear_line
from flintmq.pipeline.jobs.job import LogParameters, Summary, parameter
from flintmq.pipeline.jobs.log_messages import Range, log_messages, names_of
from flintmq.pipeline.jobs.queries import Listener, Totals, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = ("date", "queue")
USAGE, CONFLICT = 64, 75
# Delta's batches pass through the driver: its memory is theirs.
DELTA_MESSAGES_MAX, DELTA_BYTES_MAX = 200_000, 64 * 1024 * 1024
MARK = "_flintmq_archive.json"
SOURCES = ("queue", "log", "records")


@dataclass(frozen=True)
class ArchiveParameters(LogParameters):
    """What to archive, and where."""

    source: str = parameter(
        "queue", "take messages out of queues, or copy a range of the log: its messages, or its records", choices=SOURCES
    )
    out: str = parameter("", "directory of the archive", metavar="DIR")
    format: str = parameter("parquet", "files: parquet, or a Delta table (pip install 'flintmq[delta]')", choices=("parquet", "delta"))
    queue_pattern: str = parameter("", "instead of --queue: names with * and ?; those that the user may read", metavar="PATTERN")
    subscription: str = parameter("", "name of the subscription (archive: and the queues)", metavar="NAME")
    checkpoint: str = parameter("", "directory of the checkpoint (OUT/_checkpoint)", metavar="DIR")
    follow: bool = parameter(False, "go on until interrupted, instead of ending when the queues are empty")
    every: float = parameter(10.0, "with --follow: seconds between two batches, at least 0", metavar="SECONDS")
    max_messages: int = parameter(200_000, "messages of a batch, 1 to 1,000,000")
    max_bytes: int = parameter(128 * 1024 * 1024, "bytes of bodies of a batch, at least 1")
    on_lost_checkpoint: str = parameter(
        "fail", "when another checkpoint may have a batch: an error, or that batch again", choices=("fail", "redeliver")
    )

    @property
    def from_log(self) -> bool:
        return self.source != "queue" or bool(self.store_dir or self.archive_dir)

    @property
    def of_records(self) -> bool:
        return self.source == "records"

    @property
    def directory(self) -> Path:
        return Path(self.out).expanduser().absolute()

    @property
    def checkpoint_directory(self) -> Path:
        return Path(self.checkpoint).expanduser().absolute() if self.checkpoint else self.directory / "_checkpoint"

    def checked(self) -> None:
        """Raises: OperatorError (64) for what does not go together."""
        if not self.out:
            raise OperatorError("--out is needed: the directory of the archive", USAGE)
        if self.from_log:
            if self.follow or self.subscription or self.queue_pattern or self.checkpoint:
                raise OperatorError("--follow, --subscription, --queue-pattern and --checkpoint go with --source queue", USAGE)
            if self.of_records and self.format != "parquet":
                raise OperatorError("--source records is written as Parquet: leave out --format", USAGE)
            Range.of(self)
            return
        if bool(self.queue) == bool(self.queue_pattern):
            raise OperatorError("give --queue or --queue-pattern: the queues to archive (or --source log)", USAGE)
        if self.since or self.until:
            raise OperatorError("--since and --until go with --source log: a queue is archived whole", USAGE)
        if not 1 <= self.max_messages <= 1_000_000 or self.max_bytes < 1 or self.every < 0:
            raise OperatorError("--max-messages is 1 to 1,000,000, --max-bytes at least 1, --every at least 0", USAGE)

    def record_options(self) -> dict[str, str]:
        """For `spark.read.format("flintmq")` with stream=records."""
        names = names_of(self.queue)
        given = {
            "startingTimestamp": self.since,
            "endingTimestamp": self.until,
            ("queue" if len(names) == 1 else "queues"): ",".join(names),
        }
        return {**self.source_options(), "stream": "records", **{name: text for name, text in given.items() if text}}

    def stream_options(self, by_offset: bool = False) -> dict[str, str]:
        """For `readStream.format("flintmq")`. by_offset: the queues are streams, to which options of a subscription say nothing: those are
        left out that nobody asked for."""
        settings = {name: text for name, text in self.source_options().items() if name != "mode"}
        most, size = self.max_messages, self.max_bytes
        if self.format == "delta":
            most, size = min(most, DELTA_MESSAGES_MAX), min(size, DELTA_BYTES_MAX)
        queues = self.queue_pattern or ",".join(names_of(self.queue))
        digest = hashlib.blake2b(queues.encode(), digest_size=8).hexdigest()
        default = f"archive:{queues}" if len(queues.encode()) <= 200 else f"archive:{digest}"
        options = {
            **settings,
            **({"queuePattern": self.queue_pattern} if self.queue_pattern else {"queues": queues}),
            "subscription": self.subscription or default,
            "maxMessagesPerTrigger": str(most),
            "maxBytesPerTrigger": str(size),
            "onLostCheckpoint": self.on_lost_checkpoint,
            # A directory that has the batches of another checkpoint is refused by _check_checkpoint, so nothing is left out.
            "onNewCheckpoint": "continue",
            "checkpointLocation": str(self.checkpoint_directory),
        }
        if not self.subscription and (by_offset or _highest(self.checkpoint_directory / "commits") >= 0):
            del options["subscription"]  # the checkpoint knows it, also when the queues are others now
        if by_offset and self.on_lost_checkpoint == "fail":
            del options["onLostCheckpoint"]
        return options

    def are_streams(self) -> bool:
        """Whether the queues are streams, which are read by offset. Asks the broker. Raises: SourceError."""
        from pyspark_flintmq.cursor import are_streams
        from pyspark_flintmq.queue_options import QueueOptions

        options = QueueOptions.stream(self.stream_options(by_offset=True))
        return are_streams(options, options.connection.open)


def dated(frame: DataFrame) -> DataFrame:
    """`frame` with the column `date` in front: the day (UTC) on which the message came into its queue."""
    from pyspark.sql import functions as f

    # A message that only memory has carries no time: the day of the batch then, which a batch that is run again keeps.
    when = f.coalesce("enqueued_time", "published_time", f.current_timestamp())
    return frame.select(f.to_date(when).alias("date"), *frame.columns)


@dataclass
class ArchivePlan:
    """What `build` made. frame: None when records are written (log_records.py). listener, stop: of a streaming query, see
    queries.run_query."""

    params: ArchiveParameters
    spark: SparkSession
    frame: DataFrame | None
    streaming: bool
    stack: ExitStack
    listener: Listener | None = None
    stop: threading.Event | None = None
    added: dict[str, int] = field(default_factory=lambda: {"rows": 0, "commits": 0, "known": 0})


class Archive:
    """See module."""

    name = "archive"
    about = "queues, or a range of the log, into Parquet or Delta by date and queue"
    parameters = ArchiveParameters
    has_report = False

    def build(self, spark: SparkSession, params: ArchiveParameters) -> ArchivePlan:
        params.checked()
        _check_place(params)
        if params.format == "delta":
            delta.check_installed()
        with ExitStack() as stack, one_clear_line("archive"):
            if params.of_records:
                # Nothing is read, but options are checked now.
                spark.read.format("flintmq").options(**params.record_options()).load()
                return ArchivePlan(params, spark, None, False, stack.pop_all())
            if params.from_log:
                frame = log_messages(spark, params, stack)
            else:
                frame = spark.readStream.format("flintmq").options(**params.stream_options(params.are_streams())).load()
            return ArchivePlan(params, spark, dated(frame), not params.from_log, stack.pop_all())

    def summarise(self, result: ArchivePlan) -> Summary:
        with one_clear_line("archive"):
            _mark(result.params)
            if result.frame is None:
                totals = self._records(result)
            else:
                totals = self._stream(result, result.frame) if result.streaming else self._log(result, result.frame)
            return _summary(result, totals)

    def report(self, result: ArchivePlan, summary: Summary) -> str | None:
        return None

    def close(self, result: ArchivePlan) -> None:
        result.stack.close()

    @staticmethod
    def _records(result: ArchivePlan) -> Totals:
        from flintmq.pipeline.jobs.log_records import write_records

        began = time.perf_counter()
        written = write_records(result.spark, result.params.record_options(), result.params.directory)
        return Totals(written.rows, 1, time.perf_counter() - began)

    def _stream(self, result: ArchivePlan, frame: DataFrame) -> Totals:
        params = result.params
        writer = frame.writeStream.queryName("flintmq-archive").option("checkpointLocation", str(params.checkpoint_directory))
        writer = writer.trigger(processingTime=f"{params.every} seconds") if params.follow else writer.trigger(availableNow=True)
        if params.format == "parquet":
            writer = writer.format("parquet").partitionBy(*PARTITIONS).option("path", str(params.directory))
        else:
            writer = writer.foreachBatch(lambda batch, number: self._delta(result, batch, f"flintmq:{_query_id(params)}", number))
        return run_query(writer.start, "archive", result.listener, result.stop)

    def _log(self, result: ArchivePlan, frame: DataFrame) -> Totals:
        params = result.params
        if params.format == "delta":
            self._delta(result, frame, _range_name(params), 0)
            return Totals(result.added["rows"], 1)
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation("archived")
        # Neighbours in a file share date and queue: one file a day and queue and task, not one for each of all combinations.
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows")).repartition(*PARTITIONS)
        frame = frame.sortWithinPartitions(*PARTITIONS, "position", "lsn")
        frame.write.mode("append").partitionBy(*PARTITIONS).parquet(str(params.directory))
        return Totals(int(seen.get["rows"]), 1)

    @staticmethod
    def _delta(result: ArchivePlan, batch: DataFrame, writer: str, number: int) -> None:
        path = result.params.directory
        done = delta.version_of(path, writer)
        if done is not None and done >= number:
            result.added["known"] += 1
            return
        table = batch.toArrow()
        if table.num_rows and delta.append(path, table, writer, number, PARTITIONS):
            result.added["rows"] += table.num_rows
            result.added["commits"] += 1


def _check_place(params: ArchiveParameters) -> None:
    """An archive is not written over. Raises: OperatorError (64)."""
    path = params.directory
    try:
        there = {one.name for one in path.iterdir()} if path.is_dir() else set()
        if path.exists() and not path.is_dir():
            raise OperatorError(f"--out {path} is a file", USAGE)
    except OSError as error:
        raise OperatorError(f"--out {path}: {error.strerror}", 78) from error
    if not there:
        return
    if MARK not in there:
        raise OperatorError(f"--out {path} holds something else: name a new directory, or one that this job made", USAGE)
    # An empty mark is of a run that was killed before it wrote anything.
    made = json.loads((path / MARK).read_text() or _mark_of(params))
    if made.get("format") != params.format:
        raise OperatorError(f"--out {path} is an archive of format {made.get('format')}, not {params.format}", USAGE)
    if made.get("source") != _source(params):
        raise OperatorError(f"--out {path} was made from a {made.get('source')}: give this one a directory of its own", USAGE)
    if not params.from_log and params.format == "parquet":
        _check_checkpoint(params)
    if params.from_log and params.format == "parquet" and "_SUCCESS" in there:
        raise OperatorError(f"--out {path} holds an archive of the log already: name a new directory", USAGE)


def _check_checkpoint(params: ArchiveParameters) -> None:
    """Spark's file sink leaves out every batch whose number it has: of a checkpoint that counts anew it would lose them without a word.

    Raises: OperatorError (75).
    """
    written, begun = _highest(params.directory / "_spark_metadata"), _highest(params.checkpoint_directory / "offsets")
    if written > begun:
        has = f"ends with batch {begun}" if begun >= 0 else "has none"
        raise OperatorError(
            f"FLINTMQ_CHECKPOINT_LOST: --out {params.directory} has batches up to {written}, its checkpoint {params.checkpoint_directory} "
            f"{has}: messages would be taken out and not written. Put the checkpoint back, or name a new --out",
            CONFLICT,
        )


def _highest(log: Path) -> int:
    """The last batch in one of Spark's logs, -1: there is none."""
    names = (one.name.removesuffix(".compact") for one in log.iterdir()) if log.is_dir() else ()
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _source(params: ArchiveParameters) -> str:
    return "records" if params.of_records else "log" if params.from_log else "queue"


def _mark(params: ArchiveParameters) -> None:
    """Says what the directory is: an archive is told from other things by it. What a killed archive of the log left behind goes."""
    mark = params.directory / MARK
    params.directory.mkdir(parents=True, exist_ok=True)
    if params.from_log and params.format == "parquet" and mark.exists():
        for one in params.directory.iterdir():
            if one.name.startswith(("date=", "_temporary")):
                # Tasks of a killed driver may live on for a moment and write there. Nobody takes what they write of records: each run has
                # a directory of its own. Spark would, of messages: then that directory must go.
                shutil.rmtree(one, ignore_errors=params.of_records and one.name == "_temporary")
    if not mark.exists() or not mark.stat().st_size:
        mark.write_text(_mark_of(params))


def _mark_of(params: ArchiveParameters) -> str:
    return json.dumps({"format": params.format, "source": _source(params)}) + "\n"


def _query_id(params: ArchiveParameters) -> str:
    """Spark's id of the query: it lives as long as the checkpoint."""
    return str(json.loads((params.checkpoint_directory / "metadata").read_text().splitlines()[0])["id"])


def _range_name(params: ArchiveParameters) -> str:
    """The same range of the same log has the same name, wherever the log is read and however its place is written. Raises: SourceError."""
    from pyspark_flintmq.log_view import open_view

    wanted = Range.of(params)
    with open_view(params.source_options()) as view:
        text = json.dumps([view.uuid, params.vhost, wanted.queues, wanted.since_us, wanted.until_us])
    return f"flintmq-log:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _summary(result: ArchivePlan, totals: Totals) -> Summary:
    params = result.params
    rows = result.added["rows"] if params.format == "delta" else totals.rows
    figures: dict[str, Any] = {
        "rows": rows,
        "batches": totals.batches,
        "seconds": round(totals.seconds, 3),
        "out": str(params.directory),
        "format": params.format,
        "source": _source(params),
    }
    rows_of = "records" if params.of_records else "messages"
    target = "a Delta table" if params.format == "delta" else "Parquet"
    lines = [f"{rows:,} {rows_of} in {totals.batches:,} batches to {params.directory} ({target} by date and queue)"]
    if totals.interrupted:
        lines.append("interrupted in the middle of a batch: the next run with this checkpoint begins with it")
        figures["interrupted"] = True
    if result.added["known"]:
        figures["known_batches"] = result.added["known"]
        if params.from_log:
            lines.append("this range of this log was added before: nothing was added. Later messages need a --since of their own")
        else:
            lines.append(f"{result.added['known']:,} batches were in the table already (an earlier run was killed behind its commit)")
    elif params.from_log and not rows:
        lines.append(f"the log has no {rows_of} in this range")
    return Summary("archive", lines, figures)


ARCHIVE = Archive()
