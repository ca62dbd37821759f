"""Options of the log source, and the tables it can show.

In: Spark's case-insensitive str -> str map. Out: a frozen `LogOptions` with checked values, or a SourceError that names the option.
Invariants: nothing is opened or connected here; an option we do not know is an error; columns are only ever added at a table's end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.arrow.schema import LOG_MESSAGES, RECORDS, TRANSACTIONS, Column, arrow_types, body_limit
from pyspark_flintmq.connection import CONNECTION_OPTIONS, Connection, in_range, true_or_false, unknown_option, whole_number
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import _time_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOGS = ("messages", "transactions")
MODES = ("FAILFAST", "PERMISSIVE")
# Consumers and subscriptions that dequeued: what the ids in records mean (Name records).
CONSUMERS: tuple[Column, ...] = (
    ("consumer_id", "long", False),
    ("tag", "string", False),
    ("group", "string", False),
    ("lsn", "long", False),
)
STREAMS: dict[str, tuple[Column, ...]] = {"records": RECORDS, "messages": LOG_MESSAGES, "tx": TRANSACTIONS, "consumers": CONSUMERS}
LOG_OPTIONS = (
    "stream",
    "log",
    "storeDir",
    "archiveDir",
    "columns",
    "body",
    "mode",
    "startingTimestamp",
    "endingTimestamp",
    "startingLsn",
    "endingLsn",
    "queue",
    "queues",
    "queueIds",
    "minPartitions",
    "snapshot",
    "snapshotTtl",
    "copies",
)
# LSNs, positions and ids as Spark has them: 63 bits.
LSN_MAX = 2**63 - 1
_QUEUES_MAX = 10_000


@dataclass(frozen=True)
class LogOptions:
    """Checked options of one reader. Comments: unit, range, and what happens at the edge."""

    connection: Connection
    # records | messages | tx | consumers
    stream: str = "records"
    # logs that are read: both for `records`, else the one that the stream is in
    logs: tuple[str, ...] = LOGS
    # directory of a stopped broker's store, absolute; empty: a broker is asked, unless only an archive is read
    store_dir: str = ""
    # directory of archived containers, absolute, read besides
    archive_dir: str = ""
    # no connection option was given: with archive_dir and no store_dir, the archive is all there is
    archive_only: bool = False
    # columns in the table's order
    fields: tuple[Column, ...] = RECORDS
    # full | none | prefix:N
    body: str = "none"
    strict: bool = True
    # microseconds since 1970, first included, end not; None: no bound
    since_us: int | None = None
    until_us: int | None = None
    # LSNs of the one log that is read; first included, end not
    first_lsn: int = 0
    end_lsn: int = LSN_MAX
    # names in the vhost of the connection, or ids; empty: all queues
    queues: tuple[str, ...] = ()
    queue_ids: tuple[int, ...] = ()
    # Spark partitions at least, 1..10,000; never more than containers
    partitions: int = 2
    # what LogView.text() gave: a view that somebody else keeps; empty: an own one
    view: str = ""
    # seconds a snapshot is kept after the last task asked for it, 10..3,600
    ttl_s: int = 120
    # stream=messages: a row for each copy that the log has of a message; else one for each message
    copies: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> LogOptions:
        """Raises: SourceError OPTION_UNKNOWN, OPTION_MISSING or OPTION_VALUE."""
        connection, rest = Connection.take(raw)
        names = {name.lower(): name for name in LOG_OPTIONS}
        values: dict[str, str] = {}
        for key, text in rest.items():
            if key.lower() not in names:
                raise unknown_option(key, (*LOG_OPTIONS, *CONNECTION_OPTIONS))
            values[names[key.lower()]] = text
        stream = values.get("stream", "records").lower()
        if stream not in STREAMS:
            raise SourceError("OPTION_VALUE", f"option 'stream' must be one of {', '.join(STREAMS)}, not '{stream}'")
        asked = {key.lower() for key in raw}
        given = {name for name in CONNECTION_OPTIONS if name.lower() in asked} - {"vhost", "timeout"}
        if values.get("storeDir") and given:
            raise SourceError("OPTION_VALUE", f"give either option 'storeDir' or a connection ({', '.join(sorted(given))}), not both")
        mode = values.get("mode", MODES[0]).upper()
        if mode not in MODES:
            raise SourceError("OPTION_VALUE", f"option 'mode' must be {' or '.join(MODES)}, not '{mode}'")
        options = cls(
            connection=connection,
            stream=stream,
            logs=_logs(stream, values),
            store_dir=_directory(values.get("storeDir", "")),
            archive_dir=_directory(values.get("archiveDir", "")),
            archive_only=bool(values.get("archiveDir")) and not values.get("storeDir") and not given,
            fields=_columns(stream, values.get("columns")),
            body=_body(stream, values),
            strict=mode == MODES[0],
            since_us=_time_us("startingTimestamp", values["startingTimestamp"]) if values.get("startingTimestamp") else None,
            until_us=_time_us("endingTimestamp", values["endingTimestamp"]) if values.get("endingTimestamp") else None,
            first_lsn=_lsn(values, "startingLsn", 0),
            end_lsn=_lsn(values, "endingLsn", LSN_MAX),
            queues=_queues(values),
            queue_ids=tuple(whole_number("queueIds", text) for text in _split(values.get("queueIds", ""))),
            partitions=whole_number("minPartitions", values.get("minPartitions", "2")),
            view=values.get("snapshot", ""),
            ttl_s=whole_number("snapshotTtl", values.get("snapshotTtl", "120")),
            copies=true_or_false("copies", values.get("copies", "false")),
        )
        in_range("minPartitions", options.partitions, 1, 10_000)
        in_range("snapshotTtl", options.ttl_s, 10, 3_600)
        if len(options.logs) > 1 and ("startingLsn" in values or "endingLsn" in values):
            raise SourceError("OPTION_MISSING", "option 'log' is needed with 'startingLsn' or 'endingLsn': each log has LSNs of its own")
        if "copies" in values and stream != "messages":
            raise SourceError("OPTION_VALUE", f"option 'copies' goes with stream=messages: stream={stream} has every record")
        if options.filters_queues and stream in ("messages", "consumers"):
            raise SourceError(
                "OPTION_VALUE",
                f"option 'queue' does not go with stream={stream}: messages enter queues by records of their own. "
                "Join with stream=records, kind 'Message-Enqueue', msg_lsn = lsn",
            )
        return options

    @property
    def filters_queues(self) -> bool:
        """Whether only some queues are wanted."""
        return bool(self.queues or self.queue_ids)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.fields)

    @property
    def mode(self) -> str:
        return MODES[0 if self.strict else 1]

    def spark(self) -> StructType:
        """The schema that Spark is told."""
        from pyspark.sql import types as t

        simple = {
            "string": t.StringType(),
            "long": t.LongType(),
            "integer": t.IntegerType(),
            "boolean": t.BooleanType(),
            "binary": t.BinaryType(),
            "timestamp": t.TimestampType(),
            "map": t.MapType(t.StringType(), t.StringType(), True),
            "runs": t.ArrayType(
                t.StructType(
                    [t.StructField("queue_id", t.LongType()), t.StructField("first", t.LongType()), t.StructField("count", t.LongType())]
                )
            ),
        }
        return t.StructType([t.StructField(name, simple[kind], nullable) for name, kind, nullable in self.fields])

    def arrow(self) -> pa.Schema:
        """The same columns as Arrow types."""
        import pyarrow as pa

        types = arrow_types()
        return pa.schema([pa.field(name, types[kind], nullable=nullable) for name, kind, nullable in self.fields])


def _directory(text: str) -> str:
    """Absolute: options are parsed on the driver, and executors run in directories of their own."""
    return os.path.abspath(os.path.expanduser(text)) if text else ""


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _logs(stream: str, values: Mapping[str, str]) -> tuple[str, ...]:
    own = {"messages": LOGS[:1], "consumers": LOGS[:1], "tx": LOGS[1:]}.get(stream, LOGS)
    text = values.get("log", "").lower()
    if not text or text == "both":
        return own
    if text not in LOGS:
        raise SourceError("OPTION_VALUE", f"option 'log' must be one of {', '.join(LOGS)}, both; not '{text}'")
    if text not in own:
        raise SourceError("OPTION_VALUE", f"stream={stream} is in the log '{own[0]}', not in '{text}'")
    return (text,)


def _columns(stream: str, text: str | None) -> tuple[Column, ...]:
    known = STREAMS[stream]
    if text is None:
        return known
    wanted = _split(text)
    names = [name for name, _, _ in known]
    for name in wanted:
        if name not in names:
            raise SourceError(
                "OPTION_VALUE", "option 'columns': " + unknown_option(name, names).text.replace("unknown option", "there is no column", 1)
            )
    if not wanted:
        raise SourceError("OPTION_VALUE", "option 'columns' names no column; leave it out to get all of them")
    return tuple(column for column in known if column[0] in wanted)


def _body(stream: str, values: Mapping[str, str]) -> str:
    text = values.get("body", "full" if stream == "messages" else "none").lower()
    try:
        body_limit(text)
    except ValueError:
        raise SourceError("OPTION_VALUE", f"option 'body' must be 'full', 'none' or 'prefix:N', not '{text}'") from None
    return text


def _lsn(values: Mapping[str, str], name: str, default: int) -> int:
    if name not in values:
        return default
    number = whole_number(name, values[name])
    in_range(name, number, 0, LSN_MAX)
    return number


def _queues(values: Mapping[str, str]) -> tuple[str, ...]:
    if values.get("queue") and values.get("queues"):
        raise SourceError("OPTION_VALUE", "give one of the options 'queue' and 'queues', not both")
    # A queue name may hold a comma: `queue` takes it as it is.
    names = (values["queue"],) if values.get("queue") else tuple(sorted(set(_split(values.get("queues", "")))))
    if len(names) > _QUEUES_MAX:
        raise SourceError("OPTION_VALUE", f"option 'queues' names more than {_QUEUES_MAX:,} queues")
    return names


def matching(options: LogOptions, schema: Any) -> None:
    """Raises: SourceError SCHEMA_MISMATCH unless `.schema(...)` is what the options say."""
    ours, theirs = options.spark(), schema
    if [(f.name, f.dataType) for f in ours.fields] != [(f.name, f.dataType) for f in theirs.fields]:
        raise SourceError(
            "SCHEMA_MISMATCH",
            f"the columns are {ours.simpleString()}; leave .schema() out, choose with option 'columns' and convert with select()",
        )
