"""What goes into the spool comes out the same, and a message has one identity: as a delivery, from the spool, and when given again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.arrow.readable import readable_headers
from pyspark_flintmq.amqp import messages as schema
from pyspark_flintmq.amqp.messages import Delivery, Properties, identities, identity, to_record_batches

text = st.none() | st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.binary(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
properties = st.builds(
    Properties,
    content_type=text,
    headers=st.none() | st.dictionaries(st.text(max_size=4), values, max_size=3),
    headers_raw=st.none() | st.binary(max_size=10),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    message_id=text,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    app_id=text,
)
deliveries = st.builds(
    Delivery, st.integers(1, 9), st.booleans(), st.text(max_size=5), st.text(max_size=5), properties, st.binary(max_size=20)
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(deliveries, min_size=1, max_size=6))
def test_identity_from_the_spool_equals_that_of_the_delivery(rows: list[Delivery]) -> None:
    batches = to_record_batches("q", rows)
    assert [key for batch in batches for key in identities(batch)] == [identity(row) for row in rows]


@settings(max_examples=100, deadline=None)
@given(row=deliveries, tag=st.integers(10, 20))
def test_identity_survives_redelivery(row: Delivery, tag: int) -> None:
    marked = row.properties._replace(headers={**(row.properties.headers or {}), "x-delivery-count": 3}, headers_raw=b"other")
    assert identity(row._replace(tag=tag, redelivered=not row.redelivered, properties=marked)) == identity(row)


def test_identity_tells_messages_apart() -> None:
    row = Delivery(1, False, "x", "k", Properties(), b"body")
    others = [
        row._replace(body=b"bodY"),
        row._replace(exchange="y"),
        row._replace(routing_key="l"),
        row._replace(exchange="xk", routing_key=""),
        *(row._replace(properties=Properties(**{name: "1"})) for name in ("content_type", "correlation_id", "message_id", "app_id")),
        row._replace(properties=Properties(timestamp=1)),
        row._replace(properties=Properties(priority=1)),
        row._replace(properties=Properties(headers={"a": 1})),
    ]
    assert len({identity(row), *map(identity, others)}) == len(others) + 1


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(deliveries, min_size=1, max_size=6))
def test_columns_hold_what_was_delivered(rows: list[Delivery]) -> None:
    (batch,) = to_record_batches("q", rows)
    assert batch.schema.equals(schema.arrow_schema())
    for row, cells in zip(rows, batch.to_pylist()):
        assert (cells["queue"], cells["exchange"], cells["routing_key"], cells["body"]) == ("q", row.exchange, row.routing_key, row.body)
        assert (cells["redelivered"], cells["headers_raw"], cells["message_id"]) == (
            row.redelivered,
            row.properties.headers_raw,
            row.properties.message_id,
        )


def test_batches_are_cut_by_rows_and_by_bytes() -> None:
    def row(size: int) -> Delivery:
        return Delivery(1, False, "", "", Properties(), b"x" * size)

    small = to_record_batches("q", [row(1)] * (schema.ROWS_PER_RECORD_BATCH + 1))
    assert [batch.num_rows for batch in small] == [schema.ROWS_PER_RECORD_BATCH, 1]
    half = schema.BYTES_PER_RECORD_BATCH // 2 + 1
    assert [batch.num_rows for batch in to_record_batches("q", [row(half)] * 3)] == [1, 1, 1]


def test_a_time_that_spark_cannot_hold_is_null() -> None:
    rows = [Delivery(1, False, "", "", Properties(timestamp=t), b"") for t in (1_700_000_000, 1_700_000_000_000, 2**64 - 1)]
    (batch,) = to_record_batches("q", rows)
    assert batch.column("timestamp").to_pylist() == [datetime.fromtimestamp(1_700_000_000, UTC), None, None]


def test_headers_are_readable() -> None:
    table: dict[str, Any] = {
        "s": "é",
        "i": -5,
        "t": True,
        "n": None,
        "d": Decimal("1.50"),
        "at": datetime(2013, 1, 1, tzinfo=UTC),
        "raw": b"\xff",
        "utf8": b"ok",
        "list": [1, None, {"k": b"v"}],
    }
    assert dict(readable_headers(table)) == {
        "s": "é",
        "i": "-5",
        "t": "true",
        "n": None,
        "d": "1.50",
        "at": "2013-01-01T00:00:00+00:00",
        "raw": "base16:ff",
        "utf8": "ok",
        "list": '[1, null, {"k": "v"}]',
    }
