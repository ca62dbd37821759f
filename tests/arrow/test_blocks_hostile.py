"""Batches of clients that contradict themselves: refused with a name, by the compiled reader alone and by the service."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from flintmq.arrow import blocks
from flintmq.arrow.blocks import EncodeError, EncodeOptions, Encoder, blocks_of
from tests.arrow import hostile
from tests.arrow.hostile import column, good_batch, over_memory, with_buffer_size, with_number
from tests.support.blocks import block_entries


def encoded(batch: pa.RecordBatch) -> list[bytes]:
    """Bodies, by the compiled reader alone: pyarrow's check is not asked."""
    encoder, found = Encoder(batch, EncodeOptions(), 0), []
    while block := encoder.block():
        found += [entry.body for entry in block_entries(block[1], len(block[0]))]
    return found


def refused(batch: pa.RecordBatch, name: str) -> str:
    """Both refuse it: the compiled reader names the column."""
    with pytest.raises(EncodeError):
        list(blocks_of(batch))
    with pytest.raises(EncodeError) as caught:
        encoded(batch)
    assert caught.value.column == name and caught.value.row is None
    return caught.value.text


def test_the_good_batch_is_good() -> None:
    assert encoded(good_batch()) == good_batch()["body"].to_pylist()


@pytest.mark.parametrize("name", ["body", "routing_key", "message_id", "headers_raw", "headers"])
@pytest.mark.parametrize(("index", "value"), [(1, -1), (1, -(2**31)), (0, -5), (2, 2**31 - 1), (5, 2**31 - 1), (5, 4096), (3, 0), (0, 90)])
def test_offsets_of_every_column(name: str, index: int, value: int) -> None:
    """Negative ones, ones that go down, and ones behind the data (a map's: behind its entries)."""
    batch = good_batch()
    array = with_number(batch[name], 1, index, value)
    if array.equals(batch[name]) and value == 0:  # this column has that offset
        array = with_number(batch[name], 1, index, -7)
    refused(column(batch, name, array), name)


@pytest.mark.parametrize("part", ["keys", "items"])
@pytest.mark.parametrize(("index", "value"), [(1, -1), (2, 2**31 - 1), (4, 4096), (2, 0), (0, 90)])
def test_offsets_of_the_names_and_values_of_headers(part: str, index: int, value: int) -> None:
    batch = good_batch()
    headers = batch["headers"]
    parts = {"keys": headers.keys, "items": headers.items}
    parts[part], memory = over_memory(parts[part], 1)
    pairs = pa.StructArray.from_arrays([parts["keys"], parts["items"]], fields=list(headers.type.field(0).type))
    made = pa.Array.from_buffers(headers.type, len(headers), headers.buffers()[:2], headers.null_count, 0, [pairs])
    struct.pack_into("<i", memory, 4 * index, value)
    refused(column(batch, "headers", made), "headers")


@pytest.mark.parametrize("rows", [1, 7])
def test_headers_whose_entries_are_fewer_than_their_offsets_say(rows: int) -> None:
    """The names, or the values, of a map end before its last offset."""
    offsets = pa.array(list(range(rows + 1)), pa.int32())
    headers = pa.MapArray.from_arrays(offsets, pa.array(["k"] * rows), pa.array(["v"] * rows))
    fewer = pa.StructArray.from_arrays([headers.keys[: rows - 1], headers.items[: rows - 1]], fields=list(headers.type.field(0).type))
    memory = bytearray(pa.array([0] * (rows + 1), pa.int32()).buffers()[1].to_pybytes())
    made = pa.Array.from_buffers(headers.type, rows, [None, pa.py_buffer(memory)], 0, 0, [fewer])
    batch = pa.record_batch([pa.array([b"b"] * rows), made], ["body", "headers"])
    memory[:] = offsets.buffers()[1].to_pybytes()
    refused(batch, "headers")


def test_buffers_that_are_too_short() -> None:
    """Offsets, numbers and validity bits of fewer rows than the batch has, the data before their end, and none at all."""
    rows = 100
    bodies = pa.array([b"x%d" % n for n in range(rows)], pa.binary())
    batch = pa.record_batch({"body": bodies})
    for size in (0, 4, rows * 4):
        refused(with_buffer_size(batch, (rows + 1) * 4, size), "body")
    refused(with_buffer_size(batch, bodies.buffers()[2].size if bodies.buffers()[2].size % 8 == 0 else 290, 1), "body")
    batch = pa.record_batch({"body": bodies, "priority": pa.array([None, *[1] * (rows - 1)], pa.int64())})
    for size in (0, 8, rows * 8 - 8):
        refused(with_buffer_size(batch, rows * 8, size), "priority")
    refused(with_buffer_size(batch, (rows + 7) // 8, 12), "priority")
    refused(with_buffer_size(batch, (rows + 7) // 8, 1), "priority")


def test_columns_of_another_length_than_the_batch() -> None:
    """The number of rows stands in the batch, and again in each column."""
    stream = hostile.ipc_of(pa.record_batch({"body": [b"ab"] * 77, "app_id": ["bc"] * 77}))
    counts = [at for at in range(0, len(stream) - 8, 8) if int.from_bytes(stream[at : at + 8], "little") == 77]
    for at in counts:
        for rows in (78, 10_000, 2**31, 2**40, 2**62):
            changed = bytearray(stream)
            changed[at : at + 8] = rows.to_bytes(8, "little")
            try:
                batch = hostile.batch_of(changed)
            except (pa.ArrowException, OSError):
                continue
            with pytest.raises(EncodeError):
                encoded(batch)
            with pytest.raises(EncodeError):
                list(blocks_of(batch))


@pytest.mark.parametrize("start", range(hostile.ROWS + 1))
def test_slices_begin_in_the_middle_of_their_buffers(start: int) -> None:
    batch = good_batch().slice(start)
    assert encoded(batch) == batch["body"].to_pylist()
    wrong = column(good_batch(), "body", with_number(good_batch()["body"], 1, 4, 2**30)).slice(start)
    if start < hostile.ROWS:
        refused(wrong, "body")


def test_dictionaries_whose_indices_are_not_in_them() -> None:
    """Pyarrow reads behind a dictionary that it was not asked to check."""
    array = pa.array([b"a", b"b", b"a"]).dictionary_encode()
    memory = bytearray(array.indices.buffers()[1].to_pybytes())
    wrong = pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(memory)]), array.dictionary)
    memory[4:8] = (2**30).to_bytes(4, "little")
    with pytest.raises(EncodeError):
        list(blocks_of(pa.record_batch([wrong], ["body"])))


def test_what_repeats_itself_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary's value, or the bytes behind views, may stand for any number of rows: the sum is known before it is made."""
    monkeypatch.setattr(blocks, "DECODED_MAX", 1_000_000)
    value, rows = b"v" * 1000, 1001
    for dictionary in (
        pa.array([value]),
        pa.array([value], pa.large_binary()),
        pa.array([value], pa.binary_view()),
        pa.array([value], pa.binary(1000)),
    ):
        many = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), dictionary)
        with pytest.raises(EncodeError, match="1001000 bytes in all"):
            list(blocks_of(pa.record_batch([many], ["body"])))
        assert sum(len(block) for _, block in blocks_of(pa.record_batch([many[:10]], ["body"]))) > 10_000
    one = pa.array([value], pa.binary_view()).buffers()
    many = pa.Array.from_buffers(pa.binary_view(), rows, [None, pa.py_buffer(one[1].to_pybytes()[:16] * rows), one[2]])
    with pytest.raises(EncodeError, match="1001000 bytes in all"):
        list(blocks_of(pa.record_batch([many], ["body"])))
    keys = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int16()), pa.array(["k" * 1000]))
    headers = pa.MapArray.from_arrays(pa.array([0, rows], pa.int32()), keys, pa.array(["v"] * rows))
    with pytest.raises(EncodeError, match="1001000 bytes in all"):
        list(blocks_of(pa.record_batch([pa.array([b"b"]), headers], ["body", "headers"])))


@pytest.mark.parametrize("field", range(4))
@pytest.mark.parametrize("value", [-1, 13, 2**31 - 1, -(2**31)])
def test_views_that_show_what_is_not_there(field: int, value: int) -> None:
    """Length, prefix, buffer and offset of a view; where the row is null nobody looks at its view (pyarrow's cast does, and dies)."""
    good = [None, b"short", b"a value of more than twelve bytes", b"last"]
    views, bits, data = (pa.array(good, pa.binary_view()).buffers()[i] for i in (1, 0, 2))
    for row, refuses in ((2, True), (0, False)):
        memory = bytearray(views.to_pybytes())
        array = pa.Array.from_buffers(pa.binary_view(), 4, [bits, pa.py_buffer(memory), data], 1)
        batch = pa.record_batch([pa.array([b"x"] * 4), array], ["body", "headers_raw"])
        struct.pack_into("<i", memory, 16 * row + 4 * field, value)
        if refuses and field != 1 and value != 13:
            with pytest.raises(EncodeError):
                Encoder(batch, EncodeOptions(), 0)
        elif not refuses:
            with pytest.raises(EncodeError, match="row 1"):  # no field table, which is what comes first now
                list(blocks_of(batch))


@pytest.mark.parametrize("start", range(5))
def test_views_are_read_as_they_are(start: int) -> None:
    """Short and long ones, in a slice of their array too."""
    values = [b"", b"twelve bytes", b"thirteen byte", b"\xc3\xa4" * 30, b"x"]
    for kind in (pa.string_view(), pa.binary_view()):
        array = pa.array([one.decode() for one in values] if kind == pa.string_view() else values, kind).slice(start)
        assert encoded(pa.record_batch([array], ["body"])) == values[start:]


@pytest.mark.parametrize(
    "array",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array(["a"])),
        pa.array([["a"]] * 3),
        pa.array([{"a": "b"}] * 3),
        pa.array([1.5] * 3),
        pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int8()), pa.array([1.5])),
        pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int8()), pa.array([["a"]])),
    ],
)
def test_types_that_are_not_read(array: pa.Array) -> None:
    for name in ("body", "app_id", "headers", "priority", "timestamp", "expiration", "headers_raw"):
        columns = {"body": pa.array([b"b"] * 3), name: array}
        with pytest.raises(EncodeError):
            list(blocks_of(pa.record_batch(columns)))


@pytest.mark.parametrize("value", ["\ud800", 1.5, None, {"a": 1}, True, [1]])
def test_constants_of_a_client(value: Any) -> None:
    """JSON has more than a property can be."""
    for name in ("app_id", "priority", "body"):
        with pytest.raises(EncodeError):
            list(blocks_of(pa.record_batch({"body": ["b"]}), EncodeOptions(constants={name: value})))
    with pytest.raises(EncodeError):
        list(blocks_of(pa.record_batch({"body": ["b"]}), EncodeOptions(constants={"timestamp": 2**70})))


@pytest.mark.parametrize("seed", range(120))
def test_mutated_batches_become_blocks_or_errors(seed: int) -> None:
    """Nothing but EncodeError, and what comes out are whole entries: the compiled reader alone, then with pyarrow's check and casts."""
    rng = random.Random(seed)
    stream = hostile.ipc_of(good_batch() if seed % 2 else hostile.any_batch(rng))
    try:
        batch = hostile.batch_of(hostile.mutated(rng, stream, rng.randrange(1, 6)))
    except (pa.ArrowException, OSError, EOFError, StopIteration, MemoryError):
        return
    if seed % 2:  # the types of the good batch are read without pyarrow's kernels
        with contextlib.suppress(EncodeError, UnicodeDecodeError):
            encoded(batch)
    with contextlib.suppress(EncodeError):
        for routes, block in blocks_of(batch):
            assert all(entry.route < len(routes) for entry in block_entries(block, len(routes)))
