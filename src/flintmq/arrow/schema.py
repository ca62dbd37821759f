"""The columns of every table that the data plane gives or takes: one source for Arrow and for Spark (docs/DATAPLANE.md, "Tables").

in: names of tables. out: (name, type, nullable) lists and Arrow schemas. Types by name: string, long, integer, boolean, binary,
timestamp (microseconds, UTC), map (string to string or null), runs (list of queue_id, first, count).
Invariants: importing this module imports neither pyarrow nor Spark; new columns are only ever added at the end of a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

Column = tuple[str, str, bool]  # name, type, nullable

# Messages of a queue: what Flight's do_get gives and `format("flintmq")` shows.
MESSAGES: tuple[Column, ...] = (
    ("queue", "string", False),
    ("position", "long", True),
    ("lsn", "long", True),
    ("enqueued_time", "timestamp", True),
    ("exchange", "string", False),
    ("routing_key", "string", False),
    ("redelivered", "boolean", False),
    ("body", "binary", False),
    ("headers", "map", True),
    ("headers_raw", "binary", True),
    ("content_type", "string", True),
    ("content_encoding", "string", True),
    ("delivery_mode", "integer", True),
    ("priority", "integer", True),
    ("correlation_id", "string", True),
    ("reply_to", "string", True),
    ("expiration", "string", True),
    ("message_id", "string", True),
    ("timestamp", "timestamp", True),
    ("type", "string", True),
    ("user_id", "string", True),
    ("app_id", "string", True),
    ("cluster_id", "string", True),
    ("published_time", "timestamp", True),
    ("delivery_count", "integer", True),
)

# Records of a log, one row each; Message-Copy and Acquire-Set have one row per place or run.
RECORDS: tuple[Column, ...] = (
    ("lsn", "long", False),
    ("log", "string", False),
    ("container", "long", False),
    ("kind", "string", False),
    ("time", "timestamp", False),
    ("msg_lsn", "long", True),
    ("tx_lsn", "long", True),
    ("queue_id", "long", True),
    ("position", "long", True),
    ("waiting", "long", True),
    ("reason", "string", True),
    ("consumer_id", "long", True),
    ("delivered_time", "timestamp", True),
    ("delivery_count", "integer", True),
    ("expires_time", "timestamp", True),
    ("body_length", "long", True),
    ("exchange", "string", True),
    ("routing_key", "string", True),
    ("message_id", "string", True),
    ("published_time", "timestamp", True),
    ("body", "binary", True),
    ("length", "integer", False),
    ("count", "long", True),
)

# Messages of the log source: those of MESSAGES, without what only a queue knows.
_LOG_NULLABLE = ("queue", "redelivered")
LOG_MESSAGES: tuple[Column, ...] = (
    *((name, kind, nullable or name in _LOG_NULLABLE) for name, kind, nullable in MESSAGES),
    ("copy", "boolean", False),
)

# Transactions: rows are the positions that the Commit gave, sets what it acquired.
TRANSACTIONS: tuple[Column, ...] = (
    ("tx_lsn", "long", False),
    ("xid", "binary", True),
    ("state", "string", False),
    ("started", "timestamp", True),
    ("decided", "timestamp", True),
    ("rows", "runs", True),
    ("sets", "runs", True),
    ("heuristic", "string", True),
    ("ended", "boolean", False),
)

TABLES: dict[str, tuple[Column, ...]] = {"messages": MESSAGES, "records": RECORDS, "log_messages": LOG_MESSAGES, "tx": TRANSACTIONS}

# The keys of a message, besides `headers.` and the name of a header: docs/DATAPLANE.md, "Control calls".
KEY_COLUMNS = (
    "routing_key",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

# A record batch of messages holds at most this many rows, or this many bytes of bodies: what one Spark task takes in one piece.
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 8 * 1024 * 1024
# Rows in a record batch of the log source.
LOG_ROWS_PER_BATCH = 32_768


def key_column(text: str) -> tuple[str, str]:
    """The column of a key, and the header's name when the column is `headers`. Raises: ValueError for another text."""
    if text in KEY_COLUMNS:
        return text, ""
    column, dot, name = text.partition(".")
    if column == "headers" and dot and 0 < len(name.encode("utf-8", "replace")) <= 255:
        return column, name
    raise ValueError(f"a key must be {', '.join(KEY_COLUMNS)} or headers.NAME, not '{text[:80]}'")


def arrow_types() -> dict[str, pa.DataType]:
    """Arrow type of each type name."""
    import pyarrow as pa

    run = pa.struct([pa.field("queue_id", pa.int64()), pa.field("first", pa.int64()), pa.field("count", pa.int64())])
    return {
        "string": pa.string(),
        "long": pa.int64(),
        "integer": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True)),
        "runs": pa.list_(run),
    }


def select(table: str, columns: Iterable[str] | None = None) -> tuple[Column, ...]:
    """The table's columns, or those named, in the table's order. Raises: ValueError for a name that the table does not have."""
    known = TABLES[table]
    if columns is None:
        return known
    wanted = set(columns)
    unknown = wanted - {name for name, _, _ in known}
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    return tuple(column for column in known if column[0] in wanted)


def arrow_schema(table: str, columns: Iterable[str] | None = None) -> pa.Schema:
    """Arrow schema of a table of TABLES, all of it or the columns named (`records`, `log_messages`: the log source's streams)."""
    import pyarrow as pa

    types = arrow_types()
    return pa.schema([pa.field(name, types[kind], nullable=nullable) for name, kind, nullable in select(table, columns)])


def messages_schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """What do_get gives."""
    return arrow_schema("messages", columns)


def tx_schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """Log source, stream `tx`."""
    return arrow_schema("tx", columns)


def body_limit(body: str | None) -> int:
    """Bytes of a body that are kept: -1 all (None or "full"), 0 none ("none"), N ("prefix:N"). Raises: ValueError."""
    if body is None or body == "full":
        return -1
    if body == "none":
        return 0
    prefix, _, digits = body.partition(":")
    if prefix == "prefix" and digits.isascii() and digits.isdigit() and len(digits) <= 9:
        return int(digits)
    raise ValueError(f"body must be full, none or prefix:N, not {body!r}")
