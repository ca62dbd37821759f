"""The columns of a message, for Spark and for Arrow, and the way from a record batch to exactly what was declared.

In: options `schemaVersion`, `columns`, `body`, or a schema that the user gave. Out: a `Table`, and record batches of its schema (Spark
compares names, types and order).
Invariants: new columns are only ever added at the end, behind a new schema version; a `Table` is small and can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flintmq.arrow.schema import MESSAGES, arrow_types
from pyspark_flintmq.connection import true_or_false, unknown_option, whole_number
from pyspark_flintmq.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# name, type, nullable. Over AMQP those that only the store knows are null: position, lsn, the times, delivery_count.
# Spark is told that all but the body can be null: a view of a queue then takes INSERT INTO of the columns that a new message has.
COLUMNS = tuple((name, kind, name != "body") for name, kind, _ in MESSAGES)
_ALWAYS_THERE = frozenset(name for name, _, nullable in MESSAGES if not nullable)
# Schema version -> number of columns that it has.
VERSIONS = {1: 23, 2: 25}
NEWEST = max(VERSIONS)
# The data plane takes prefixes of up to nine digits.
PREFIX_MAX = 999_999_999


@dataclass(frozen=True)
class Table:
    """What one DataFrame of the source has: its columns in order, and how much of the body."""

    fields: tuple[tuple[str, str, bool], ...] = COLUMNS
    # bytes of the body that are kept; -1: all; None: no body, the column is null
    body: int | None = -1

    @classmethod
    def take(cls, raw: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
        """Splits `raw` into the table that its options ask for and the options left over, their keys as they were written.

        Raises: SourceError OPTION_VALUE or OPTION_UNKNOWN.
        """
        values: dict[str, str] = {}
        rest: dict[str, str] = {}
        known = {name.lower(): name for name in TABLE_OPTIONS}
        for key, text in raw.items():
            name = known.get(key.lower())
            if name is None:
                rest[key] = text
            else:
                values[name] = text
        version = whole_number("schemaVersion", values.get("schemaVersion", str(NEWEST)))
        if version not in VERSIONS:
            raise SourceError("OPTION_VALUE", f"option 'schemaVersion' must be {' or '.join(map(str, VERSIONS))}, not {version}")
        table = cls(COLUMNS[: VERSIONS[version]])
        if not true_or_false("includeHeaders", values.get("includeHeaders", "true")):
            table = replace(table, fields=tuple(field for field in table.fields if field[0] not in _HEADERS))
        if "columns" in values:
            table = table._only(values["columns"])
        if "body" in values:
            table = table._with_body(values["body"])
        return table, rest

    def _only(self, text: str) -> Table:
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        names = [name for name, _, _ in self.fields]
        for name in wanted:
            if name not in names:
                error = unknown_option(name, names)
                raise SourceError("OPTION_VALUE", "option 'columns': " + error.text.replace("unknown option", "there is no column", 1))
        if not wanted:
            raise SourceError("OPTION_VALUE", "option 'columns' names no column; leave it out to get all of them")
        return replace(self, fields=tuple(field for field in self.fields if field[0] in wanted))

    def _with_body(self, text: str) -> Table:
        if text.lower() == "full":
            return self
        if text.lower() == "none":
            fields = tuple((name, kind, nullable or name == "body") for name, kind, nullable in self.fields)
            return replace(self, fields=fields, body=None)
        start, _, digits = text.partition(":")
        if start.lower() == "prefix" and digits.isascii() and digits.isdigit() and 0 < int(digits) <= PREFIX_MAX:
            return replace(self, body=int(digits))
        raise SourceError("OPTION_VALUE", f"option 'body' must be 'full', 'none' or 'prefix:N' with 1 <= N <= {PREFIX_MAX}, not '{text}'")

    def matched(self, schema: StructType) -> Table:
        """The table for a schema that Spark was given: any of our columns in any order, with our types.

        Raises: SourceError SCHEMA_MISMATCH.
        """
        ours = {name: (kind, nullable) for name, kind, nullable in self.fields}
        types = _spark_types()
        fields = []
        for field in schema.fields:
            if field.name not in ours:
                error = unknown_option(field.name, ours)
                text = error.text.replace("unknown option", "the schema names a column that the source does not have:", 1)
                raise SourceError("SCHEMA_MISMATCH", text)
            kind, nullable = ours[field.name]
            if field.dataType != types[kind]:
                raise SourceError(
                    "SCHEMA_MISMATCH",
                    f"column '{field.name}' is {types[kind].simpleString()}, the schema says {field.dataType.simpleString()}; "
                    "leave .schema() out and convert with select()",
                )
            if nullable and not field.nullable and field.name not in _ALWAYS_THERE - {"body"}:
                raise SourceError("SCHEMA_MISMATCH", f"column '{field.name}' can be null, the schema says it can not")
            fields.append((field.name, kind, field.nullable))
        return replace(self, fields=tuple(fields))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.fields)

    @property
    def body_option(self) -> str | None:
        """The body as the data plane's tickets name it: None for all of it."""
        if self.body is None or "body" not in self.names:
            return "none"
        return None if self.body < 0 else f"prefix:{self.body}"

    def spark(self) -> StructType:
        """The schema that Spark is told."""
        from pyspark.sql import types as t

        simple = _spark_types()
        return t.StructType([t.StructField(name, simple[kind], nullable) for name, kind, nullable in self.fields])

    def arrow(self) -> pa.Schema:
        """The same columns as Arrow types, as Spark's own conversion writes them."""
        import pyarrow as pa

        types = arrow_types()
        return pa.schema([pa.field(name, types[kind], nullable=nullable) for name, kind, nullable in self.fields])

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with exactly the columns of this table; one that it does not have is null. Copies only what must change.

        Raises: SourceError SCHEMA_MISMATCH when a column that can not be null is missing or has another type.
        """
        import pyarrow as pa

        schema = self.arrow()
        if batch.schema.equals(schema) and self.body == -1:
            return batch
        columns = []
        for field in schema:
            index = batch.schema.get_field_index(field.name)
            if field.name == "body" and self.body is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            elif index < 0 and field.name in _ALWAYS_THERE:
                raise SourceError("SCHEMA_MISMATCH", f"the broker sent no column '{field.name}': it is of another version than this source")
            elif index < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(self._cell(batch.column(index), field))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _cell(self, column: pa.Array, field: pa.Field) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException:
                raise SourceError(
                    "SCHEMA_MISMATCH", f"the broker sent column '{field.name}' as {column.type}, this source expects {field.type}"
                ) from None
        if field.name == "body" and self.body is not None and self.body > 0:
            column = pc.binary_slice(column, 0, self.body)
        return column


TABLE_OPTIONS = ("schemaVersion", "columns", "body", "includeHeaders")
# What `includeHeaders=false` leaves out, as Spark's Kafka connector has it.
_HEADERS = ("headers", "headers_raw")


def _spark_types() -> dict[str, Any]:
    from pyspark.sql import types as t

    return {
        "string": t.StringType(),
        "long": t.LongType(),
        "integer": t.IntegerType(),
        "boolean": t.BooleanType(),
        "binary": t.BinaryType(),
        "timestamp": t.TimestampType(),
        "map": t.MapType(t.StringType(), t.StringType(), True),
    }


def spark_schema() -> StructType:
    """All columns, for Spark."""
    return Table().spark()


def arrow_schema() -> pa.Schema:
    """All columns, for Arrow."""
    return Table().arrow()
