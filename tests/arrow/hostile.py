"""Record batches that contradict themselves, as a client may send them: good ones whose buffers, or whose lengths, are changed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_PAIR = struct.Struct("<qq")
ROWS = 5


def good_batch() -> pa.RecordBatch:
    """A batch with a column of each type that the sink reads without a cast, and nulls in all but the body."""
    headers = [[("a", "1"), ("bc", None)], None, [], [("k", "v" * 40)], [("x", "y")]]
    return pa.record_batch(
        {
            "body": pa.array([b"one", b"", b"three" * 20, b"4", b"five"], pa.binary()),
            "routing_key": pa.array(["r1", None, "r2", "r1", ""], pa.string()),
            "message_id": pa.array(["m", "n", None, "o", "p"], pa.string()),
            "priority": pa.array([1, None, 3, 4, 5], pa.int64()),
            "headers_raw": pa.array([None, b"\0\0\0\x04\x01aB\x07", None, None, None], pa.binary()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
        }
    )


def ipc_of(batch: pa.RecordBatch) -> bytearray:
    """The batch as a client sends it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytearray(sink.getvalue())


def batch_of(stream: bytes | bytearray) -> pa.RecordBatch:
    """What pyarrow makes of it; nothing is validated."""
    return pa.ipc.open_stream(pa.py_buffer(bytes(stream))).read_next_batch()


def with_buffer_size(batch: pa.RecordBatch, size: int, new: int, which: int = 0) -> pa.RecordBatch:
    """The batch, one of whose buffers says to have `new` bytes instead of `size`: the `which`-th of that size."""
    stream = ipc_of(batch)
    found = [at for at in range(0, len(stream) - 16, 8) if _is_buffer(stream, at, size)]
    struct.pack_into("<q", stream, found[which] + 8, new)
    return batch_of(stream)


def _is_buffer(stream: bytearray, at: int, size: int) -> bool:
    offset, length = _PAIR.unpack_from(stream, at)
    return bool(length == size and 0 <= offset < len(stream) and offset % 8 == 0)


def with_number(array: pa.Array, buffer: int, index: int, value: int, form: str = "<i") -> pa.Array:
    """The array, one of whose numbers (by its buffer, and its index there) is another one; made so that pyarrow does not look again."""
    made, memory = over_memory(array, buffer)
    struct.pack_into(form, memory, index * struct.calcsize(form), value)
    return made


def over_memory(array: pa.Array, buffer: int) -> tuple[pa.Array, bytearray]:
    """A copy of the array, and the memory that one of its buffers shows: to be changed when nobody validates any more."""
    buffers = array.buffers()
    memory = bytearray(buffers[buffer].to_pybytes())
    buffers[buffer] = pa.py_buffer(memory)
    children = [pa.StructArray.from_arrays([array.keys, array.items], fields=list(array.type.field(0).type))] if _is_map(array) else None
    made = pa.Array.from_buffers(array.type, len(array), buffers[:2] if children else buffers, array.null_count, array.offset, children)
    return made, memory


def _is_map(array: pa.Array) -> bool:
    return bool(pa.types.is_map(array.type))


def column(batch: pa.RecordBatch, name: str, array: pa.Array) -> pa.RecordBatch:
    """The batch with another column of that name."""
    return batch.set_column(batch.schema.names.index(name), batch.schema.field(name), array)


def mutated(rng: random.Random, stream: bytes, times: int) -> bytearray:
    """The stream of a batch with some of its bytes, or of its 32- or 64-bit numbers, changed. Its schema stays as it is."""
    begin = _behind_schema(stream)
    changed = bytearray(stream)
    edges: list[Callable[[], int]] = [
        lambda: rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**16, 4096)),
        lambda: rng.randrange(-(2**31), 2**31),
        lambda: rng.randrange(-64, 65),
    ]
    for _ in range(times):
        at = rng.randrange(begin, len(changed) - 8)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 3:
            struct.pack_into("<q", changed, at & ~7, rng.choice(edges)())
        else:
            old = struct.unpack_from("<i", changed, at & ~3)[0]
            value = rng.choice(edges)() if kind == 1 else max(-(2**31), min(2**31 - 1, old + rng.randrange(-9, 10)))
            struct.pack_into("<i", changed, at & ~3, value)
    return changed


def _behind_schema(stream: bytes) -> int:
    """Where the first message behind the schema begins."""
    (size,) = struct.unpack_from("<i", stream, 4)
    return 8 + int(size)


def any_batch(rng: random.Random) -> Any:
    """A batch of random columns, types and values that the sink takes, dictionaries and views among them."""
    rows = rng.randrange(0, 12)

    def text() -> str:
        return rng.choice(("", "a", "\u00e4", "key", "x" * rng.randrange(300)))

    def texts(most: float = 0.3) -> list[str | None]:
        return [None if rng.random() < most else text() for _ in range(rows)]

    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    octets = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
    columns: dict[str, Any] = {"body": pa.array([(one or "").encode() for one in texts(0.0)], rng.choice(octets))}
    for name in ("exchange", "routing_key", "message_id", "app_id", "reply_to"):
        if rng.random() < 0.4:
            columns[name] = pa.array([None if one is None else one[:100] for one in texts()], rng.choice(kinds))
    if rng.random() < 0.5:
        item = rng.choice((pa.string(), pa.large_string(), pa.string_view()))
        maps = [
            None if rng.random() < 0.3 else [(text()[:90], rng.choice((None, text()))) for _ in range(rng.randrange(4))]
            for _ in range(rows)
        ]
        columns["headers"] = pa.array(maps, pa.map_(pa.string(), item))
    if rng.random() < 0.3:
        columns["headers_raw"] = pa.array([rng.choice((None, b"\0\0\0\x04\x01aB\x07")) for _ in range(rows)], pa.binary())
    if rng.random() < 0.4:
        columns["priority"] = pa.array(
            [rng.choice((None, 0, 9, 255)) for _ in range(rows)],
            rng.choice((pa.int64(), pa.int8(), pa.uint8())) if not rows else pa.int16(),
        )
    if rng.random() < 0.4:
        columns["timestamp"] = pa.array([rng.choice((None, 0, 10**9)) for _ in range(rows)], rng.choice((pa.int64(), pa.timestamp("us"))))
    if rng.random() < 0.3:
        columns["expiration"] = pa.array([rng.choice((None, 0, 10**6)) for _ in range(rows)], pa.int64())
    batch = pa.record_batch(columns)
    return batch.slice(rng.randrange(rows + 1)) if rng.random() < 0.3 else batch
