"""Record batches of messages to publish as blocks, read back by the broker's own codecs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.arrow import schema
from flintmq.arrow.blocks import EncodeError, EncodeOptions, blocks_of
from flintmq.arrow.containers import Containers
from flintmq.arrow.messages import rows_to_batches
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from tests.arrow.payloads import TEXT_PROPERTIES, payload_of, properties, shorts
from tests.arrow.stores import inline_content, inline_row
from tests.support.blocks import BlockEntry, block_entries


def entries(batch: pa.RecordBatch, options: EncodeOptions | None = None) -> list[tuple[list[str], BlockEntry]]:
    """All entries of all blocks with their routes, as the broker reads them."""
    found = []
    for routes, block in blocks_of(batch, options):
        assert len(block) % 8 == 0 and len({tuple(pair) for pair in routes}) == len(routes)
        found += [(routes[entry.route], entry) for entry in block_entries(block, len(routes))]
    return found


def read_back(found: list[tuple[list[str], BlockEntry]]) -> list[dict[str, Any]]:
    """The entries decoded as messages of a queue."""
    rows = b"".join(inline_row(i + 1, 1, entry.body) for i, (_, entry) in enumerate(found))
    for (exchange, key), entry in found:
        rows += inline_content(exchange.encode(), key.encode(), entry.header, entry.body, 1)
    return [line for batch in rows_to_batches(Containers(""), rows, [["q", len(found)]]) for line in batch.to_pylist()]


def source_batch(published: list[Any]) -> pa.RecordBatch:
    """Messages as the source gives them."""
    rows = b"".join(inline_row(i + 1, 1, body) for i, (_, _, _, body) in enumerate(published))
    for props, exchange, key, body in published:
        rows += inline_content(exchange.encode(), key.encode(), payload_of(props, len(body)), body, 1)
    return rows_to_batches(Containers(""), rows, [["q", len(published)]], rows_max=1 << 16, bytes_max=1 << 30)[0]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(properties(), shorts, shorts, st.binary(max_size=300)), min_size=1, max_size=6), st.data())
def test_what_the_source_gives_the_sink_writes_unchanged(published: list[Any], data: st.DataObject) -> None:
    """A batch read from a queue, or a slice of it, becomes the same messages: header payloads are equal but for an absent delivery mode,
    which the sink sets to 2."""
    for one in published:
        one[0].delivery_mode = one[0].delivery_mode or 2
    batch = source_batch(published)
    start = data.draw(st.integers(0, batch.num_rows - 1))
    found = entries(batch.slice(start))
    assert len(found) == len(published) - start
    for (props, exchange, key, body), (pair, entry) in zip(published[start:], found, strict=True):
        assert pair == [exchange, key] and entry.body == body
        assert entry.header == payload_of(props, len(body))


pairs = st.dictionaries(shorts, st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4)
lines = st.fixed_dictionaries(
    {"body": st.binary(max_size=50)}
    | {name: st.none() | shorts for name in (*TEXT_PROPERTIES, "exchange", "routing_key")}
    | {
        "expiration": st.none() | st.integers(0, 2**32 - 1).map(str),
        "delivery_mode": st.none() | st.integers(0, 255),
        "priority": st.none() | st.integers(0, 255),
        "timestamp": st.none() | st.integers(0, 200_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
        "headers": st.none() | pairs.map(lambda headers: list(headers.items())),
    }
)


@settings(max_examples=120, deadline=None)
@given(st.lists(lines, min_size=1, max_size=6), st.integers(1, 600))
def test_columns_become_messages_and_back(rows: list[dict[str, Any]], block_bytes: int) -> None:
    """Whatever the columns say stands in the messages, in row order, however small the blocks are; flags and priority agree with the
    broker's scan."""
    kinds = schema.messages_schema()
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([kinds.field(name).with_nullable(True) for name in rows[0]]))
    found = entries(batch, EncodeOptions(exchange="ex", routing_key="rk", block_bytes=block_bytes))
    for want, got, (_, entry) in zip(rows, read_back(found), found, strict=True):
        want = want | {"delivery_mode": 2 if want["delivery_mode"] is None else want["delivery_mode"]}
        want |= {"exchange": "ex" if want["exchange"] is None else want["exchange"]}
        want |= {"routing_key": "rk" if want["routing_key"] is None else want["routing_key"]}
        assert {name: got[name] for name in want} == want
        scan = scan_properties_of(entry.header)
        assert scan is not None and scan["body_size"] == len(entry.body)
        assert entry.expiration_ms == scan["expiration_ms"] == (-1 if want["expiration"] is None else int(want["expiration"]))
        assert (entry.priority is None) == (want["priority"] is None)
        assert entry.priority is None or entry.priority == min(want["priority"], 254)
        flags = [
            want["delivery_mode"] == 2,
            want["expiration"] is not None,
            want["headers"] is not None,
            want["reply_to"] is not None,
            want["priority"] is not None,
        ]
        assert entry.flags == sum(1 << i for i, flag in enumerate(flags) if flag)


def test_defaults_and_constants() -> None:
    """Defaults stand where the row says nothing; constants stand above columns."""
    batch = pa.record_batch({"value": ["a", "b"], "routing_key": ["k", None], "app_id": ["col", None]})
    options = EncodeOptions(exchange="ex", routing_key="rk", constants={"app_id": "me", "delivery_mode": 1, "priority": 3, "expiration": 5})
    found = entries(batch, options)
    assert [pair for pair, _ in found] == [["ex", "k"], ["ex", "rk"]] and [entry.body for _, entry in found] == [b"a", b"b"]
    for line in read_back(found):
        assert (line["app_id"], line["delivery_mode"], line["priority"], line["expiration"]) == ("me", 1, 3, "5")
    ((pair, _),) = entries(pa.record_batch({"body": ["a"], "exchange": ["x"]}), EncodeOptions(constants={"exchange": "c"}))
    assert pair == ["c", ""]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"one", b"two"], pa.large_binary()),
        pa.array(["one", "two"], pa.large_string()),
        pa.array(["one", "two"], pa.string()),
        pa.array(["one", "two"]).dictionary_encode(),
        pa.array([b"one", b"two"], pa.binary(3)),
        pa.array(["no", "one", "two"]).slice(1),
    ],
)
def test_bodies_of_any_text_or_binary_type(column: pa.Array) -> None:
    """Arrow has several types for text and bytes; all are taken."""
    assert [entry.body for _, entry in entries(pa.RecordBatch.from_arrays([column], ["body"]))] == [b"one", b"two"]


def test_numbers_and_times_of_other_types() -> None:
    """Expiration and timestamp may be numbers; a time is cut to whole seconds."""
    time = datetime(2020, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)
    for stamp in (pa.array([time], pa.timestamp("us", "UTC")), pa.array([time], pa.timestamp("ns")), pa.array([1_577_836_800], pa.int32())):
        columns = [pa.array(["b"]), pa.array([7], pa.int16()), stamp, pa.array([4], pa.int8())]
        (line,) = read_back(entries(pa.RecordBatch.from_arrays(columns, ["body", "expiration", "timestamp", "priority"])))
        assert (line["expiration"], line["priority"], line["timestamp"]) == ("7", 4, datetime(2020, 1, 1, tzinfo=UTC))


def test_headers_raw_stands_above_headers_where_it_is_not_null() -> None:
    """The exact bytes win over the readable form, row by row."""
    raw = b"\0\0\0\x04\x01aB\x07"
    headers = pa.array([[("x", "1")], [("y", "2")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(["", ""]), headers, pa.array([raw, None])], ["body", "headers", "headers_raw"])
    first, second = read_back(entries(batch))
    assert first["headers_raw"] == raw and second["headers"] == [("y", "2")]


def test_many_routes_and_blocks() -> None:
    """More routes than a block takes begin new blocks; every message keeps its own."""
    count = 10_000
    batch = pa.record_batch({"body": [str(i) for i in range(count)], "routing_key": [f"k{i % 9000}" for i in range(count)]})
    found = entries(batch)
    assert [(pair[1], entry.body.decode()) for pair, entry in found] == [(f"k{i % 9000}", str(i)) for i in range(count)]


def test_blocks_stay_below_their_size() -> None:
    """A block is closed before it gets longer; a message that is longer alone has one of its own."""
    batch = pa.record_batch({"body": [b"x" * 1000] * 20 + [b"y" * 9000] + [b"z"]})
    sizes = [len(block) for _, block in blocks_of(batch, EncodeOptions(block_bytes=4096))]
    assert [size > 4096 for size in sizes].count(True) == 1 and len(sizes) == 9


@pytest.mark.parametrize(
    ("columns", "column", "row"),
    [
        ({"body": [b"x", None]}, "body", 1),
        ({"body": ["x", "y"], "priority": [1, 256]}, "priority", 1),
        ({"body": ["x"], "delivery_mode": [-1]}, "delivery_mode", 0),
        ({"body": ["x"], "expiration": ["1s"]}, "expiration", 0),
        ({"body": ["x"], "expiration": [-5]}, "expiration", 0),
        ({"body": ["x"], "expiration": [315_360_000_001]}, "expiration", 0),
        ({"body": ["x"], "timestamp": [-1]}, "timestamp", 0),
        ({"body": ["x"], "timestamp": [datetime(1969, 12, 31, 23, 59, 59, 500_000)]}, "timestamp", 0),
        ({"body": ["x"], "app_id": ["y" * 256]}, "app_id", 0),
        ({"body": ["x"], "exchange": ["y" * 256]}, "exchange", 0),
        ({"body": ["x"], "routing_key": ["\u00e4" * 128]}, "routing_key", 0),
        ({"body": ["x"], "headers_raw": [b"\0\0\0\2ab"]}, "headers_raw", 0),
        ({"body": ["x"], "headers_raw": [b"\0\0\0"]}, "headers_raw", 0),
        ({"body": ["x"], "headers_raw": [b"\0\0\0\5\1aB\1"]}, "headers_raw", 0),
        ({"body": ["x"], "headers": pa.array([[("k" * 256, "")]], pa.map_(pa.string(), pa.string()))}, "headers", 0),
        ({"other": ["x"]}, "body", None),
        ({"body": [1]}, "body", None),
        ({"body": ["x"], "priority": ["1"]}, "priority", None),
        ({"body": ["x"], "headers": ["h"]}, "headers", None),
        ({"body": ["x"], "timestamp": ["now"]}, "timestamp", None),
        ({"body": ["x"], "message_id": [1]}, "message_id", None),
    ],
)
def test_what_cannot_be_a_message_is_named(columns: dict[str, Any], column: str, row: int | None) -> None:
    """The error names row (counted over batches) and column; nothing is cut or dropped."""
    with pytest.raises(EncodeError) as caught:
        list(blocks_of(pa.record_batch(columns), first_row=1000))
    assert caught.value.column == column and caught.value.row == (None if row is None else 1000 + row)
    assert column in str(caught.value)


def test_wrong_constants_are_errors() -> None:
    """A constant is checked like a column."""
    batch = pa.record_batch({"body": ["x"]})
    for constants in (
        {"nonsense": 1},
        {"priority": "1"},
        {"priority": 300},
        {"app_id": "y" * 300},
        {"expiration": "soon"},
        {"headers": "x"},
    ):
        with pytest.raises(EncodeError):
            list(blocks_of(batch, EncodeOptions(constants=constants)))
    assert list(blocks_of(batch.slice(1))) == []
