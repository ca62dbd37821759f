"""The parts of a stream by key: every message belongs to exactly one, all of a key to the same one, in order; Kafka's hash."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from flintmq.arrow.keys import KeyPart, hash_of
from flintmq.arrow.streams import StreamDamaged, StreamFiles
from tests.arrow.test_streams import Row, containers, files_of, rig_on, rows_of, tell
from tests.store_stream.rig import Rig, field, header, text

# Of Kafka's own tests of its hash (org.apache.kafka.common.utils.UtilsTest).
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def part_of(key: bytes, parts: int) -> int:
    return (hash_of(key) & 0x7FFFFFFF) % parts


def by_part(files: StreamFiles, first: int, upto: int, column: str, parts: int, **more: object) -> list[list[Row]]:
    return [rows_of(files, first, upto, part=KeyPart(column, part, parts), **more) for part in range(parts)]


def keyed(rig: Rig, count: int, size: int = 40) -> None:
    """Messages whose header `user` is their number modulo 7, but for every tenth, which has none."""
    for number in range(count):
        body = b"%d " % number + os.urandom(size)
        fields = field(b"user", b"S", text(b"u%d" % (number % 7))) if number % 10 else field(b"other", b"S", text(b"u1"))
        rig.append(body, header(body, fields))


def test_the_hash_is_kafkas() -> None:
    assert {key: struct.unpack("i", struct.pack("I", hash_of(key)))[0] for key in KAFKA} == KAFKA
    assert hash_of(b"") == 275646681


@pytest.mark.parametrize("parts", [1, 2, 5, 64])
def test_parts_are_the_range_and_a_key_has_one_of_them(tmp_path: Path, parts: int) -> None:
    rig = rig_on(tmp_path)
    keyed(rig, 300)
    rig.append(os.urandom(30_000))  # chunks in several containers, and no header
    rig.settle()
    files = files_of(rig)
    found = by_part(files, 5, 301, "headers.user", parts)
    everything = rows_of(files, 5, 301)
    assert sorted((row for rows in found for row in rows), key=lambda row: row["position"]) == everything
    for part, rows in enumerate(found):
        offsets = [row["position"] for row in rows]
        assert offsets == sorted(offsets)
        for row in rows:
            key = dict(row["headers"] or ()).get("user")
            assert part == (row["position"] % parts if key is None else part_of(key.encode(), parts)), row
    rig.close()


def test_each_column_is_a_key(tmp_path: Path) -> None:
    """Properties stand behind one another: each is found with any others in front of it."""
    names = {"content_type": 15, "content_encoding": 14, "correlation_id": 10, "reply_to": 9, "message_id": 7, "type": 5, "user_id": 4}
    names |= {"app_id": 3, "cluster_id": 2}
    rig = rig_on(tmp_path)
    heads = []
    for without in (None, *names):
        flags, values = 0x2000 | 0x1000 | 0x0800 | 0x0100 | 0x0040, b""
        fields = field(b"k", b"S", text(b"v"))
        for bit in range(15, 1, -1):
            name = next((one for one, place in names.items() if place == bit), "")
            if name and name != without:
                flags |= 1 << bit
                values += bytes([len(name)]) + name.encode()
            values += {13: struct.pack(">I", len(fields)) + fields, 12: b"\x02", 11: b"\x04", 8: b"\x0260", 6: bytes(8)}.get(bit, b"")
        heads.append(struct.pack(">HHQH", 60, 0, 0, flags) + values)
    for head in heads:
        rig.append(b"", head)
    rig.settle()
    files = files_of(rig)
    everything = rows_of(files, 0, len(heads))
    assert everything[0]["cluster_id"] == "cluster_id", "the heads can be read"
    for place, name in enumerate(names, 1):
        for rows, part in zip(by_part(files, 0, len(heads), name, 97), range(97), strict=True):
            offsets = [at for at in range(len(heads)) if (at % 97 if at == place else part_of(name.encode(), 97)) == part]
            assert [row["position"] for row in rows] == offsets, name
    rig.close()


def test_values_that_are_no_text_are_keys_and_broken_headers_are_none(tmp_path: Path) -> None:
    rig = rig_on(tmp_path)
    one, two = field(b"k", b"l", struct.pack(">q", 1)), field(b"k", b"l", struct.pack(">q", 2))
    nothing, table = field(b"k", b"V", b""), field(b"k", b"F", struct.pack(">I", 0))
    heads = [header(b"", one), header(b"", two), header(b"", nothing), header(b"", table), header(b"", one + two), header(b"", two + one)]
    for head in heads:
        rig.append(b"", head)
    rig.settle()
    keys = [b"l" + struct.pack(">q", 1), b"l" + struct.pack(">q", 2), None, b"F\0\0\0\0", b"l" + struct.pack(">q", 1)]
    keys.append(b"l" + struct.pack(">q", 2))  # the first field of a name counts
    for part, rows in enumerate(by_part(files_of(rig), 0, 6, "headers.k", 13)):
        wanted = [at for at, key in enumerate(keys) if (at % 13 if key is None else part_of(key, 13)) == part]
        assert [row["position"] for row in rows] == wanted
    rig.close()


def test_a_part_with_few_messages_is_read_in_pieces(tmp_path: Path) -> None:
    """So that nobody waits for a reader that passes over everything, and its caller hears of it."""
    rig = rig_on(tmp_path)
    keyed(rig, 400, size=1_000)
    rig.settle()
    files = files_of(rig)
    part = next(part for part in range(64) if part not in {part_of(b"u%d" % number, 64) for number in range(7)})
    batches = list(files.batches(0, 400, queue="s", columns=["position"], part=KeyPart("headers.user", part, 64), bytes_max=20_000))
    assert len(batches) >= 400 * 1_000 // 44_000, "a piece is two batches of bytes and one message at most"
    assert [row["position"] for batch in batches for row in batch.to_pylist()] == [at for at in range(0, 400, 10) if at % 64 == part]
    rig.close()


def test_damage_is_told_to_every_part_and_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    rig = rig_on(tmp_path, 64 * 1024)
    keyed(rig, 200)
    rig.settle()
    files = files_of(rig)
    place = files.place(100)[0]
    path = containers(rig)[0]
    raw = bytearray(path.read_bytes())
    raw[(place % rig.size) + 60] ^= 0xFF
    path.write_bytes(bytes(raw))
    tell(rig, files)
    whole = rows_of(files_of(rig), 0, 200, tolerant=True)
    assert len(whole) < 200
    for part in range(3):
        with pytest.raises(StreamDamaged):
            rows_of(files_of(rig), 0, 200, part=KeyPart("headers.user", part, 3))
    found = by_part(files_of(rig), 0, 200, "headers.user", 3, tolerant=True)
    assert sorted(row["position"] for rows in found for row in rows) == [row["position"] for row in whole]
    rig.close()


@pytest.mark.parametrize(
    "wrong", [("position", 0, 2), ("headers.", 0, 2), ("headers", 0, 2), ("headers." + "x" * 256, 0, 2), ("body", 0, 1)]
)
def test_what_is_no_key_is_refused(wrong: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match="a key must be"):
        KeyPart(*wrong)


@pytest.mark.parametrize("wrong", [(-1, 2), (2, 2), (0, 0)])
def test_a_part_is_one_of_the_parts(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="part"):
        KeyPart("type", *wrong)
