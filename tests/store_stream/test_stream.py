"""A stream keeps what was appended: round trips hot and cold, chunks, reopening, headers, filters, time, bounds of reads."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.errors import StoreError
from flintmq.store.log.file_port import OsFiles
from tests.drivers.stream_reader import StreamReader
from tests.store_stream.rig import (
    COLD,
    EMPTY,
    FILTERED,
    GONE,
    MESSAGES,
    PROGRESS,
    QUEUE,
    STORE,
    TRUNCATED,
    Rig,
    field,
    filtered,
    header,
    offset_field,
    text,
)

BODIES = st.lists(st.integers(0, 30_000).map(lambda size: bytes([size % 251]) * size), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(BODIES, st.lists(st.booleans(), min_size=12, max_size=12), st.sampled_from([8192, 16384, 65536]))
def test_round_trip(bodies: list[bytes], pumps: list[bool], size: int) -> None:
    """What is appended is read back, hot and cold, with dense offsets, whatever the sizes and however it is grouped into syncs."""
    rig = Rig(size)
    for number, body in enumerate(bodies):
        assert rig.append(body) == number
        if pumps[number]:
            assert rig.pump() == number + 1
    assert rig.pump() == len(bodies)
    assert rig.read_all() == rig.sent
    outcome, following, items = rig.stream.hot(0, len(bodies), 1 << 30)
    assert (outcome, following) == (MESSAGES, len(bodies))
    assert {one[0]: one[4] for one in items} == rig.sent
    assert rig.space.unwritten == 0
    rig.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(BODIES.map(lambda found: found[:4]), st.just(None), st.just("settle")), min_size=1, max_size=8), st.booleans())
def test_reopen(steps: list[list[bytes] | str | None], last_clean: bool) -> None:
    """After any mixture of appends, idle times and stops a stream goes on with the next offset and gives back all that was visible."""
    rig = Rig(8192)
    for step in steps:
        if step is None:
            visible = rig.pump()
            rig.reopen(clean=visible % 2 == 0)
            assert (rig.stream.visible, rig.stream.next, rig.stream.damage) == (visible, visible, [])
        elif step == "settle":
            rig.settle()
        else:
            for body in step:
                rig.append(body)
    rig.pump()
    rig.reopen(clean=last_clean)
    assert rig.read_all() == rig.sent
    assert rig.append(b"more") == len(rig.sent) - 1
    rig.pump()
    assert rig.read_all() == rig.sent
    rig.close()


def test_not_visible_before_durable() -> None:
    """An offset is visible only when it is durable: neither a hot nor a cold read sees it before."""
    rig = Rig()
    rig.append(b"one")
    assert rig.stream.visible == 0
    assert rig.stream.hot(0)[0] == EMPTY
    assert StreamReader(rig.stream).read(0)[0] == EMPTY
    rig.disk.fail("sync", nth=4)
    rig.pump()
    if rig.stream.visible == 0:  # the sync that failed was the data's
        assert StreamReader(rig.stream).read(0)[0] == EMPTY
    rig.close(clean=False)


def test_failed_sync_is_latched() -> None:
    """After one failed sync nothing becomes visible and nothing more is taken, though later syncs would work."""
    rig = Rig()
    rig.append(b"one")
    assert rig.pump() == 1
    rig.append(b"two")
    rig.disk.fail("sync")
    rig.pump()
    assert rig.stream.visible == 1
    with pytest.raises(StoreError):
        rig.append(b"three")
    rig.pump()
    assert rig.stream.visible == 1
    assert rig.stream.hot(1)[0] == EMPTY
    rig.close(clean=False)


def test_reopen_reads_little() -> None:
    """Opening a stream of many containers reads no more than its last two, the first record of its first, and a header of each."""
    rig = Rig(65536)
    for number in range(3000):
        rig.append(b"x" * 400)
        if number % 100 == 0:
            rig.pump()
            rig.stream.maintain()
    rig.settle()
    assert rig.stream.container_count > 20
    rig.close()
    rig.open()
    assert rig.stream.visible == 3000
    assert rig.stream.opened_bytes < 8 * 65536 + 256 * 1024
    assert len(rig.read_all()) == 3000
    rig.close()


def test_clean_end_is_not_written_anew() -> None:
    """A stream whose end was proven opens without a single write, after a clean stop and after a kill."""
    rig = Rig()
    for _ in range(10):
        rig.append(b"body")
    rig.settle()
    for clean in (False, True, False):
        rig.close(clean)
        writes = rig.disk.calls.get("write", 0)
        rig.open()
        assert rig.disk.calls.get("write", 0) == writes
        assert rig.stream.visible == 10
    rig.append(b"on")
    assert rig.pump() == 11
    rig.reopen(clean=False)
    assert len(rig.read_all()) == 11
    rig.close()


def test_idle_streams_take_no_memory() -> None:
    """An idle stream gives back its hot window and its write buffers, is read from the disk then, and goes on where it was."""
    rig = Rig()
    for _ in range(50):
        rig.append(b"body" * 20)
    rig.pump()
    assert rig.stream.hot_bytes > 0
    rig.settle()
    rig.clock.advance(ms=20_000)
    rig.stream.maintain()
    assert rig.stream.hot_bytes == 0 and rig.space.hot_bytes == 0
    assert rig.stream.hot(10)[0] == COLD
    assert len(rig.read_all()) == 50
    assert rig.append(b"on") == 50
    rig.pump()
    assert rig.stream.hot(50)[0] == MESSAGES
    assert rig.read_all() == rig.sent
    rig.close()


def test_nothing_on_disk_before_the_first_message() -> None:
    """A stream that was never appended to has no file; a thousand of them cost nothing."""
    rig = Rig()
    for _ in range(3):
        rig.stream.maintain()
        rig.clock.advance(ms=11_000)
    assert rig.disk.list_dir(f"{STORE}/streams") == []
    rig.close()


def test_hot_window_is_bounded() -> None:
    """The hot window keeps its bytes: older messages go cold, the newest stay hot."""
    rig = Rig(hot=4096)
    for _ in range(100):
        rig.append(b"x" * 200)
        rig.pump()
    assert rig.space.hot_bytes <= 4096
    assert rig.stream.hot(0)[0] == COLD
    assert rig.stream.hot(99)[0] == MESSAGES
    rig.close()


TABLES = st.lists(
    st.tuples(
        st.binary(min_size=0, max_size=24),
        st.sampled_from(
            [
                (b"S", text(b"value")),
                (b"t", b"\1"),
                (b"I", b"\0\0\0\1"),
                (b"l", b"\0" * 8),
                (b"F", text(field(b"x-stream-offset", b"S", text(b"inner")))),
                (b"A", text(b"S" + text(b"x"))),
                (b"V", b""),
                (b"D", b"\0" * 5),
            ]
        ),
    ),
    max_size=5,
)


def fields_of(head: bytes, content_type: bytes) -> tuple[bytes, list[tuple[bytes, bytes, bytes]], bytes]:
    """(properties before the headers, top-level fields, properties behind) of a content header with headers."""
    at = 14 + (1 + len(content_type) if content_type else 0)
    size = struct.unpack_from(">I", head, at)[0]
    table, rest = head[at + 4 : at + 4 + size], head[at + 4 + size :]
    sizes = {b"t": 1, b"I": 4, b"l": 8, b"V": 0, b"D": 5}
    found = []
    while table:
        name, kind = table[1 : 1 + table[0]], table[1 + table[0] : 2 + table[0]]
        table = table[2 + len(name) :]
        length = sizes[kind] if kind in sizes else 4 + struct.unpack_from(">I", table)[0]
        found.append((name, kind, table[:length]))
        table = table[length:]
    return head[:12] + head[14:at], found, rest


@settings(max_examples=120, deadline=None)
@given(st.one_of(st.none(), TABLES), st.booleans(), st.sampled_from([b"", b"text/plain"]), st.booleans())
def test_offset_header(table: list | None, own: bool, content_type: bytes, filter_too: bool) -> None:
    """Consumers find x-stream-offset among the headers, once, beside everything the publisher put there; hot and cold alike."""
    rig = Rig(65536)
    rig.append(b"first")
    encoded = None
    wanted: list[tuple[bytes, bytes, bytes]] = []
    if table is not None:
        parts = [(name, kind, value) for name, (kind, value) in table if name != b"x-stream-offset"]
        wanted = list(parts)
        if filter_too:
            parts.append((b"x-stream-filter-value", b"S", text(b"green")))
            wanted.append(parts[-1])
        if own:
            parts.insert(len(parts) // 2, (b"x-stream-offset", b"S", text(b"the publisher's")))
        encoded = b"".join(field(*part) for part in parts)
    offset = rig.append(b"body", header(b"body", encoded, content_type))
    rig.pump()
    hot = rig.stream.hot(offset)[2][0]
    cold = StreamReader(rig.stream).read(offset, 1)[2][0]
    assert hot == cold
    before, fields, rest = fields_of(hot[3], content_type)
    assert fields == [*wanted, (b"x-stream-offset", b"l", struct.pack(">q", offset))]
    assert rest == b"\x02"
    assert before == header(b"body", encoded, content_type)[:12] + (bytes([len(content_type)]) + content_type if content_type else b"")
    if table is not None:
        expected = MESSAGES if filter_too else FILTERED
        assert rig.stream.hot(offset, values=[b"green"])[0] == expected
        assert StreamReader(rig.stream).read(offset, values=[b"green"])[0] == expected
    rig.close()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_header_bytes(head: bytes) -> None:
    """Header bytes of any kind are taken without reading past them, and are given back as they were when they mean nothing."""
    rig = Rig(65536)
    offset, _ = rig.stream.append(b"ex", b"key", head, b"body")
    rig.pump()
    hot, cold = rig.stream.hot(0)[2][0], StreamReader(rig.stream).read(0)[2][0]
    assert hot == cold
    assert hot[3] == head or offset_field(offset) in hot[3]
    rig.close()


VALUES = st.sampled_from([None, b"red", b"green", b"", b"r" * 300])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(VALUES, min_size=1, max_size=40),
    st.lists(VALUES.filter(lambda one: one is not None), max_size=3),
    st.booleans(),
    st.integers(1, 9),
)
def test_filters(values: list[bytes | None], chosen: list[bytes], unfiltered: bool, count: int) -> None:
    """A filter gives exactly the messages with one of its values, and those without one when asked for; hot and cold alike."""
    rig = Rig(16384)
    for value in values:
        rig.append(b"body", None if value is None else filtered(b"body", value))
    rig.pump()
    wanted = [at for at, value in enumerate(values) if (unfiltered if value is None else value in chosen)]
    for read in (rig.stream.hot, StreamReader(rig.stream).read):
        found, at = [], 0
        while at < len(values):
            outcome, following, items = read(at, count, 1 << 20, chosen, unfiltered)
            assert outcome in (MESSAGES, FILTERED) and following > at
            found += [one[0] for one in items]
            at = following
        assert found == wanted
    rig.close()


def test_bounds_of_a_read() -> None:
    """A read gives no more messages than asked for, no more bytes (but one message), and goes on exactly behind them."""
    rig = Rig(65536)
    for _ in range(20):
        rig.append(b"x" * 1000)
    rig.append(b"y" * 40_000)
    rig.pump()
    for read in (rig.stream.hot, StreamReader(rig.stream).read):
        assert [len(read(3, 5)[2]), read(3, 5)[1]] == [5, 8]
        assert [len(read(3, 100, 3500)[2]), read(3, 100, 3500)[1]] == [3, 6]
        assert [len(read(20, 100, 10)[2]), read(20, 100, 10)[1]] == [1, 21]
    rig.close()


def test_random_access() -> None:
    """A reader goes back and forth: each offset gives its own message, wherever the reader was before."""
    rig = Rig(8192)
    for number in range(300):
        rig.append(struct.pack("<I", number) * 20)
        if number % 7 == 0:
            rig.pump()
    rig.pump()
    reader = StreamReader(rig.stream)
    for step in range(600):
        at = (step * 7919) % 300
        outcome, following, items = reader.read(at, 2)
        assert outcome == MESSAGES and following == min(at + 2, 300)
        assert items[0][0] == at and items[0][4] == rig.sent[at]
        if step % 50 == 0:
            reader.rest()
    rig.close()


def test_time_search() -> None:
    """The offset of a time is the first message at or after it; before all it is the first one, after all the next one."""
    rig = Rig(8192)
    marks = []
    for number in range(5):
        for _ in range(40):
            rig.append(b"x" * 100)
        rig.pump()
        marks.append((time.time_ns() // 1_000_000 + 1, (number + 1) * 40))
        limit = time.monotonic_ns() + 3_000_000
        while time.monotonic_ns() < limit:
            pass
    reader = StreamReader(rig.stream)
    for at_ms, offset in marks:
        assert reader.find_time(at_ms) == offset
    assert reader.find_time(0) == 0
    assert reader.find_time(marks[0][0] - 100_000) == 0
    assert reader.find_time(marks[-1][0] + 100_000) == 200
    rig.reopen()
    reader = StreamReader(rig.stream)
    for at_ms, offset in marks:
        assert reader.find_time(at_ms) == offset
    rig.close()


def test_retention_by_size() -> None:
    """Whole containers go, oldest first, until the stream is within its bytes; readers below the first kept one are told where it is."""
    rig = Rig(8192)
    for _ in range(400):
        rig.append(b"x" * 200)
        rig.pump()
        rig.stream.maintain()
    rig.settle()
    before = rig.stream.bytes
    assert rig.stream.retain(40_000, 0) > 0
    assert rig.stream.bytes <= 40_000 < before
    first = rig.stream.first
    assert first > 0
    assert rig.stream.hot(first - 1) == (TRUNCATED, first, [])
    assert StreamReader(rig.stream).read(0) == (TRUNCATED, first, [])
    assert sorted(rig.read_all()) == list(range(first, 400))
    assert rig.stream.retain(40_000, 0) == 0
    rig.reopen()
    assert rig.stream.first == first
    assert sorted(rig.read_all()) == list(range(first, 400))
    assert rig.stream.retain(1, 0) > 0
    assert rig.stream.container_count >= 1
    assert rig.append(b"on") == 400
    rig.pump()
    assert max(rig.read_all()) == 400
    rig.close()


def test_retention_by_age() -> None:
    """Containers go when their last message is too old, never the one that is written to."""
    rig = Rig(8192)
    for _ in range(200):
        rig.append(b"x" * 200)
        rig.pump()
        rig.stream.maintain()
    rig.settle()
    assert rig.stream.retain(0, 60_000) == 0
    rig.clock.advance(ms=120_000)
    assert rig.stream.retain(0, 60_000) > 3
    first = rig.stream.first
    assert 0 < first < 200
    assert sorted(rig.read_all()) == list(range(first, 200))
    rig.close()


def test_retention_under_a_reader() -> None:
    """A reader in the middle of containers that go is told TRUNCATED, and what it was given before stays good."""
    rig = Rig(8192)
    for _ in range(300):
        rig.append(b"x" * 200)
        rig.pump()
        rig.stream.maintain()
    rig.settle()
    reader = StreamReader(rig.stream)
    assert reader.read(5, 3)[0] == MESSAGES
    rig.stream.retain(20_000, 0)
    outcome, following, items = reader.read(8, 3)
    assert (outcome, following, items) == (TRUNCATED, rig.stream.first, [])
    assert reader.read(following, 3)[0] == MESSAGES
    rig.close()


def test_delete() -> None:
    """A deleted stream gives and takes nothing, and its files go when the writer has let it go."""
    rig = Rig()
    for _ in range(20):
        rig.append(b"x" * 1000)
    rig.pump()
    rig.append(b"not written")
    reader = StreamReader(rig.stream)
    rig.stream.delete()
    assert reader.read(0)[0] == GONE
    with pytest.raises(StoreError):
        rig.append(b"late")
    assert rig.stream.hot(0)[0] == GONE
    rig.writer.flush()
    assert rig.stream.finish()
    assert rig.disk.list_dir(f"{STORE}/streams/{QUEUE}") == []


def test_real_files(tmp_path: object) -> None:
    """The same on the operating system's files: append, read, reopen, delete, nothing left."""
    rig = Rig(524288, OsFiles(), root=str(tmp_path))
    for number in range(3000):
        rig.append(b"%d" % number * 30)
    rig.append(b"z" * 2_000_000)
    rig.pump()
    rig.reopen()
    assert rig.read_all() == rig.sent
    rig.stream.delete()
    rig.writer.flush()
    assert rig.stream.finish()
    assert OsFiles().list_dir(f"{tmp_path}/streams") == []


@pytest.mark.parametrize("flushes", [1, 2])
@pytest.mark.parametrize("size", [12, 9_000])
def test_a_message_that_a_crash_cut_off_does_not_hide_the_one_that_got_its_offset(flushes: int, size: int) -> None:
    """Retention asks for the first offset of a container that begins in the midst of the broken one."""
    rig = Rig()
    rig.append(bytes(6_000))
    rig.pump()
    rig.append(bytes(40_000))
    for _ in range(flushes):
        if rig.writer.flush() != PROGRESS:
            rig.stream.prepare()
    assert rig.stream.visible == 1
    rig.reopen(clean=False)
    assert rig.append(bytes(size)) == 1
    rig.pump()
    rig.reopen(clean=False)
    rig.clock.advance(ms=10_000)
    for _ in range(3):
        rig.stream.maintain(0, 3_000)
        rig.pump()
    assert rig.stream.first <= 1 and rig.read_all()[1] == bytes(size)
    rig.close()
