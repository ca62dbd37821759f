"""replay: messages of an archive, or of a range of the log, back into a queue or exchange.

in: an archive (Parquet or Delta, as `archive` made it) or where the log is; filters.
out: messages, all or none, once per name (`--txn-id`).
R1  Body, properties and headers are those that were archived, byte for byte; a message without delivery mode becomes persistent.
R2  All are published by one decision of the broker; the same name again publishes nothing.
R3  Messages of one queue keep their order.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq.arrow.schema import MESSAGES, arrow_types
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs import delta
from flintmq.pipeline.jobs.failures import one_clear_line
from flintmq.pipeline.jobs.job import LogParameters, Summary, parameter
from flintmq.pipeline.jobs.log_messages import Range, log_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

USAGE, DATA, UNAVAILABLE = 64, 65, 69
HEADER = "x-flintmq-replayed"
# Messages of one Spark partition: one stage, which is one transaction of at most a million messages in the broker.
ROWS_PER_STAGE = 200_000
PARTITIONS_MAX = 4_000


@dataclass(frozen=True)
class ReplayParameters(LogParameters):
    """What to replay, and where to. Host, port, user and so on are those of the broker that gets the messages."""

    archive: str = parameter("", "directory of an archive; without it the log is read: of the broker, or --store-dir", metavar="DIR")
    to_queue: str = parameter("", "queue that gets the messages", metavar="NAME")
    to_exchange: str = parameter("", "exchange that gets them, each with its own routing key", metavar="NAME")
    to_routing_key: str = parameter("", "with --to-exchange: this routing key for all", metavar="KEY")
    to_original: bool = parameter(False, "each message to the exchange and routing key that it had")
    routing_key: str = parameter("", "only messages with this routing key: * any characters, ? one", metavar="PATTERN")
    limit: int = parameter(0, "at most so many messages, by queue and position; 0: all")
    txn_id: str = parameter("", "name of the replay: run again with the same name, it publishes nothing (made of all other options)")
    mark: bool = parameter(False, f"add the header {HEADER} with the name of the replay")
    drop_user_id: bool = parameter(False, "leave the property user_id out: a broker takes only that of the user who publishes")
    unroutable: str = parameter("fail", "messages that no queue takes: fail, drop or exchange:NAME", metavar="WHAT")

    def checked(self) -> None:
        """Raises: OperatorError (64) for what does not go together."""
        if sum((bool(self.to_queue), bool(self.to_exchange), self.to_original)) != 1:
            raise OperatorError("give one of --to-queue, --to-exchange and --to-original: where the messages go", USAGE)
        if self.to_routing_key and not self.to_exchange:
            raise OperatorError("--to-routing-key goes with --to-exchange", USAGE)
        if self.archive and (self.store_dir or self.archive_dir):
            raise OperatorError("give --archive, or --store-dir and --archive-dir: one of them is read", USAGE)
        if self.limit < 0:
            raise OperatorError("--limit is at least 0", USAGE)
        if len(self.name.encode()) > 200:
            raise OperatorError("--txn-id is longer than 200 bytes", USAGE)
        Range.of(self)

    @property
    def name(self) -> str:
        """Of the replay: what the broker remembers it by."""
        if self.txn_id:
            return self.txn_id
        left_out = ("password", "user", "timeout", "tls_ca", "txn_id", "mode", "unroutable")
        values = {name: value for name, value in asdict(self).items() if name not in left_out}
        for option in ("archive", "store_dir", "archive_dir"):  # the same text may be another place elsewhere
            if values[option]:
                values[option] = str(Path(values[option]).expanduser().absolute())
        return f"replay:{hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=12).hexdigest()}"

    @property
    def archive_path(self) -> Path:
        return Path(self.archive).expanduser().absolute()

    def connection_options(self) -> dict[str, str]:
        """Of the broker that gets the messages: also when the log is that of a store directory."""
        place = {"url": self.url} if self.url else {"host": self.host, "flightPort": str(self.flight_port)}
        tls = {"tlsCa": self.tls_ca} if self.tls_ca else {}
        return {**place, **tls, "user": self.user, "password": self.password, "vhost": self.vhost, "timeout": str(self.timeout)}

    def sink_options(self) -> dict[str, str]:
        """For `write.format("flintmq")`."""
        options = {**self.connection_options(), "txnId": self.name, "unroutable": self.unroutable}
        if self.to_queue:
            options["queue"] = self.to_queue
        if self.to_exchange:
            options["exchange"] = self.to_exchange
        if self.to_routing_key:
            options["routingKey"] = self.to_routing_key
        return options


@dataclass
class ReplayPlan:
    """What `build` made: the messages in their order, cut into `parts` Spark partitions."""

    params: ReplayParameters
    frame: DataFrame
    parts: int
    stack: ExitStack


class Replay:
    """See module."""

    name = "replay"
    about = "an archive, or a range of the log, back into a queue or exchange, exactly once"
    parameters = ReplayParameters
    has_report = False

    def done_already(self, params: ReplayParameters) -> Summary | None:
        """The summary of a replay that was published before, for a caller that has not started Spark yet; None: it is to be run."""
        with one_clear_line("replay"):
            return _summary(params, True, 0, 0) if done_before(params) else None

    def build(self, spark: SparkSession, params: ReplayParameters) -> ReplayPlan:
        params.checked()
        with ExitStack() as stack, one_clear_line("replay"):
            if params.archive:
                frame, rows = archived(spark, params.archive_path)
                frame = filtered(frame, params)
            else:
                # by time and queue already
                frame, rows = routed(log_messages(spark, params, stack), params.routing_key), 32 * ROWS_PER_STAGE
            if params.limit:
                rows = min(rows, params.limit)
            if params.mark:
                frame = marked(frame, params.name)
            if params.drop_user_id:
                frame = frame.drop("user_id")
            parts = min(PARTITIONS_MAX, max(1, -(-rows // ROWS_PER_STAGE)))
            return ReplayPlan(params, ordered(frame, parts, params.limit), parts, stack.pop_all())

    def summarise(self, result: ReplayPlan) -> Summary:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        params = result.params
        with one_clear_line("replay"):
            before = done_before(params)
            rows = size = 0
            if not before:
                seen = Observation("replayed")
                figures = (f.count(f.lit(1)).alias("rows"), f.sum(f.length("body")).alias("bytes"))
                frame = result.frame.observe(seen, *figures)
                frame.write.format("flintmq").mode("append").options(**params.sink_options()).save()
                rows, size = int(seen.get["rows"] or 0), int(seen.get["bytes"] or 0)
        return _summary(params, before, rows, size)

    def report(self, result: ReplayPlan, summary: Summary) -> str | None:
        return None

    def close(self, result: ReplayPlan) -> None:
        result.stack.close()


def done_before(params: ReplayParameters) -> bool:
    """Whether a replay of this name was published. Raises: SourceError."""
    from pyspark_flintmq.connection import Connection

    connection, _ = Connection.take(params.connection_options())
    with connection.errors():
        plane = connection.open()
        try:
            return plane.scope_status(f"txn:{params.name}").get("committed") is not None
        except Exception as error:
            if getattr(error, "code", "") == "NOT_FOUND":
                return False
            raise
        finally:
            plane.close()


def archived(spark: SparkSession, path: Path) -> tuple[DataFrame, int]:
    """(all messages of an archive, about how many). Raises: OperatorError (65, 69) when it is none."""
    from pyspark.sql import types as t

    from pyspark_flintmq.schema import spark_schema

    schema = t.StructType([t.StructField("date", t.DateType()), *(t.StructField(f.name, f.dataType) for f in spark_schema().fields)])
    if not path.is_dir():
        raise OperatorError(f"--archive {path}: there is no such directory", UNAVAILABLE)
    if delta.is_table(path):
        delta.check_installed()
        names, rows = delta.files(path)
        reader = spark.read.schema(schema).option("basePath", str(path))
        return (reader.parquet(*names) if names else spark.createDataFrame([], schema)), rows
    from pyarrow import ArrowException, parquet

    rows, wrong = 0, ""
    data = sorted(path.glob("date=*/queue=*/*.parquet"))
    if not data and any(path.glob("date=*/queue_id=*")):
        raise OperatorError(f"FLINTMQ_SCHEMA_MISMATCH: --archive {path} holds records of the log, not messages", DATA)
    try:
        for number, one in enumerate(data):
            footer = parquet.ParquetFile(one)
            rows += footer.metadata.num_rows
            if number == 0:
                wrong = _mismatch(footer.schema_arrow)
    except (ArrowException, OSError) as error:
        raise OperatorError(f"--archive {path}: {one}: {error}", DATA) from error
    if not data and not (path / "_spark_metadata").is_dir() and not (path / "_SUCCESS").exists():
        raise OperatorError(f"--archive {path} is no archive: it has no date=.../queue=.../ with Parquet files", UNAVAILABLE)
    if wrong:
        raise OperatorError(f"FLINTMQ_SCHEMA_MISMATCH: --archive {path}: {wrong}", DATA)
    return spark.read.schema(schema).parquet(str(path)), rows


def _mismatch(schema: Any) -> str:
    """Why an Arrow schema is not that of messages; "" when nothing does. Columns other than the body may be missing: null then."""
    if "body" not in schema.names:
        return f"it has no column 'body', but {', '.join(schema.names)}"
    kinds = arrow_types()
    for name, kind, _ in MESSAGES:
        if name in schema.names and kind in ("string", "binary") and schema.field(name).type != kinds[kind]:
            return f"column '{name}' is {schema.field(name).type}, not {kind}"
    return ""


def filtered(frame: DataFrame, params: ReplayParameters) -> DataFrame:
    """By time, queue and routing key."""
    from pyspark.sql import functions as f

    wanted = Range.of(params)
    when = f.coalesce("enqueued_time", "published_time")
    for edge, low in ((wanted.since_us, True), (wanted.until_us, False)):
        if edge is None:
            continue
        moment = f.timestamp_micros(f.lit(edge))
        day = datetime.fromtimestamp(edge / 1_000_000, UTC).date()
        # Whole directories are left out by their day, which is that of `when` wherever there is one.
        frame = frame.where((f.col("date") >= f.lit(day)) if low else (f.col("date") <= f.lit(day)))
        frame = frame.where(when >= moment if low else when < moment)
    if wanted.queues:
        frame = frame.where(f.col("queue").isin(*wanted.queues))
    return routed(frame, params.routing_key)


def routed(frame: DataFrame, pattern: str) -> DataFrame:
    """Only what has a routing key that matches."""
    from pyspark.sql import functions as f

    if not pattern:
        return frame
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return frame.where(f.col("routing_key").like(escaped.replace("*", "%").replace("?", "_")))


def marked(frame: DataFrame, name: str) -> DataFrame:
    """Adds the header to the field table: as bytes, so that all others stay as they are. One that is there already stays too."""
    from pyspark.sql import functions as f

    key, value = HEADER.encode(), name.encode()
    entry = bytes([len(key)]) + key + b"S" + len(value).to_bytes(4, "big") + value
    table: Column = f.coalesce(f.col("headers_raw"), f.lit(b"\0\0\0\0"))
    length = f.unhex(f.lpad(f.hex(f.length(table) - 4 + len(entry)), 8, "0"))
    longer = f.concat(length, f.substring(table, 5, 2**31 - 1), f.lit(entry))
    has = f.coalesce(f.map_contains_key("headers", HEADER), f.lit(False))
    return frame.withColumn("headers_raw", f.when(has, f.col("headers_raw")).otherwise(longer))


def ordered(frame: DataFrame, parts: int, limit: int) -> DataFrame:
    """In the order in which messages stood in their queues; partitions follow each other."""
    keys = ["queue", "position", "lsn", "enqueued_time"]
    if limit:
        frame = frame.orderBy(*keys).limit(limit)
    # The date comes first where there is one: a queue that was deleted and made again counts its positions from one again.
    keys = [name for name in ("queue", "date", "position", "lsn", "enqueued_time") if name in frame.columns]
    placed = frame.repartitionByRange(parts, *keys).sortWithinPartitions(*keys)
    return placed.drop("date")


def _summary(params: ReplayParameters, before: bool, rows: int, size: int) -> Summary:
    where = f"queue {params.to_queue}" if params.to_queue else f"exchange {params.to_exchange}" if params.to_exchange else "where they were"
    figures: dict[str, Any] = {"rows": rows, "bytes": size, "txn_id": params.name, "done_before": before, "to": where}
    if before:
        lines = [f"nothing was published: {params.name} was done before. Another --txn-id publishes these messages again"]
    else:
        lines = [f"{rows:,} messages ({size:,} bytes) to {where}, as {params.name}; run again, it publishes nothing"]
    return Summary("replay", lines, figures)


REPLAY = Replay()
