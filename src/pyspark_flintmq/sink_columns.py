"""From the columns of a DataFrame to the columns that the data plane takes.

In: the schema that Spark plans with, and the options. Out: a `ColumnPlan`, checked before any task runs, that turns each Arrow record batch
of a task into record batches with the sink's columns in their canonical types.
Invariants: no column is dropped silently, except those that only describe where a message was read; rows keep their order; a plan holds
plain values, since it travels to the tasks; no Python loop over rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flintmq.arrow.schema import BYTES_PER_BATCH, ROWS_PER_BATCH
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# Column -> what it may be: kinds of `_kinds`.
_STRING = ("string",)
_WHOLE = ("integer",)
COLUMNS: dict[str, tuple[str, ...]] = {
    "exchange": _STRING,
    "routing_key": _STRING,
    "body": ("binary", "string"),
    "headers": ("map",),
    "headers_raw": ("binary",),
    "content_type": _STRING,
    "content_encoding": _STRING,
    "delivery_mode": _WHOLE,
    "priority": _WHOLE,
    "correlation_id": _STRING,
    "reply_to": _STRING,
    "expiration": ("string", "integer"),
    "message_id": _STRING,
    "timestamp": ("timestamp", "integer"),
    "type": _STRING,
    "user_id": _STRING,
    "app_id": _STRING,
    "cluster_id": _STRING,
}
# The name that Spark's Kafka sink has for it.
ALIASES = {"value": "body"}
# Where and how a message was read: part of the source's schema, meaningless for a new message. Type as `simpleString` has it.
OF_THE_SOURCE = {
    "queue": "string",
    "position": "bigint",
    "lsn": "bigint",
    "enqueued_time": "timestamp",
    "redelivered": "boolean",
    "published_time": "timestamp",
    "delivery_count": "int",
}
# Persistent: what a pipeline writes is meant to stay.
DEFAULT_DELIVERY_MODE = 2

_WORDS = {
    "string": "string",
    "binary": "binary",
    "integer": "a whole number (tinyint to bigint)",
    "map": "map<string,string>",
    "timestamp": "timestamp",
}


@dataclass(frozen=True)
class _Column:
    """`target` is made from the column at `index` of the batch, or is `constant` in all rows."""

    target: str
    index: int = -1
    constant: str | int | None = None
    # in place of a null
    default: str | int | None = None


@dataclass(frozen=True)
class ColumnPlan:
    """How a record batch becomes what the data plane takes. Made by `plan_columns`."""

    columns: tuple[_Column, ...]

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`batch` with the sink's columns, in pieces of at most ROWS_PER_BATCH rows and about BYTES_PER_BATCH bytes; no empty ones.

        Raises: SourceError NULL_BODY, COLUMN_VALUE.
        """
        rows = batch.num_rows
        if not rows:
            return
        whole = self._convert(batch)
        step = min(ROWS_PER_BATCH, max(1, rows * BYTES_PER_BATCH // max(1, whole.nbytes)))
        for first in range(0, rows, step):
            yield whole.slice(first, step)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        arrays, made = [], []
        for column in self.columns:
            kind = _arrow_type(column.target)
            if column.index < 0:
                array = pa.repeat(pa.scalar(column.constant, kind), batch.num_rows)
            else:
                array = _cast(column.target, batch.column(column.index), kind)
            if column.default is not None and array.null_count:
                array = array.fill_null(column.default)
            if column.target == "body" and array.null_count:
                raise SourceError(
                    "NULL_BODY", f"{array.null_count} of {batch.num_rows} rows have a null body: filter them, or coalesce(body, binary(''))"
                )
            arrays.append(array)
            made.append(pa.field(column.target, kind, nullable=column.target != "body"))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(made))


def plan_columns(schema: StructType, options: SinkOptions) -> ColumnPlan:
    """Checks names and types of a DataFrame's columns.

    Raises: SourceError COLUMN_UNKNOWN, COLUMN_TYPE, COLUMN_TWICE, COLUMN_MISSING, OPTION_MISSING.
    """
    columns: dict[str, _Column] = {}
    names = {field.name.lower() for field in schema.fields}
    for index, field in enumerate(schema.fields):
        name = ALIASES.get(field.name.lower(), field.name.lower())
        if name not in COLUMNS:
            if not options.ignoreUnknownColumns and not _of_the_source(name, field.dataType, names):
                raise _unknown(field.name, field.dataType, names)
            continue
        if name in columns:
            raise SourceError("COLUMN_TWICE", f"there is more than one column for '{name}' (a second is '{field.name}'): keep one")
        kind = _kind(field.dataType)
        if kind not in COLUMNS[name]:
            allowed = " or ".join(_WORDS[k] for k in COLUMNS[name])
            raise SourceError(
                "COLUMN_TYPE", f"column '{field.name}' must be {allowed}, not {field.dataType.simpleString()}{_advice(name, kind)}"
            )
        columns[name] = _Column(name, index, default=_default(name))
    if "body" not in columns:
        raise SourceError("COLUMN_MISSING", "a column 'body' (or 'value') of type binary or string is needed: to_json(struct(*)) makes one")
    for name, value in options.constants.items():
        columns[name] = _Column(name, constant=value)
    if "exchange" not in columns and "routing_key" not in columns:
        raise SourceError(
            "OPTION_MISSING", "where to? Give option 'queue', or option or column 'exchange' and 'routing_key' (routingKey as an option)"
        )
    for name in ("exchange", "routing_key", "delivery_mode"):
        columns.setdefault(name, _Column(name, constant=_default(name)))
    if columns["exchange"].constant == "" and columns["routing_key"].constant == "":
        raise SourceError(
            "OPTION_MISSING", "the default exchange needs a routing key: the name of a queue (option 'queue' or 'routingKey')"
        )
    return ColumnPlan(tuple(columns[name] for name in COLUMNS if name in columns))


def sink_schema(options: SinkOptions) -> StructType:
    """The columns of a view that is made for INSERT INTO: the body first, without what the options say for all messages."""
    from pyspark.sql import types as t

    known = {"body": t.BinaryType(), "headers_raw": t.BinaryType(), "headers": t.MapType(t.StringType(), t.StringType(), True)}
    known |= {"timestamp": t.TimestampType(), "delivery_mode": t.IntegerType(), "priority": t.IntegerType()}
    names = ["body", "routing_key", *(name for name in COLUMNS if name not in ("body", "routing_key"))]
    return t.StructType(
        [t.StructField(name, known.get(name, t.StringType()), name != "body") for name in names if name not in options.constants]
    )


def _default(name: str) -> str | int | None:
    if name in ("exchange", "routing_key"):
        return ""
    return DEFAULT_DELIVERY_MODE if name == "delivery_mode" else None


def _kind(dtype: DataType) -> str:
    from pyspark.sql import types as t

    if isinstance(dtype, t.StringType | t.CharType | t.VarcharType):
        return "string"
    if isinstance(dtype, t.BinaryType):
        return "binary"
    if isinstance(dtype, t.ByteType | t.ShortType | t.IntegerType | t.LongType):
        return "integer"
    if isinstance(dtype, t.TimestampType):
        return "timestamp"
    if isinstance(dtype, t.MapType) and _kind(dtype.keyType) == _kind(dtype.valueType) == "string":
        return "map"
    return "other"


def _advice(name: str, kind: str) -> str:
    if name == "body":
        return ": to_json(...) or cast(... as string) makes a text of it"
    if name == "headers":
        return ": transform_values(headers, (k, v) -> cast(v as string)) makes texts of the values"
    return ": cast it to a timestamp" if name == "timestamp" else ""


def _of_the_source(name: str, dtype: DataType, names: set[str]) -> bool:
    if OF_THE_SOURCE.get(name) != dtype.simpleString():
        return False
    # A lone `queue` was more likely meant as a destination.
    return name != "queue" or bool(names & (set(OF_THE_SOURCE) - {"queue"})) or {"exchange", "routing_key"} <= names


def _unknown(name: str, dtype: DataType, names: set[str]) -> SourceError:
    suffix = "; drop it, or set option 'ignoreUnknownColumns' to true"
    if name.lower() == "queue" and dtype.simpleString() == "string":
        return SourceError(
            "COLUMN_UNKNOWN",
            f"column '{name}' does not say where messages go: rename it to routing_key and set option 'exchange' to ''{suffix}",
        )
    if name.lower() in OF_THE_SOURCE:
        return SourceError(
            "COLUMN_UNKNOWN",
            f"column '{name}' has type {dtype.simpleString()}, not {OF_THE_SOURCE[name.lower()]} as messages have it{suffix}",
        )
    near = difflib.get_close_matches(name.lower(), [known for known in (*COLUMNS, *ALIASES) if known not in names], n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return SourceError("COLUMN_UNKNOWN", f"column '{name}' is not part of a message{hint} Known: {', '.join(COLUMNS)}{suffix}")


def _arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if name in ("body", "headers_raw"):
        return pa.binary()
    if name in ("delivery_mode", "priority"):
        return pa.int32()
    if name == "timestamp":
        return pa.timestamp("us", tz="UTC")
    return pa.map_(pa.string(), pa.string()) if name == "headers" else pa.string()


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` as `kind`. Numbers for `timestamp` are seconds since 1970."""
    import pyarrow as pa

    if array.type == kind:
        return array
    try:
        if name == "timestamp" and pa.types.is_integer(array.type):
            array = array.cast(pa.int64()).cast(pa.timestamp("s", tz="UTC"))
        return array.cast(kind)
    except pa.ArrowInvalid as e:
        raise SourceError("COLUMN_VALUE", f"column '{name}': {e}") from None
