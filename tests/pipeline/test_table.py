"""A batch of the data plane becomes exactly the declared columns, and a schema that can not be had is refused in one line."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.schema import COLUMNS, Table, arrow_schema


def table(**raw: str) -> Table:
    found, rest = Table.take({**raw, "queue": "q"})
    assert rest == {"queue": "q"}
    return found


def batch(rows: int = 3) -> pa.RecordBatch:
    values: dict[str, Any] = {
        "string": ["s"] * rows,
        "long": list(range(rows)),
        "integer": list(range(rows)),
        "boolean": [True] * rows,
        "binary": [b"0123456789"] * rows,
        "timestamp": [5] * rows,
        "map": [[("k", None)]] * rows,
    }
    schema = arrow_schema()
    arrays = [pa.array(values[kind], schema.field(name).type) for name, kind, _ in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"includeHeaders": "false"},
        {"schemaVersion": "1"},
        {"columns": "body,queue"},
        {"body": "none"},
        {"body": "prefix:4"},
        {"columns": "lsn", "body": "none"},
    ],
)
def test_spark_and_arrow_agree_and_a_batch_fits(raw: dict[str, str]) -> None:
    found = table(**raw)
    assert found.arrow().equals(to_arrow_schema(found.spark(), timezone="UTC"))
    fitted = found.fit(batch())
    fitted.validate(full=True)
    assert fitted.schema.equals(found.arrow())
    assert [field.name for field in found.spark()] == list(found.names)


def test_what_is_kept() -> None:
    assert table().fit(batch()).column("body").to_pylist() == [b"0123456789"] * 3
    assert table(body="prefix:4").fit(batch()).column("body").to_pylist() == [b"0123"] * 3
    assert table(body="none").fit(batch()).column("body").to_pylist() == [None] * 3
    assert table(body="none").spark()["body"].nullable
    assert table(columns="body,queue").names == ("queue", "body"), "the declared order"
    assert len(table(schemaVersion="1").names) == 23
    assert table(includeHeaders="true") == table()
    assert table(includeHeaders="false").names == tuple(name for name in table().names if name not in ("headers", "headers_raw"))
    assert table(includeHeaders="false", columns="queue,body").names == ("queue", "body")
    for raw in ({"includeHeaders": "no"}, {"includeHeaders": "false", "columns": "headers"}):
        with pytest.raises(SourceError, match="OPTION_VALUE"):
            table(**raw)
    assert (table().body_option, table(body="none").body_option) == (None, "none")
    assert (table(body="prefix:4").body_option, table(columns="queue").body_option) == ("prefix:4", "none")


def test_missing_columns_are_null_unless_they_can_not_be() -> None:
    old = batch().select([name for name, _, _ in COLUMNS[:23]])
    fitted = table().fit(old)
    assert fitted.column("published_time").null_count == 3
    with pytest.raises(SourceError, match=r"SCHEMA_MISMATCH.*no column 'body'"):
        table().fit(batch().select(["queue", "exchange", "routing_key", "redelivered"]))
    wrong = pa.RecordBatch.from_pydict({"lsn": ["not a number"]})
    with pytest.raises(SourceError, match=r"SCHEMA_MISMATCH.*column 'lsn' as string"):
        table(columns="lsn").fit(wrong)


def test_a_schema_of_the_user_may_be_any_of_our_columns() -> None:
    schema = t.StructType([t.StructField("body", t.BinaryType(), False), t.StructField("queue", t.StringType(), True)])
    found = table().matched(schema)
    assert found.names == ("body", "queue")
    assert found.fit(batch()).schema.equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (t.StructField("bodi", t.BinaryType()), "did you mean 'body'"),
        (t.StructField("body", t.StringType()), "column 'body' is binary, the schema says string"),
        (t.StructField("message_id", t.StringType(), False), "can be null"),
    ],
)
def test_a_schema_that_can_not_be_had_is_refused(field: t.StructField, text: str) -> None:
    with pytest.raises(SourceError, match="SCHEMA_MISMATCH") as error:
        table().matched(t.StructType([field]))
    assert text in error.value.text
    assert "\n" not in error.value.text
