"""Rows of the broker's call `rows` as record batches."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.arrow import schema
from flintmq.arrow.containers import Containers
from flintmq.arrow.messages import Moved, Unreadable, rows_to_batches
from tests.arrow.payloads import expected, payload_of, properties, shorts
from tests.arrow.stores import ROW, Found, found_in, inline_content, inline_row, row
from tests.support import logbytes as lb

PLAIN = bytes.fromhex("003c0000") + struct.pack(">QH", 0, 0)
START, CHUNK, ENQUEUE, COPY = 1, 2, 4, 6


def route(exchange: str, key: str) -> bytes:
    return bytes([len(exchange.encode())]) + exchange.encode() + bytes([len(key.encode())]) + key.encode()


def header(body: bytes, table: bytes | None = None) -> bytes:
    """A payload with nothing but (maybe) a header table."""
    flags = 0 if table is None else 0x2000
    return struct.pack(">HHQH", 60, 0, len(body), flags) + (b"" if table is None else struct.pack(">I", len(table)) + table)


def decode(store: Path, rows: bytes, count: int, **more: Any) -> list[dict[str, Any]]:
    batches = rows_to_batches(Containers(str(store / "messages")), rows, [["q", count]], **more)
    for batch in batches:
        batch.validate(full=True)
    return [line for batch in batches for line in batch.to_pylist()]


def us(value: Any) -> int:
    return round(value.timestamp() * 1_000_000)


def only(directory: Path, log: lb.LogBytes) -> Found:
    log.sync()
    log.write(str(directory / "messages"))
    (found,) = found_in(directory)
    return found


# --- what went in comes out


messages = st.lists(st.tuples(properties(), shorts, shorts, st.binary(max_size=3000)), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(messages)
def test_every_property_header_and_body_comes_back(tmp_path: Path, published: list[Any]) -> None:
    """Any message decodes to what pika's codec reads from it, whether it lies in the log whole, in chunks over containers, or inline."""
    log = lb.LogBytes(size=8192)
    rows, inline, wanted = [], b"", []
    for position, (props, exchange, key, body) in enumerate(published, 1):
        payload = payload_of(props, len(body))
        run = route(exchange, key) + payload + body
        wanted.append({"exchange": exchange, "routing_key": key, "body": body, "position": position} | expected(payload))
        if position % 3 == 0:
            rows.append(inline_row(position, 7, body))
            inline += inline_content(exchange.encode(), key.encode(), payload, body, 5)
            continue
        first = len(run) if position % 3 == 1 else min(len(run), 1 + len(run) // 3)
        number = log.add(START, lb.content(route(exchange, key), payload, body, first=first))
        for at in range(first, len(run), 700):
            log.add(CHUNK, lb.chunk(at, run[at : at + 700]), undo_prev=number)
        rows.append(ROW.pack(position, number, number, len(body), position, position & 1, 0))
    log.sync()
    log.write(str(tmp_path / "messages"))
    got = decode(tmp_path, b"".join(rows) + inline, len(rows))
    for line, want in zip(got, wanted, strict=True):
        assert {name: line[name] for name in want} == want
        assert line["queue"] == "q"


def test_times_are_those_of_start_and_enqueue(tmp_path: Path) -> None:
    """published_time is the Message-Start's; enqueued_time that of this place's Message-Enqueue when it follows, else the same."""
    log = lb.LogBytes()
    number = log.add(START, lb.content(route("", "q"), header(b"b"), b"b"), time=10)
    log.add(ENQUEUE, lb.enqueue(1, 4), undo_prev=number, time=20)
    log.add(ENQUEUE, lb.enqueue(2, 9), undo_prev=number, time=30)
    alone = log.add(START, lb.content(route("", "q"), header(b"b"), b"b"), time=40)
    log.sync()
    log.write(str(tmp_path / "messages"))
    rows = b"".join(ROW.pack(position, thing, thing, 1, 0, 0, 0) for position, thing in ((4, number), (9, number), (5, alone)))
    got = decode(tmp_path, rows, 3)
    assert [us(line["published_time"]) - 1_000_000 for line in got] == [10, 10, 40]
    assert [us(line["enqueued_time"]) - 1_000_000 for line in got] == [20, 30, 40]


def test_a_queue_id_tells_equal_positions_apart(tmp_path: Path) -> None:
    """A message that stands at the same position of two queues has the enqueue time of the queue that is read."""
    log = lb.LogBytes()
    number = log.add(START, lb.content(route("", "q"), header(b"b"), b"b"), time=10)
    log.add(ENQUEUE, lb.enqueue(1, 4), undo_prev=number, time=20)
    log.add(ENQUEUE, lb.enqueue(2, 4), undo_prev=number, time=30)
    log.sync()
    log.write(str(tmp_path / "messages"))
    containers = Containers(str(tmp_path / "messages"))
    one = ROW.pack(4, number, number, 1, 0, 0, 0)
    (batch,) = rows_to_batches(containers, one + one, [["a", 1, 1], ["b", 1, 2]])
    assert batch.column("queue").to_pylist() == ["a", "b"]
    assert [us(time) - 1_000_000 for time in batch.column("enqueued_time").to_pylist()] == [20, 30]


def copy_record(number_of_places: int, published: int | None, start: bytes) -> bytes:
    places = b"".join(struct.pack("<QQQQQ", 1, 10 + i, 0, 0, 0) for i in range(number_of_places))
    tail = b"" if published is None else struct.pack("<Q", published)
    return struct.pack("<II", number_of_places, 0 if published is None else 1) + places + tail + start


@pytest.mark.parametrize("published", [None, 123_456_789])
def test_a_copy_keeps_the_published_time(tmp_path: Path, published: int | None) -> None:
    """A Message-Copy gives the time it carries; one written before copies carried it gives null, never its own time."""
    log = lb.LogBytes()
    number = log.add(START, lb.content(route("", "q"), header(b"old"), b"old"))
    where = log.add(COPY, copy_record(2, published, lb.content(route("e", "k"), header(b"bb"), b"bb")), undo_prev=number)
    log.sync()
    log.write(str(tmp_path / "messages"))
    (line,) = decode(tmp_path, ROW.pack(11, number, where, 2, 0, 0, 0), 1)
    assert (line["exchange"], line["routing_key"], line["body"], line["lsn"]) == ("e", "k", b"bb", number)
    assert (line["published_time"] and us(line["published_time"])) == published
    assert line["enqueued_time"] == line["published_time"]


def test_columns_body_and_cut_of_batches(tmp_path: Path) -> None:
    """`columns`, `body`, `rows_max` and `bytes_max` change what is given, never which rows."""
    log = lb.LogBytes()
    for i in range(10):
        log.add(START, lb.content(route("", "q"), header(b"x" * 100), b"x" * 99 + bytes([i])))
    log.sync()
    log.write(str(tmp_path / "messages"))
    rows = b"".join(row(one, i + 1) for i, one in enumerate(found_in(tmp_path)))
    containers = Containers(str(tmp_path / "messages"))
    batches = rows_to_batches(containers, rows, [["q", 10]], columns=["body", "position"], rows_max=4)
    assert [batch.num_rows for batch in batches] == [4, 4, 2] and batches[0].schema.equals(schema.messages_schema(["position", "body"]))
    assert [batch.num_rows for batch in rows_to_batches(containers, rows, [["q", 10]], bytes_max=350)] == [3, 3, 3, 1]
    assert [batch.num_rows for batch in rows_to_batches(containers, rows, [["q", 10]], bytes_max=1)] == [1] * 10
    assert {line["body"] for line in decode(tmp_path, rows, 10, body="none")} == {b""}
    assert {line["body"] for line in decode(tmp_path, rows, 10, body="prefix:3")} == {b"xxx"}
    assert rows_to_batches(containers, b"", []) == [] == rows_to_batches(containers, b"", [["q", 0]])


# --- texts


def table_of(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(bytes([len(name)]) + name + value for name, value in fields)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"S" + struct.pack(">I", 2) + b"\xff\xfe", "base16:fffe"),
        (b"x" + struct.pack(">I", 2) + b"ab", "ab"),
        (b"d" + struct.pack(">d", 1.5), "1.5"),
        (b"d" + struct.pack(">d", float("nan")), "nan"),
        (b"f" + struct.pack(">f", 0.25), "0.25"),
        (b"D" + struct.pack(">Bi", 2, -150), "-1.50"),
        (b"T" + struct.pack(">Q", 0), "1970-01-01T00:00:00+00:00"),
        (b"T" + struct.pack(">Q", 2**64 - 1), str(2**64 - 1)),
        (b"l" + struct.pack(">q", -(2**63)), str(-(2**63))),
        (b"b\x80", "-128"),
        (b"B\x80", "128"),
        (b"u\xff\xff", "65535"),
        (b"i\xff\xff\xff\xff", "4294967295"),
        (b"t\x01", "true"),
        (b"V", None),
        (b"A" + struct.pack(">I", 4) + b"t\0b\x07", "[false, 7]"),
    ],
)
def test_header_values_are_readable(tmp_path: Path, value: bytes, text: str | None) -> None:
    """Every wire type has a readable form, alone and beside one that needs the long way."""
    log = lb.LogBytes()
    table = table_of((b"k", value))
    found = only(tmp_path, add_start(log, header(b"", table)))
    (line,) = decode(tmp_path, row(found), 1)
    assert line["headers"] == [("k", text)] and line["headers_raw"] == struct.pack(">I", len(table)) + table


def add_start(log: lb.LogBytes, payload: bytes, body: bytes = b"") -> lb.LogBytes:
    log.add(START, lb.content(route("", "q"), payload, body))
    return log


def test_broken_utf8_is_replaced_in_texts_and_kept_in_headers_raw(tmp_path: Path) -> None:
    """Arrow strings are valid UTF-8 whatever a client sent; the exact bytes stay in headers_raw."""
    table = table_of((b"\xff", b"t\1"), (b"ok", b"t\0"))
    log = lb.LogBytes()
    payload = struct.pack(">HHQH", 60, 0, 0, 0x8000 | 0x2000) + b"\x03a\xe2\x82" + struct.pack(">I", len(table)) + table
    log.add(START, lb.content(b"\x02\xc3(\x01\x80", payload, b""))
    found = only(tmp_path, log)
    (line,) = decode(tmp_path, row(found), 1)
    assert line["exchange"] == "\ufffd(" and line["routing_key"] == "\ufffd" and line["content_type"] == "a\ufffd"
    assert line["headers"] == [("\ufffd", "true"), ("ok", "false")] and line["headers_raw"][4:] == table


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=24))
def test_text_is_checked_as_python_checks_it(data: bytes) -> None:
    """A string column holds what Python's strict decoder takes, and its replacement for the rest."""
    rows = inline_row(1, 1, b"") + inline_content(data, b"", header(b""), b"", 1)
    (batch,) = rows_to_batches(Containers(""), rows, [["q", 1]], columns=["exchange"])
    batch.validate(full=True)
    assert batch.column("exchange").to_pylist() == [data.decode("utf-8", "replace")]


def test_a_name_that_repeats_counts_once(tmp_path: Path) -> None:
    """Of a header that a table repeats the first value counts, as in the broker: Spark's maps have no repeated keys."""
    log = lb.LogBytes()
    found = only(tmp_path, add_start(log, header(b"", table_of((b"a", b"B\1"), (b"b", b"B\2"), (b"a", b"B\3")))))
    (line,) = decode(tmp_path, row(found), 1)
    assert line["headers"] == [("a", "1"), ("b", "2")]


def test_many_headers(tmp_path: Path) -> None:
    """Tables longer than the short way takes come back whole and in order."""
    fields = [(f"k{i}".encode(), b"I" + struct.pack(">i", i)) for i in range(500)]
    log = lb.LogBytes(size=16384)
    found = only(tmp_path, add_start(log, header(b"", table_of(*fields))))
    (line,) = decode(tmp_path, row(found), 1)
    assert line["headers"] == [(f"k{i}", str(i)) for i in range(500)]


# --- rows that moved, and what is wrong


def test_rows_that_do_not_check_are_told_by_index(tmp_path: Path) -> None:
    """A row whose record is another message's, is gone, is damaged, or has another body length is reported; all of them at once."""
    log = lb.LogBytes()
    first = log.add(START, lb.content(route("", "q"), header(b"abc"), b"abc"))
    second = log.add(START, lb.content(route("", "q"), header(b"abc"), b"abc"))
    third = log.add(START, lb.content(route("", "q"), header(b"abc"), b"abc"))
    log.sync()
    log.files[1][third % log.size + 50] ^= 1
    log.write(str(tmp_path / "messages"))
    bad = [(second, first, 3), (first, 77 * log.size + 1000, 3), (third, third, 3), (first, first, 4), (first, first + 8, 3), (first, 3, 3)]
    rows = [ROW.pack(1, thing, where, size, 0, 0, 0) for thing, where, size in bad]
    rows.insert(3, ROW.pack(1, first, first, 3, 0, 0, 0))
    with pytest.raises(Moved) as caught:
        decode(tmp_path, b"".join(rows), len(rows))
    assert caught.value.rows == [0, 1, 2, 4, 5, 6]


def test_contents_that_contradict_themselves_are_told_by_index(tmp_path: Path) -> None:
    """A row whose record checks and whose properties do not is reported, all of them at once; rows that moved come first."""
    log = lb.LogBytes()
    good = log.add(START, lb.content(route("", "q"), header(b"abc"), b"abc"))
    wrong = log.add(START, lb.content(route("", "q"), b"\0" * 14, b"abc"))
    log.sync()
    log.write(str(tmp_path / "messages"))
    rows = [ROW.pack(number, lsn, lsn, 3, 0, 0, 0) for number, lsn in enumerate((good, wrong, good, wrong))]
    with pytest.raises(Unreadable) as caught:
        decode(tmp_path, b"".join(rows), len(rows))
    assert caught.value.rows == [1, 3]
    rows.append(ROW.pack(4, good, good + 8, 3, 0, 0, 0))
    with pytest.raises(Moved) as moved:
        decode(tmp_path, b"".join(rows), len(rows))
    assert moved.value.rows == [4]


def test_rows_that_are_left_out_by_name(tmp_path: Path) -> None:
    """The others come as they are, those in the log and those in the payload; what is left out need not be readable."""
    log = lb.LogBytes()
    good = log.add(START, lb.content(route("", "q"), header(b"abc"), b"abc"))
    log.sync()
    log.write(str(tmp_path / "messages"))
    logged = [ROW.pack(number, good, where, 3, 0, 0, 0) for number, where in enumerate((good, good + 8, good))]
    rows = logged + [inline_row(3, 0, b"x"), inline_row(4, 0, b"yz")]
    payload = b"".join(rows) + inline_content(b"", b"", b"\0" * 14, b"x", 0) + inline_content(b"", b"", header(b"yz"), b"yz", 0)
    (batch,) = rows_to_batches(Containers(str(tmp_path / "messages")), payload, [["q", 5]], left_out={1, 3})
    assert batch.column("position").to_pylist() == [0, 2, 4]
    assert batch.column("body").to_pylist() == [b"abc", b"abc", b"yz"]
    with pytest.raises(Unreadable) as caught:
        rows_to_batches(Containers(str(tmp_path / "messages")), payload, [["q", 5]], left_out={1})
    assert caught.value.rows == [3]


def test_what_was_read_too_early_is_read_again(tmp_path: Path) -> None:
    """A record that was written after its container was first read is found by the next call."""
    log = lb.LogBytes(size=65536 * 4)
    first = log.add(START, lb.content(route("", "q"), header(b"a"), b"a"))
    log.sync()
    log.write(str(tmp_path / "messages"))
    containers = Containers(str(tmp_path / "messages"))
    rows_to_batches(containers, ROW.pack(1, first, first, 1, 0, 0, 0), [["q", 1]])
    second = log.add(START, lb.content(route("", "q"), header(b"b"), b"b"))
    log.sync()
    log.write(str(tmp_path / "messages"))
    (batch,) = rows_to_batches(containers, ROW.pack(2, second, second, 1, 0, 0, 0), [["q", 1]])
    assert batch.column("body").to_pylist() == [b"b"]


def test_a_recycled_container_is_not_believed(tmp_path: Path) -> None:
    """Under a new sequence number, or with another store's UUID, a file gives no row."""
    log = lb.LogBytes()
    first = log.add(START, lb.content(route("", "q"), header(b"a"), b"a"))
    log.sync()
    log.write(str(tmp_path / "messages"))
    rows = ROW.pack(1, first, first, 1, 0, 0, 0)
    with pytest.raises(Moved):
        rows_to_batches(Containers(str(tmp_path / "messages"), b"\1" * 16), rows, [["q", 1]])
    path = tmp_path / "messages" / f"{1:020d}.flog"
    path.write_bytes(bytes(lb.container_header(2, log.size)).ljust(log.size, b"\0"))
    with pytest.raises(Moved):
        rows_to_batches(Containers(str(tmp_path / "messages")), rows, [["q", 1]])


def test_a_few_containers_are_held_whatever_is_read(tmp_path: Path) -> None:
    """Rows over many containers in any order are right with room for three."""
    log = lb.LogBytes(size=4096)
    for i in range(60):
        log.add(START, lb.content(route("", "q"), header(b"x" * 900), bytes([i]) * 900))
        log.sync()
    log.write(str(tmp_path / "messages"))
    found = found_in(tmp_path)
    order = [(i * 37) % 60 for i in range(60)]
    rows = b"".join(row(found[i]) for i in order)
    (batch,) = rows_to_batches(Containers(str(tmp_path / "messages"), memory=1), rows, [["q", 60]])
    assert [body[0] for body in batch.column("body").to_pylist()] == order


@pytest.mark.parametrize(
    ("payload", "queues"),
    [
        (b"", [["q", 1]]),
        (inline_row(1, 1, b"a"), [["q", 1]]),
        (inline_row(1, 1, b"a") + inline_content(b"", b"", header(b""), b"", 0), [["q", 1]]),
        (inline_row(1, 1, b"") + struct.pack("<IIQ", 50, 14, 0) + b"\0\0", [["q", 1]]),
        (inline_row(1, 1, b"") + inline_content(b"", b"", b"\0" * 14, b"", 0), [["q", 1]]),
        (inline_row(1, 1, b""), [["q", -1]]),
    ],
)
def test_a_payload_that_contradicts_itself_is_an_error(tmp_path: Path, payload: bytes, queues: list[Any]) -> None:
    """Malformed answers raise ValueError; no byte beyond the payload is read."""
    with pytest.raises(ValueError):
        rows_to_batches(Containers(str(tmp_path)), payload, queues)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 8))
def test_arbitrary_payloads_never_crash(data: bytes, count: int) -> None:
    """Any bytes are rows, moved rows, or an error."""
    with contextlib.suppress(ValueError, Moved):
        rows_to_batches(Containers(""), data, [["q", count]])
