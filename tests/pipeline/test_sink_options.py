"""Options and columns of a write are checked before any task runs, and say what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pyspark_flintmq.connection import Connection
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.sink_columns import COLUMNS, OF_THE_SOURCE, ColumnPlan, plan_columns
from pyspark_flintmq.sink_options import SinkOptions


def parse(streaming: bool = False, **raw: str) -> SinkOptions:
    return SinkOptions.parse(raw, streaming=streaming)


TYPES: dict[str, t.DataType] = {
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "timestamp": t.TimestampType(),
    "date": t.DateType(),
    "struct<a:int>": t.StructType([t.StructField("a", t.IntegerType())]),
    "map<string,string>": t.MapType(t.StringType(), t.StringType()),
    "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
}


def schema(ddl: str) -> t.StructType:
    """Spark's own parser of such texts needs a JVM."""
    pairs = (column.split(" ") for column in ddl.split(", "))
    return t.StructType([t.StructField(name, TYPES[kind]) for name, kind in pairs])


def plan(ddl: str, **raw: str) -> ColumnPlan:
    return plan_columns(schema(ddl), parse(**raw))


def refused(code: str, what: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SourceError) as caught:
        what(*args, **kwargs)
    assert caught.value.code == code
    assert str(caught.value).startswith(f"FLINTMQ_{code}: ")
    assert "\n" not in str(caught.value)
    return caught.value.text


class TestConnection:
    def test_splits_off_its_own_options_whatever_their_case(self) -> None:
        """Options of the connection are taken in any case, all others are left as they were written."""
        connection, rest = Connection.take({"HOST": "h", "flightport": "7", "Vhost": "v", "Exchange": "e"})
        assert (connection.location, connection.vhost, rest) == ("grpc://h:7", "v", {"Exchange": "e"})

    def test_location(self) -> None:
        """The location is that of the URL, or is made of host, port and TLS; IPv6 addresses get brackets."""
        for raw, location in (
            ({}, "grpc://127.0.0.1:15680"),
            ({"host": "::1"}, "grpc://[::1]:15680"),
            ({"url": "grpc://h"}, "grpc://h:15680"),
            ({"url": "grpc+tls://h:1"}, "grpc+tls://h:1"),
            ({"url": "grpc://a, b:2,grpc://a"}, "grpc://a:15680,grpc://b:2"),
            ({"url": "grpc+tls://a:1,b"}, "grpc+tls://a:1,grpc+tls://b:15680"),
        ):
            assert Connection.take(raw)[0].location == location

    @pytest.mark.parametrize(
        "raw",
        [
            {"url": "grpc://h", "host": "h"},
            {"url": "http://h"},
            {"url": "grpc://h,"},
            {"url": "grpc+tls://h,grpc://h"},
            {"url": ",".join(["grpc://h"] * 17)},
            {"url": "grpc://user:secret@h"},
            {"url": "grpc://h/vhost"},
            {"url": "grpc://h:99999"},
            {"host": ""},
            {"host": "a/b"},
            {"flightPort": "0"},
            {"flightPort": "x"},
            {"timeout": "0"},
            {"cluster": "perhaps"},
            {"tlsCa": "/nowhere/ca.pem"},
        ],
    )
    def test_wrong_values_are_refused(self, raw: dict[str, str]) -> None:
        """Each wrong value of a connection is one OPTION_VALUE error."""
        assert "secret" not in refused("OPTION_VALUE", Connection.take, raw)

    def test_reads_the_authorities_where_it_is_parsed(self, tmp_path: Path) -> None:
        """The PEM file is read on the driver: executors may not have it; another file is refused."""
        pem = tmp_path / "ca.pem"
        pem.write_text("-----BEGIN CERTIFICATE-----\n")
        connection, _ = Connection.take({"tlsCa": str(pem)})
        assert connection.location.startswith("grpc+tls://") and connection.ca_pem == pem.read_bytes()
        pem.write_text("no certificate")
        refused("OPTION_VALUE", Connection.take, {"tlsCa": str(pem)})
        refused("OPTION_VALUE", Connection.take, {"url": "grpc://h", "tlsCa": str(pem)})

    def test_never_shows_the_password(self) -> None:
        """No text that a connection makes of itself holds its password."""
        connection, _ = Connection.take({"password": "hunter2"})
        assert "hunter2" not in repr(connection) + connection.where + str(SinkOptions(connection=connection))


class TestOptions:
    def test_constants(self) -> None:
        """Constant properties become columns of the sink, numbers as numbers; `queue` is a key on the default exchange."""
        options = parse(routingkey="k", deliveryMode="1", expiration="0500")
        assert options.constants == {"routing_key": "k", "delivery_mode": 1, "expiration": "500"}
        assert parse(queue="q").constants == {"exchange": "", "routing_key": "q"}

    @pytest.mark.parametrize(
        "raw",
        [
            {"deliveryMode": "3"},
            {"priority": "256"},
            {"expiration": "-1"},
            {"expiration": "soon"},
            {"appId": "x" * 256},
            {"unroutable": "ignore"},
            {"unroutable": "exchange:"},
            {"overLimit": "drop"},
            {"queue": "q", "exchange": "e"},
            {"queue": ""},
            {"ignoreUnknownColumns": "yes"},
            {"txnVersion": "1"},
            {"txnVersion": "-1", "txnId": "t"},
            {"txnId": "t" * 201},
            {"transport": "amqp"},
            {"scope": "s"},
        ],
    )
    def test_wrong_values_are_refused(self, raw: dict[str, str]) -> None:
        """Each wrong value is one OPTION_VALUE error that names the option."""
        assert next(iter(raw)) in refused("OPTION_VALUE", parse, **raw)

    def test_names_of_a_batch_are_not_for_streams(self) -> None:
        """`txnId` on a stream would hide all of its batches but one."""
        refused("OPTION_VALUE", parse, streaming=True, txnId="t")
        assert parse(streaming=True, scope="s", checkpointLocation="c", queryName="q").scope == "s"

    def test_unknown_options_name_the_nearest(self) -> None:
        """A mistyped option is an error, never ignored."""
        assert "did you mean 'routingKey'?" in refused("OPTION_UNKNOWN", parse, routngKey="k")
        assert "did you mean 'flightPort'?" in refused("OPTION_UNKNOWN", parse, fligtPort="1")
        assert "use 'queue', or 'exchange' and 'routingKey'" in refused("OPTION_UNKNOWN", parse, topic="t")


SOURCE_DDL = (
    "queue string, position bigint, lsn bigint, enqueued_time timestamp, exchange string, routing_key string, redelivered boolean, "
    "body binary, headers map<string,string>, headers_raw binary, content_type string, content_encoding string, "
    "delivery_mode int, priority int, "
    "correlation_id string, reply_to string, expiration string, message_id string, timestamp timestamp, type string, user_id string, "
    "app_id string, cluster_id string, published_time timestamp, delivery_count int"
)


class TestColumns:
    def test_what_the_source_gives_can_be_written(self) -> None:
        """A DataFrame of the source is written as it is: all properties are kept, what describes the reading is left out."""
        from pyspark_flintmq.schema import spark_schema

        assert [c.target for c in plan_columns(spark_schema(), parse()).columns] == list(COLUMNS)
        assert [c.target for c in plan(SOURCE_DDL).columns] == list(COLUMNS)
        assert {f.name for f in schema(SOURCE_DDL).fields} == set(COLUMNS) | set(OF_THE_SOURCE)

    def test_an_option_stands_above_a_column(self) -> None:
        """`exchange` as an option wins, or messages read from a queue would go back to where they came from."""
        batch = pa.record_batch({"body": [b"1"], "exchange": ["old"], "routing_key": ["k"]})
        [piece] = plan("body binary, exchange string, routing_key string", exchange="new").pieces(batch)
        assert piece.to_pylist() == [{"exchange": "new", "routing_key": "k", "body": b"1", "delivery_mode": 2}]

    @pytest.mark.parametrize(
        ("ddl", "raw", "code", "text"),
        [
            ("body binary", {}, "OPTION_MISSING", "where to?"),
            ("body binary", {"exchange": ""}, "OPTION_MISSING", "routing key"),
            ("exchange string, routing_key string", {}, "COLUMN_MISSING", "'body'"),
            ("body binary, value binary", {"queue": "q"}, "COLUMN_TWICE", "'body'"),
            ("body binary, BODY binary", {"queue": "q"}, "COLUMN_TWICE", "'body'"),
            ("body struct<a:int>", {"queue": "q"}, "COLUMN_TYPE", "to_json"),
            ("body binary, headers map<string,int>", {"queue": "q"}, "COLUMN_TYPE", "transform_values"),
            ("body binary, priority string", {"queue": "q"}, "COLUMN_TYPE", "whole number"),
            ("body binary, timestamp date", {"queue": "q"}, "COLUMN_TYPE", "timestamp"),
            ("body binary, messageid string", {"queue": "q"}, "COLUMN_UNKNOWN", "did you mean 'message_id'?"),
            ("body binary, position string", {"queue": "q"}, "COLUMN_UNKNOWN", "bigint"),
            ("body binary, queue string", {"exchange": "e"}, "COLUMN_UNKNOWN", "routing_key"),
        ],
    )
    def test_wrong_columns_are_refused(self, ddl: str, raw: dict[str, str], code: str, text: str) -> None:
        """Names and types are checked with the plan, each error says what to do."""
        assert text in refused(code, plan, ddl, **raw)

    def test_unknown_columns_may_be_left_out(self) -> None:
        """`ignoreUnknownColumns` drops what means nothing here, and nothing else."""
        columns = plan("carrier string, body binary", queue="q", ignoreUnknownColumns="true").columns
        assert [c.target for c in columns] == ["exchange", "routing_key", "body", "delivery_mode"]
        assert columns[2].index == 1

    def test_types_are_made_canonical(self) -> None:
        """What Spark sends in several Arrow types arrives in one: texts as bytes, any integers, large strings, seconds as times."""
        ddl = (
            "value string, priority bigint, timestamp bigint, expiration int, headers map<string,string>, app_id string, delivery_mode int"
        )
        entries = pa.array([[("a", "1"), ("b", None)]], pa.map_(pa.large_string(), pa.large_string()))
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(["é"], pa.large_string()),
                pa.array([7], pa.int64()),
                pa.array([1_700_000_000], pa.int64()),
                pa.array([250], pa.int32()),
                entries,
                pa.array(["app"], pa.large_string()),
                pa.array([None], pa.int32()),
            ],
            names=["value", "priority", "timestamp", "expiration", "headers", "app_id", "delivery_mode"],
        )
        [piece] = plan(ddl, queue="q").pieces(batch)
        assert piece.to_pylist() == [
            {
                "exchange": "",
                "routing_key": "q",
                "body": "é".encode(),
                "headers": [("a", "1"), ("b", None)],
                "delivery_mode": 2,
                "priority": 7,
                "expiration": "250",
                "timestamp": datetime.fromtimestamp(1_700_000_000, UTC),
                "app_id": "app",
            }
        ]
        assert piece.schema.field("body").type == pa.binary() and piece.schema.field("priority").type == pa.int32()
        assert piece.schema.field("headers").type == pa.map_(pa.string(), pa.string())

    def test_every_arrow_time_of_spark_is_taken(self) -> None:
        """A time keeps its instant whatever zone its Arrow type names."""
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        batch = pa.record_batch({"body": [b""], "timestamp": pa.array([moment], pa.timestamp("us", tz="America/New_York"))})
        [piece] = plan("body binary, timestamp timestamp", queue="q").pieces(batch)
        assert piece.column("timestamp").to_pylist() == [moment]

    def test_null_bodies_and_numbers_out_of_range_are_refused(self) -> None:
        """A row that cannot become a message fails the batch, with the column's name."""
        ready = plan("body binary, priority bigint", queue="q")
        rows = pa.record_batch({"body": pa.array([None, b""], pa.binary()), "priority": pa.array([1, 1], pa.int64())})
        assert "1 of 2" in refused("NULL_BODY", lambda: list(ready.pieces(rows)))
        rows = pa.record_batch({"body": [b""], "priority": pa.array([2**40], pa.int64())})
        assert "priority" in refused("COLUMN_VALUE", lambda: list(ready.pieces(rows)))

    def test_large_batches_are_cut_in_order(self) -> None:
        """Pieces hold at most 10,000 rows and about 8 MiB, all rows in their order, and an empty batch has none."""
        ready = plan("body binary", queue="q")
        many = pa.record_batch({"body": [b"%d" % i for i in range(25_000)]})
        assert [p.num_rows for p in ready.pieces(many)] == [10_000, 10_000, 5_000]
        assert [b for p in ready.pieces(many) for b in p.column("body").to_pylist()] == many.column("body").to_pylist()
        large = pa.record_batch({"body": [b"x" * 2**20] * 20})
        assert max(p.num_rows for p in ready.pieces(large)) <= 8
        assert list(ready.pieces(many.slice(0, 0))) == []

    def test_a_plan_travels(self) -> None:
        """A plan is made of plain values: it is pickled to tasks."""
        import pickle

        ready = plan(SOURCE_DDL)
        assert pickle.loads(pickle.dumps(ready)) == ready
