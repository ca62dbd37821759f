"""A stream's containers become record batches: what C's own reader gives, by offset, range, time and place; damage is never passed over."""

from __future__ import annotations

import bisect
import os
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.arrow.streams import StreamDamaged, StreamFiles
from flintmq.store.log.file_port import OsFiles
from tests.store_stream.rig import QUEUE, UUID, Rig, field, filtered, header, text

Row = dict[str, Any]


def rig_on(root: Path, size: int = 8192) -> Rig:
    return Rig(size, OsFiles(), root=str(root))


def files_of(rig: Rig, memory: int = 0) -> StreamFiles:
    """A reader that knows what the broker would tell."""
    files = StreamFiles(f"{rig.root}/streams/{QUEUE}", UUID, rig.size, memory)
    tell(rig, files)
    return files


def tell(rig: Rig, files: StreamFiles) -> None:
    files.bounds(rig.stream.managed.durable_lsn)


def containers(rig: Rig) -> list[Path]:
    return sorted(Path(rig.root, "streams", str(QUEUE)).glob("*.flog"))


def rows_of(files: StreamFiles, first: int, upto: int, **more: Any) -> list[Row]:
    found: list[Row] = []
    for batch in files.batches(first, upto, queue="s", **more):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def bodies(rows: list[Row]) -> dict[int, bytes]:
    assert [row["position"] for row in rows] == sorted({row["position"] for row in rows})
    return {row["position"]: row["body"] for row in rows}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 600), st.integers(1, 12)),
        st.tuples(st.just("append"), st.integers(3_000, 30_000), st.just(1)),
        st.sampled_from([("pump",), ("settle",), ("reopen",)]),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 1 << 30))
def test_any_range_of_any_stream_is_what_was_appended(script: list[Any], seed: int) -> None:
    """Containers of 8 KiB: most large messages are chunks in several. One reader is used while the stream grows, and starts anywhere."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        rig = rig_on(Path(directory))
        kept: StreamFiles | None = None
        for step, *rest in [*script, ("pump",)]:
            if step == "append":
                for _ in range(rest[1]):
                    rig.append(rng.randbytes(rest[0]))
            elif step == "pump":
                rig.pump()
            elif step == "settle":
                rig.settle()
            else:
                rig.reopen()
            visible = rig.stream.visible
            if not visible:
                continue
            kept = kept or files_of(rig)
            tell(rig, kept)
            if rng.random() < 0.3:
                kept.close()
            for _ in range(3):
                first = rng.randint(0, visible)
                upto = rng.randint(first, visible)
                rows = rows_of(kept, first, upto, rows_max=rng.choice([1, 7, 10_000]), bytes_max=rng.choice([1, 5_000, 1 << 30]))
                assert bodies(rows) == {offset: rig.sent[offset] for offset in range(first, upto)}
        assert kept is None or bodies(rows_of(kept, 0, rig.stream.visible)) == rig.read_all()
        rig.close()


def test_a_batch_keeps_its_bounds_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    for number in range(50):
        rig.append(bytes([number]) * 100)
    rig.pump()
    batches = list(files_of(rig).batches(3, 45, queue="s", rows_max=10, bytes_max=500))
    assert [batch.num_rows for batch in batches] == [5] * 8 + [2]
    assert [row for batch in batches for row in batch.column("position").to_pylist()] == list(range(3, 45))
    rig.close()


def test_columns_are_those_of_a_queue_and_headers_as_they_were_published(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    rig.append(b"plain")
    rig.append(b"valued", filtered(b"valued", b"green"))
    rig.append(b"own", header(b"own", field(b"n", b"S", text(b"5")), b"text/plain"))
    rig.pump()
    plain, valued, own = rows_of(files_of(rig), 0, 3)
    assert (plain["queue"], plain["exchange"], plain["routing_key"], plain["position"]) == ("s", "ex", "key", 0)
    assert (plain["redelivered"], plain["delivery_count"], plain["headers"], plain["delivery_mode"]) == (False, 0, None, 2)
    assert plain["published_time"] == plain["enqueued_time"] and plain["lsn"] < valued["lsn"] < own["lsn"]
    assert dict(valued["headers"]) == {"x-stream-filter-value": "green"}
    assert dict(own["headers"]) == {"n": "5"} and own["content_type"] == "text/plain"
    (few,) = rows_of(files_of(rig), 1, 2, columns=["position", "body"], body="prefix:3")
    assert few == {"position": 1, "body": b"val"}
    with pytest.raises(ValueError, match="no such column"):
        rows_of(files_of(rig), 0, 1, columns=["wrong"])
    rig.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 5_000), st.booleans()), min_size=1, max_size=60), st.data())
def test_places_and_times_are_found(messages: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """The offset behind an LSN and the offset since a time are those that a plain search over all rows finds."""
    with tempfile.TemporaryDirectory() as directory:
        rig = rig_on(Path(directory))
        for size, wait_ms, pump in messages:
            rig.append(b"x" * size)
            rig.clock.advance(ms=wait_ms)
            if pump:
                rig.pump()
        rig.pump()
        files = files_of(rig)
        rows = rows_of(files, 0, rig.stream.visible, columns=["lsn", "position", "published_time"])
        lsns = [row["lsn"] for row in rows]
        times = [round(row["published_time"].timestamp() * 1_000_000) for row in rows]
        for _ in range(6):
            offset = data.draw(st.integers(0, len(rows) - 1))
            assert files.place(offset) == (lsns[offset], times[offset])
            lsn = lsns[offset] + data.draw(st.integers(-40, 40))
            found = bisect.bisect_left(lsns, lsn)
            assert files.offset_behind(lsn) == (found if found < len(lsns) else None)
            when = times[offset] + data.draw(st.integers(-3_000_000, 3_000_000))
            found = bisect.bisect_left(times, when)
            assert files.offset_since(when) == (found if found < len(times) else None)
        assert bodies(rows_of(files, 0, len(rows))) == rig.sent
        rig.close()


def test_what_is_appended_later_is_read_by_the_same_reader_and_what_is_not_durable_is_not(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    rig.append(b"a")
    rig.pump()
    files = files_of(rig)
    assert bodies(rows_of(files, 0, 1)) == {0: b"a"}
    rig.append(b"b")
    with pytest.raises(StreamDamaged, match="offset 1 can't be read: nothing durable"):
        rows_of(files, 0, 2)
    rig.pump()
    tell(rig, files)
    assert bodies(rows_of(files, 1, 2)) == {1: b"b"}
    rig.close()


def test_a_message_that_was_never_finished_is_left_out(tmp_path: Path) -> None:
    """A crash in the middle of a long message: its first chunks may be there; the next message has its offset."""
    rig = rig_on(tmp_path)
    rig.append(b"first")
    rig.pump()
    rig.append(b"x" * 40_000)
    rig.writer.flush()  # what fits into the one container that is there
    rig.close(clean=False)
    del rig.sent[1]
    rig.open()
    assert rig.stream.visible == 1
    rig.append(b"second")
    rig.pump()
    assert bodies(rows_of(files_of(rig), 0, 2)) == {0: b"first", 1: b"second"}
    rig.close()


def damage(rig: Rig, body: bytes) -> None:
    """Flips a bit in the one place where these bytes stand."""
    for path in containers(rig):
        data = bytearray(path.read_bytes())
        at = data.find(body)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("the body stands in no container")


def test_damage_is_an_error_that_names_the_offset_and_the_rest_is_there_for_who_asks(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    for number in range(200):
        rig.append(b"<%03d>" % number * 20)
        if number % 9 == 0:
            rig.pump()
    rig.settle()
    damage(rig, b"<077>" * 20)
    files = files_of(rig)
    seen: list[int] = []
    with pytest.raises(StreamDamaged, match="offset 77 ") as error:
        for batch in files.batches(60, 200, queue="s", rows_max=4):
            seen += batch.column("position").to_pylist()
    assert seen == list(range(60, 77)) and error.value.offset == 77
    assert bodies(rows_of(files, 78, 200)) == {offset: rig.sent[offset] for offset in range(78, 200)}
    left = bodies(rows_of(files, 0, 200, tolerant=True))
    assert left == {offset: body for offset, body in rig.sent.items() if offset != 77} and files.lost == 1
    rig.close()


def test_a_container_that_is_gone_is_an_error_or_counted(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    for number in range(300):
        rig.append(b"%d" % number * 50)
    rig.settle()
    one = containers(rig)[2]
    files = files_of(rig)
    everything = rows_of(files, 0, 300, columns=["position", "lsn"])
    gone = [row["position"] for row in everything if row["lsn"] // rig.size == int(one.stem)]
    one.unlink()
    files = files_of(rig)
    with pytest.raises(StreamDamaged) as error:
        rows_of(files, 0, 300)
    assert error.value.offset == gone[0]
    left = bodies(rows_of(files, 0, 300, tolerant=True))
    assert files.lost == 300 - len(left) and set(range(300)) - set(left) >= set(gone)
    assert len(left) >= 300 - len(gone) - 2 and all(left[offset] == rig.sent[offset] for offset in left)
    rig.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_no_bit_that_flips_makes_a_wrong_row(seed: int) -> None:
    """Whatever is damaged: rows are right, in order, and with `lost` they add up; without tolerance they stop at an error."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        rig = rig_on(Path(directory))
        for number in range(60):
            rig.append(rng.randbytes(rng.choice([0, 10, 300, 9_000 if number % 20 == 7 else 50])))
            if rng.random() < 0.3:
                rig.pump()
        rig.settle()
        for _ in range(rng.randint(1, 4)):
            path = rng.choice(containers(rig))
            data = bytearray(path.read_bytes())
            for _ in range(rng.choice([1, 1, 40])):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        files = files_of(rig)
        left = bodies(rows_of(files, 0, 60, tolerant=True))
        assert len(left) + files.lost == 60
        assert all(rig.sent[offset] == body for offset, body in left.items())
        strict: list[Row] = []
        try:
            for batch in files.batches(0, 60, queue="s", rows_max=5):
                strict += batch.to_pylist()
        except StreamDamaged as error:
            assert error.offset == len(strict) and error.offset not in left
        else:
            assert len(left) == 60
        assert bodies(strict) == {offset: rig.sent[offset] for offset in range(len(strict))}
        rig.close()


def filled(root: Path, count: int, size: int) -> Rig:
    rig = rig_on(root, size)
    for number in range(count):
        rig.append(b"%06d" % number + bytes(1_500))
    rig.pump()
    return rig


def open_containers() -> set[int]:
    """Descriptors of this process."""
    names = os.listdir("/proc/self/fd")
    return {int(name) for name in names if os.path.realpath(f"/proc/self/fd/{name}").endswith(".flog")}


def test_what_could_not_be_read_is_read_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """A failed read leaves nothing behind that counts as the container's bytes."""
    rig = filled(tmp_path, 300, 1 << 20)
    files = files_of(rig, 1 << 24)
    before = open_containers()
    assert len(rows_of(files, 0, 1, bytes_max=1)) == 1
    (place,) = open_containers() - before
    kept, broken = os.dup(place), os.open(tmp_path, os.O_RDONLY)
    try:
        os.dup2(broken, place)  # a directory: reads of it fail
        with pytest.raises(OSError, match="cannot read the log"):
            rows_of(files, 200, 300)
        os.dup2(kept, place)
        assert [row["body"][:6] for row in rows_of(files, 0, 300)] == [b"%06d" % number for number in range(300)]
    finally:
        os.close(kept)
        os.close(broken)


def test_a_close_waits_until_what_is_being_read_was_read(tmp_path: Path) -> None:
    """Its memory goes under the feet of nobody, whoever closes."""
    rig = filled(tmp_path, 200, 1 << 19)
    files = files_of(rig)
    over = threading.Event()

    def close() -> None:
        while not over.is_set():
            files.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        for number in range(100):
            assert [row["position"] for row in rows_of(files, number, 200, rows_max=20)] == list(range(number, 200))
            lsn, _ = files.place(number)
            assert files.offset_behind(lsn) == number
    finally:
        over.set()
        closer.join()
