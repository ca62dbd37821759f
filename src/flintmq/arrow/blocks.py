"""Messages to publish: record batches as blocks of content headers and bodies (see blocks.pxd; docs/DATAPLANE.md, call `block`).

in: record batches with any of the sink's columns, constants. out: (routes, block) pairs; a block holds whole messages in row order.

I1  What leaves here was read back by the broker's own scan of content headers: the broker refuses no entry for its form.
I2  A row that can't be a message raises EncodeError naming row and column; nothing is dropped or cut to fit.
I3  No byte is read or written because an array says so: `_take` compares each buffer's size with the rows, and each offset with its
    neighbours and the data behind it, before a row is looked at. `validate` (pyarrow's own check, which its kernels need) comes before,
    and nothing here relies on it.
I4  What a batch becomes when it is decoded (dictionaries, views) has a size that is known, and at most DECODED_MAX, before it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, p_char, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.byte_order import get32, put16, put32, put64
from cython.cimports.flintmq.core.content import CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, CONTENT_REPLY_TO
from cython.cimports.flintmq.core.crc32c import crc32c
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    CONTENT_HEADER_SIZE, EXPIRATION_INVALID, PRIORITY_ABSENT, PROP_CONTENT_TYPE, PROP_EXPIRATION, PROP_HEADERS, PROP_PRIORITY,
    PROP_REPLY_TO, props_scan_t, scan_properties,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.tables import TYPE_LONGSTR, TYPE_VOID
from cython.cimports.flintmq.store.log.record import set16, set32, set64
from cython.cimports.libc.stdint import int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset

INPUTS = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
    "headers_raw",
    "body",
    "exchange",
    "routing_key",
)
NUMBERS = frozenset(("delivery_mode", "priority", "timestamp"))
# bytes of an entry before its header
ENTRY_HEAD = declare(uint64_t, 24)
# distinct routes in a block; more begin a new one
ROUTES_MAX = declare(uint32_t, 4096)
SLOTS = declare(uint32_t, 16384)
SHORT_MAX = declare(uint64_t, 255)
MESSAGE_MAX = declare(uint64_t, 0x7FFFFFFF)
BLOCK_BYTES = 4 * 1024 * 1024
# bytes of a column after its dictionary or its views are resolved: a few bytes on the wire can stand for very many
DECODED_MAX = 512 * 1024 * 1024
# bytes of a view of Arrow's view arrays: the value's length, then the value itself when it is short, or its first bytes, buffer and offset
VIEW_SIZE = declare(uint64_t, 16)
VIEW_INLINE = declare(int32_t, 12)
DELIVERY_MODE = 2
# bytes of an empty column: pointers into them are never followed, and are not NULL where C forbids that (memcpy, memcmp)
NOTHING: bytes = b"\0"


class EncodeError(ValueError):
    """A column or a row that can't become a message. `row`: its number, None when the column as a whole is wrong; `column`: its name."""

    def __init__(self, row: int | None, column: str, text: str) -> None:
        where = f"column {column}" if row is None else f"row {row}, column {column}"
        super().__init__(f"{where}: {text}")
        self.row = row
        self.column = column
        self.text = text


@dataclass(frozen=True)
class EncodeOptions:
    """exchange, routing_key: where a message goes whose row does not say; constants: column -> value for all messages, above a column
    of that name; block_bytes: a block is closed before it gets longer (one message may be); delivery_mode is 2 where nothing says it."""

    exchange: str = ""
    routing_key: str = ""
    constants: Mapping[str, str | bytes | int] = field(default_factory=dict)
    block_bytes: int = BLOCK_BYTES


def validate(batch: Any) -> None:
    """Pyarrow's full check of all arrays: its kernels read what it refuses. O(bytes of the batch). Raises: EncodeError."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise EncodeError(None, "(all)", f"the record batch contradicts itself: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """The first line of an error of pyarrow."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _cast(column: Any, kind: Any, name: str, wanted: str) -> Any:
    import pyarrow as pa

    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = _of_views(column, name)
    try:
        found = column.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise EncodeError(None, name, f"type {column.type}: {wanted} is needed ({_line(error)})") from error
    if not isinstance(found, pa.Array):  # several chunks: what 32-bit offsets can't say in one
        raise EncodeError(None, name, "more than 2 GiB in one column of a batch")
    return found


def _buffer_of(array: Any, index: int, name: str) -> Any:
    """A buffer that must be there. Raises: EncodeError."""
    buffers = array.buffers()
    if index >= len(buffers) or buffers[index] is None:
        raise EncodeError(None, name, f"the array of {len(array)} values lacks its buffer {index}")
    return buffers[index]


def _check_bits(array: Any, name: str) -> None:
    """Before anybody asks how many values are null: who counts them reads these bits. Raises: EncodeError."""
    buffers = array.buffers()
    count = array.offset + len(array)
    if buffers and buffers[0] is not None and count > buffers[0].size * 8:
        raise EncodeError(None, name, f"{buffers[0].size} bytes say which of {count} values are null: too few")


def _aligned(buffer: Any) -> Any:
    """The buffer, or a copy of it whose numbers C may read: what came over a network lies anywhere."""
    import pyarrow as pa

    return pa.py_buffer(buffer.to_pybytes()) if buffer.address % 8 else buffer


def _of_views(column: Any, name: str) -> Any:
    """A binary array of what an array of views shows (I3, I4). Ours, because pyarrow's cast follows the views of null rows, which its
    own check passes over. Raises: EncodeError."""
    import pyarrow as pa

    _check_bits(column, name)
    buffers = column.buffers()
    first: uint64_t = column.offset
    count: uint64_t = len(column)
    if count == 0:
        return pa.array([], pa.binary())
    shown = _buffer_of(column, 1, name)
    if first > 0x7FFFFFFF or count > 0x7FFFFFFF or (first + count) * VIEW_SIZE > cast(uint64_t, shown.size):
        raise EncodeError(None, name, f"{count} views need more than the {shown.size} bytes that are there")
    memory: size_t = shown.address
    views: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], memory)
    valid: pointer[cython.const[uint8_t]] = NULL
    if buffers[0] is not None:
        memory = buffers[0].address
        valid = cast(pointer[uint8_t], memory)
    # Address and size of each buffer that a view may show.
    known: bytes = b"".join(
        number.to_bytes(8, "little") for one in buffers[2:] for number in ((0, 0) if one is None else (one.address, one.size))
    )
    total: int64_t = _view_bytes(views, valid, first, count, PyBytes_AS_STRING(known), len(known) // 16)
    if total < 0:
        raise EncodeError(None, name, f"the view of value {-1 - total} shows what is not there")
    _check_decoded(total, name)
    offsets: bytes = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    data: bytes = PyBytes_FromStringAndSize(NULL, total)
    _copy_views(views, valid, first, count, PyBytes_AS_STRING(known), PyBytes_AS_STRING(offsets), PyBytes_AS_STRING(data))
    bits = buffers[0]
    if bits is not None and first:
        bits = pa.py_buffer(bits.slice(first // 8).to_pybytes())
    made = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if bits is None:
        return made
    import pyarrow.compute as pc

    present = pa.Array.from_buffers(pa.bool_(), count, [None, bits], 0, first % 8)
    return pc.if_else(present, made, pa.scalar(None, pa.binary()))


@cfunc
@nogil
@exceptval(check=False)
def _view_bytes(
    views: pointer[cython.const[uint8_t]],
    valid: pointer[cython.const[uint8_t]],
    first: uint64_t,
    count: uint64_t,
    known: p_char,
    buffers: uint64_t,
) -> int64_t:
    """Bytes that the views of rows that are not null show; -1 - row: that one shows what is not there."""
    i: uint64_t
    length: int32_t = 0
    index: int32_t = 0
    start: int32_t = 0
    size: uint64_t = 0
    total: int64_t = 0
    for i in range(count):
        if valid != NULL and not valid[(first + i) >> 3] >> ((first + i) & 7) & 1:
            continue
        memcpy(address(length), views + (first + i) * VIEW_SIZE, 4)
        if length < 0:
            return -1 - cast(int64_t, i)
        total += length
        if length <= VIEW_INLINE:
            continue
        memcpy(address(index), views + (first + i) * VIEW_SIZE + 8, 4)
        memcpy(address(start), views + (first + i) * VIEW_SIZE + 12, 4)
        if index < 0 or cast(uint64_t, index) >= buffers or start < 0:
            return -1 - cast(int64_t, i)
        memcpy(address(size), known + cast(uint64_t, index) * 16 + 8, 8)
        if cast(uint64_t, start) + cast(uint64_t, length) > size:
            return -1 - cast(int64_t, i)
    return total


@cfunc
@nogil
@exceptval(check=False)
def _copy_views(
    views: pointer[cython.const[uint8_t]],
    valid: pointer[cython.const[uint8_t]],
    first: uint64_t,
    count: uint64_t,
    known: p_char,
    offsets: p_char,
    data: p_char,
) -> void:
    """Fills the offsets and the data of a binary array. What the views show was checked by `_view_bytes`, and is at most DECODED_MAX."""
    i: uint64_t
    length: int32_t = 0
    index: int32_t = 0
    start: int32_t = 0
    at: int32_t = 0
    base: uint64_t = 0
    memcpy(offsets, address(at), 4)
    for i in range(count):
        if valid == NULL or valid[(first + i) >> 3] >> ((first + i) & 7) & 1:
            memcpy(address(length), views + (first + i) * VIEW_SIZE, 4)
            if length <= VIEW_INLINE:
                memcpy(data + at, views + (first + i) * VIEW_SIZE + 4, length)
            else:
                memcpy(address(index), views + (first + i) * VIEW_SIZE + 8, 4)
                memcpy(address(start), views + (first + i) * VIEW_SIZE + 12, 4)
                memcpy(address(base), known + cast(uint64_t, index) * 16, 8)
                memcpy(data + at, cast(p_char, base) + start, length)
            at += length
        memcpy(offsets + 4 * (i + 1), address(at), 4)


def _check_decoded(total: int, name: str) -> None:
    if total > DECODED_MAX:
        raise EncodeError(None, name, f"its values have {total} bytes in all when they are decoded; at most {DECODED_MAX} are taken")


def _decoded(column: Any, name: str) -> Any:
    """A dictionary array without its dictionary (I4). Raises: EncodeError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.dictionary
    text = values.type
    if pa.types.is_dictionary(text):
        raise EncodeError(None, name, f"type {column.type}: a dictionary of a dictionary is not read")
    try:
        if pa.types.is_string_view(text) or pa.types.is_binary_view(text):
            values = _cast(values, pa.binary(), name, "text or binary")
            text = values.type
            column = pa.DictionaryArray.from_arrays(column.indices, values)
        if pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_binary(text) or pa.types.is_large_binary(text):
            _check_decoded(pc.sum(pc.binary_length(values).take(column.indices).cast(pa.int64())).as_py() or 0, name)
        elif pa.types.is_fixed_size_binary(text):
            _check_decoded(text.byte_width * len(column), name)
        elif not (pa.types.is_integer(text) or pa.types.is_timestamp(text)):
            raise EncodeError(None, name, f"type {column.type}: a dictionary of text, binary or whole numbers is needed")
        return column.dictionary_decode()
    except pa.ArrowException as error:
        raise EncodeError(None, name, f"type {column.type}: {_line(error)}") from error


def _seconds(column: Any, name: str) -> Any:
    """Whole seconds of a column of timestamps: down to the second before, also before 1970. Raises: EncodeError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    try:
        micros = column.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
        rest = pc.subtract(micros, pc.multiply(pc.divide(micros, 1_000_000), 1_000_000))
        whole = pc.divide(pc.subtract(micros, rest), 1_000_000)
        return pc.if_else(pc.less(rest, 0), pc.subtract(whole, 1), whole)
    except (pa.ArrowException, ValueError) as error:
        raise EncodeError(None, name, f"type {kind}: {_line(error)}") from error


def _canonical(column: Any, name: str) -> Any:
    """The column as the one Arrow type that is read here: string, binary, int64, map<string, string>. Raises: EncodeError."""
    import pyarrow as pa

    types = pa.types
    kind = column.type
    if types.is_dictionary(kind):
        column = _decoded(column, name)
        kind = column.type
    if name == "timestamp":
        if types.is_integer(kind):
            return _cast(column, pa.int64(), name, "whole seconds or a timestamp")
        if not types.is_timestamp(kind):
            raise EncodeError(None, name, f"type {kind}: a timestamp, or whole seconds, is needed")
        return _seconds(column, name)
    if name in NUMBERS:
        if not types.is_integer(kind):
            raise EncodeError(None, name, f"type {kind}: a whole number is needed")
        return _cast(column, pa.int64(), name, "a whole number")
    if name == "headers":
        if not types.is_map(kind):
            raise EncodeError(None, name, f"type {kind}: a map of strings to strings is needed")
        return column
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    octets = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)
    if name in ("body", "headers_raw"):
        if not (octets or (text and name == "body")):
            raise EncodeError(None, name, f"type {kind}: {'binary or a string' if name == 'body' else 'binary'} is needed")
        return _cast(column, pa.binary(), name, "binary")
    if name == "expiration" and types.is_integer(kind):
        return _cast(column, pa.string(), name, "a string or a whole number")
    if not text:
        raise EncodeError(None, name, f"type {kind}: a string is needed")
    return _cast(column, pa.string(), name, "a string")


@cfunc
@inline
@nogil
@exceptval(check=False)
def _present(source: pointer[input_t], row: uint32_t) -> bint:
    """Whether the row has a value of its own. `row` is below the rows that `_take` counted."""
    bit: uint64_t = cast(uint64_t, source.bit) + row
    return source.kind != INPUT_NONE and (source.valid == NULL or source.valid[bit >> 3] >> (bit & 7) & 1)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _text(
    source: pointer[input_t],
    row: uint32_t,
    p: pointer[pointer[cython.const[uint8_t]]],
    n: pointer[uint64_t],
) -> bint:
    """The row's bytes, or what stands for them; false: there are none."""
    if _present(source, row):
        p[0] = source.data + source.offsets[row]
        n[0] = cast(uint64_t, source.offsets[row + 1] - source.offsets[row])
        return True
    p[0] = source.otherwise
    n[0] = source.otherwise_size
    return source.otherwise != NULL


@cfunc
@inline
@nogil
@exceptval(check=False)
def _number(source: pointer[input_t], row: uint32_t, value: pointer[int64_t]) -> bint:
    if _present(source, row):
        value[0] = source.numbers[row]
        return True
    value[0] = source.number_otherwise
    return value[0] != -1


@cfunc
@nogil
@exceptval(check=False)
def _wrong_offset(offsets: pointer[cython.const[int32_t]], count: uint64_t, most: uint64_t) -> uint64_t:
    """The index of the first of count + 1 offsets that is negative, below the one before, or above `most`; count + 1 when all are fine."""
    i: uint64_t
    last: int32_t = 0
    for i in range(count + 1):
        if offsets[i] < last or cast(uint64_t, offsets[i]) > most:
            return i
        last = offsets[i]
    return count + 1


@cclass
class Encoder:
    """One record batch. Args: batch; options; first_row: number of its first row, for errors."""

    def __cinit__(self, batch, options, first_row: uint64_t):
        i: uint32_t
        self.kept = []
        self.first_row = first_row
        if not 0 <= batch.num_rows <= 0x7FFFFFFF:
            raise EncodeError(None, "(all)", f"{batch.num_rows} rows in one batch")
        self.rows = batch.num_rows
        self.block_bytes = max(1, min(int(options.block_bytes), MESSAGE_MAX))
        self.slots = cast(pointer[uint32_t], calloc(SLOTS, 4))
        self.routes = cast(pointer[route_t], malloc(ROUTES_MAX * sizeof(route_t)))
        if self.slots == NULL or self.routes == NULL:
            raise MemoryError
        for i in range(IN_COUNT):
            self.inputs[i].number_otherwise = -1
        unknown = set(options.constants) - set(INPUTS)
        if unknown:
            raise EncodeError(None, sorted(unknown)[0], "no such column can be a constant")
        names = batch.schema.names
        for i in range(IN_COUNT):
            name = INPUTS[i]
            if name in options.constants:
                self._constant(i, name, options.constants[name])
                continue
            if name == "exchange" or name == "routing_key":
                self._constant(i, name, getattr(options, name))
            elif name == "delivery_mode":
                self.inputs[i].number_otherwise = DELIVERY_MODE
            at = name if name in names else "value" if name == "body" and "value" in names else None
            if at is None:
                continue
            if names.count(at) > 1:
                raise EncodeError(None, at, "there are several columns of this name")
            try:
                self._column(i, name, batch.column(names.index(at)))
            except SystemError:  # Python's answer to an array whose length is negative
                raise EncodeError(None, name, "the array has no length") from None
        if self.rows and self.inputs[IN_BODY].kind == INPUT_NONE and self.inputs[IN_BODY].otherwise == NULL:
            raise EncodeError(None, "body", "the column is missing")

    def __dealloc__(self):
        free(self.out)
        free(self.routes)
        free(self.slots)

    def _constant(self, i: uint32_t, name, value):
        data: bytes
        if name in NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
                raise EncodeError(None, name, f"{str(value)[:80]!r} is no whole number from 0 on")
            self.inputs[i].number_otherwise = value
            return
        if name == "headers":
            raise EncodeError(None, name, "constant headers are given as headers_raw")
        if isinstance(value, bool) or not isinstance(value, (bytes, str, int)):
            raise EncodeError(None, name, f"{str(value)[:80]!r} is neither text nor bytes nor a whole number")
        try:
            data = value if isinstance(value, bytes) else str(value).encode()
        except ValueError:
            raise EncodeError(None, name, "the constant is no text that UTF-8 has") from None
        if len(data) > 0x7FFFFFFF:
            raise EncodeError(None, name, f"a constant of {len(data)} bytes")
        self.kept.append(data)
        self.inputs[i].otherwise = cast(pointer[uint8_t], PyBytes_AS_STRING(data))
        self.inputs[i].otherwise_size = PyBytes_GET_SIZE(data)

    def _column(self, i: uint32_t, name, column):
        import pyarrow as pa

        source: pointer[input_t] = address(self.inputs[i])
        if len(column) != self.rows:
            raise EncodeError(None, name, f"{len(column)} values in a batch of {self.rows} rows")
        if pa.types.is_null(column.type):
            return
        _check_bits(column, name)
        if column.null_count == len(column) and name != "body":
            return
        column = _canonical(column, name)
        if len(column) != self.rows:
            raise EncodeError(None, name, f"{len(column)} values in a batch of {self.rows} rows")
        if name in NUMBERS:
            self._take(source, column, INPUT_INT, name, 0)
        elif name == "headers":
            wanted = "a map of strings to strings"
            keys, items = column.keys, column.items
            if pa.types.is_dictionary(keys.type):
                keys = _decoded(keys, name)
            if pa.types.is_dictionary(items.type):
                items = _decoded(items, name)
            keys, items = _cast(keys, pa.string(), name, wanted), _cast(items, pa.string(), name, wanted)
            self._take(source, column, INPUT_MAP, name, min(len(keys), len(items)))
            self._take(address(self.names), keys, INPUT_TEXT, name, 0)
            self._take(address(self.values), items, INPUT_TEXT, name, 0)
        else:
            self._take(source, column, INPUT_TEXT, name, 0)

    def _take(self, source: pointer[input_t], array: object, kind: uint8_t, name: object, most: uint64_t) -> c_int:
        """Points the input at the array's buffers, which are kept, once all of them are checked (I3).

        Args: most: of a map: how many entries there are. Raises: EncodeError.
        """
        memory: size_t
        offset: uint64_t = array.offset
        count: uint64_t = len(array)
        size: uint64_t
        buffers = array.buffers()
        self.kept.append(array)
        source.kind = INPUT_NONE
        source.valid = NULL
        source.data = cast(pointer[uint8_t], PyBytes_AS_STRING(NOTHING))
        if count == 0:
            return 0
        if offset > 0x7FFFFFFF or count > 0x7FFFFFFF:
            raise EncodeError(None, name, f"{count} values behind {offset} others in one batch")
        _check_bits(array, name)
        if buffers[0] is not None and array.null_count:
            memory = buffers[0].address
            source.valid = cast(pointer[uint8_t], memory)
            source.bit = cast(uint32_t, offset & 7)
            source.valid += offset >> 3
        buffer = _aligned(_buffer_of(array, 1, name))
        self.kept.append(buffer)
        size = buffer.size
        memory = buffer.address
        if kind == INPUT_INT:
            if (offset + count) * 8 > size:
                raise EncodeError(None, name, f"{size} bytes are too few for {offset + count} numbers")
            source.numbers = cast(pointer[int64_t], memory) + offset
            source.kind = kind
            return 0
        if (offset + count + 1) * 4 > size:
            raise EncodeError(None, name, f"{size} bytes are too few for the offsets of {offset + count} values")
        source.offsets = cast(pointer[int32_t], memory) + offset
        if kind == INPUT_TEXT:
            most = 0
            if len(buffers) > 2 and buffers[2] is not None and buffers[2].size:
                most = buffers[2].size
                memory = buffers[2].address
                source.data = cast(pointer[uint8_t], memory)
        size = _wrong_offset(source.offsets, count, most)
        if size <= count:
            text = f"the offset of value {size} is {source.offsets[size]}: it must not go down, nor behind {most}"
            raise EncodeError(None, name, text)
        source.kind = kind
        return 0

    # --- one message

    def _reserve(self, more: uint64_t) -> bint:
        size: uint64_t = self.size * 2 if self.size else 65536
        out: pointer[uint8_t]
        if self.used + more <= self.size:
            return True
        while size < self.used + more:
            size *= 2
        out = cast(pointer[uint8_t], realloc(self.out, size))
        if out == NULL:
            return False
        self.out = out
        self.size = size
        return True

    def _route(
        self, exchange: pointer[cython.const[uint8_t]], exchange_size: uint32_t, key: pointer[cython.const[uint8_t]], key_size: uint32_t
    ) -> uint32_t:
        """Index of the route in this block; ROUTES_MAX: the block can't take another one."""
        route: pointer[route_t]
        slot: uint32_t
        if self.route_count:
            route = address(self.routes[self.last_route])
            if (
                route.exchange_size == exchange_size
                and route.key_size == key_size
                and memcmp(route.key, key, key_size) == 0
                and memcmp(route.exchange, exchange, exchange_size) == 0
            ):
                return self.last_route
        slot = crc32c(crc32c(exchange_size, exchange, exchange_size), key, key_size) % SLOTS
        while self.slots[slot]:
            route = address(self.routes[self.slots[slot] - 1])
            if (
                route.exchange_size == exchange_size
                and route.key_size == key_size
                and memcmp(route.key, key, key_size) == 0
                and memcmp(route.exchange, exchange, exchange_size) == 0
            ):
                self.last_route = self.slots[slot] - 1
                return self.last_route
            slot = (slot + 1) % SLOTS
        if self.route_count == ROUTES_MAX:
            return ROUTES_MAX
        route = address(self.routes[self.route_count])
        route.exchange = exchange
        route.exchange_size = exchange_size
        route.key = key
        route.key_size = key_size
        self.last_route = self.route_count
        self.route_count += 1
        self.slots[slot] = self.route_count
        return self.last_route

    def _map_size(self, row: uint32_t) -> int64_t:
        """Bytes of the row's header map as a field table, without its length; -1: a name is too long, or null."""
        source: pointer[input_t] = address(self.inputs[IN_HEADERS])
        i: int32_t
        size: int64_t = 0
        n: int32_t
        for i in range(source.offsets[row], source.offsets[row + 1]):
            if not _present(address(self.names), i):
                return -1
            n = self.names.offsets[i + 1] - self.names.offsets[i]
            if n > 255:
                return -1
            size += 2 + n
            if _present(address(self.values), i):
                size += 4 + self.values.offsets[i + 1] - self.values.offsets[i]
        return size

    def _put_map(self, p: pointer[uint8_t], row: uint32_t) -> pointer[uint8_t]:
        source: pointer[input_t] = address(self.inputs[IN_HEADERS])
        i: int32_t
        n: uint32_t
        for i in range(source.offsets[row], source.offsets[row + 1]):
            n = self.names.offsets[i + 1] - self.names.offsets[i]
            p[0] = cast(uint8_t, n)
            memcpy(p + 1, self.names.data + self.names.offsets[i], n)
            p += 1 + n
            if _present(address(self.values), i):
                n = self.values.offsets[i + 1] - self.values.offsets[i]
                p[0] = TYPE_LONGSTR
                put32(p + 1, n)
                memcpy(p + 5, self.values.data + self.values.offsets[i], n)
                p += 5 + n
            else:
                p[0] = TYPE_VOID
                p += 1
        return p

    def _row(self, row: uint32_t) -> c_int:
        """Appends the row to the block; ROW_*: it did not, and why (`bad`: the input)."""
        p: pointer[cython.const[uint8_t]] = NULL
        key: pointer[cython.const[uint8_t]] = NULL
        exchange: pointer[cython.const[uint8_t]] = NULL
        body: pointer[cython.const[uint8_t]] = NULL
        entry: pointer[uint8_t]
        at: pointer[uint8_t]
        n: uint64_t = 0
        key_size: uint64_t = 0
        exchange_size: uint64_t = 0
        body_size: uint64_t = 0
        size: uint64_t = CONTENT_HEADER_SIZE
        table: int64_t = -1
        number: int64_t = 0
        raw: bint
        i: uint32_t
        route: uint32_t
        flags: uint16_t = 0
        header: uint32_t
        found: props_scan_t
        content_flags: uint8_t = 0
        self.bad = IN_BODY
        if not _text(address(self.inputs[IN_BODY]), row, address(body), address(body_size)):
            return ROW_NULL
        self.bad = IN_EXCHANGE
        _text(address(self.inputs[IN_EXCHANGE]), row, address(exchange), address(exchange_size))
        if exchange_size > SHORT_MAX:
            return ROW_LONG
        self.bad = IN_ROUTING_KEY
        _text(address(self.inputs[IN_ROUTING_KEY]), row, address(key), address(key_size))
        if key_size > SHORT_MAX:
            return ROW_LONG
        raw = _text(address(self.inputs[IN_HEADERS_RAW]), row, address(p), address(n))
        if raw:
            self.bad = IN_HEADERS_RAW
            if n < 4 or get32(p) != n - 4:
                return ROW_TABLE
            table = cast(int64_t, n - 4)
        elif _present(address(self.inputs[IN_HEADERS]), row):
            self.bad = IN_HEADERS
            table = self._map_size(row)
            if table < 0:
                return ROW_NAME_LONG
        if table >= 0:
            size += 4 + cast(uint64_t, table)
        for i in range(IN_PROPERTIES):
            self.bad = i
            if i == IN_HEADERS:
                continue
            if i == IN_DELIVERY_MODE or i == IN_PRIORITY:
                if _number(address(self.inputs[i]), row, address(number)) and (number < 0 or number > 255):
                    return ROW_OCTET
                size += 1
            elif i == IN_TIMESTAMP:
                size += 8
            elif _text(address(self.inputs[i]), row, address(p), address(n)):
                if n > SHORT_MAX:
                    return ROW_LONG
                size += 1 + n
        self.bad = IN_BODY
        if body_size > MESSAGE_MAX or size > MESSAGE_MAX - body_size:
            return ROW_HUGE
        if self.used and self.used + ENTRY_HEAD + size + body_size + 8 > self.block_bytes:
            return ROW_FULL
        if not self._reserve(ENTRY_HEAD + size + body_size + 8):
            return ROW_MEMORY
        route = self._route(exchange, cast(uint32_t, exchange_size), key, cast(uint32_t, key_size))
        if route == ROUTES_MAX:
            return ROW_FULL
        entry = self.out + self.used
        at = entry + ENTRY_HEAD + CONTENT_HEADER_SIZE
        for i in range(IN_PROPERTIES):
            if i == IN_HEADERS:
                if table < 0:
                    continue
                put32(at, cast(uint32_t, table))
                at += 4
                if raw:
                    _text(address(self.inputs[IN_HEADERS_RAW]), row, address(p), address(n))
                    memcpy(at, p + 4, n - 4)
                    at += n - 4
                else:
                    at = self._put_map(at, row)
            elif i == IN_DELIVERY_MODE or i == IN_PRIORITY:
                if not _number(address(self.inputs[i]), row, address(number)):
                    continue
                at[0] = cast(uint8_t, number)
                at += 1
            elif i == IN_TIMESTAMP:
                if not _number(address(self.inputs[i]), row, address(number)):
                    continue
                if number < 0:
                    self.bad = i
                    return ROW_TIME
                put64(at, cast(uint64_t, number))
                at += 8
            else:
                if not _text(address(self.inputs[i]), row, address(p), address(n)):
                    continue
                at[0] = cast(uint8_t, n)
                memcpy(at + 1, p, n)
                at += 1 + n
            flags |= cast(uint16_t, PROP_CONTENT_TYPE >> i)
        header = cast(uint32_t, at - entry - ENTRY_HEAD)
        put16(entry + ENTRY_HEAD, 60)
        put16(entry + ENTRY_HEAD + 2, 0)
        put64(entry + ENTRY_HEAD + 4, body_size)
        put16(entry + ENTRY_HEAD + 12, flags)
        if scan_properties(entry + ENTRY_HEAD, header, address(found)) != 0:
            self.bad = IN_HEADERS_RAW if raw else IN_HEADERS
            return ROW_TABLE
        if found.expiration_ms == EXPIRATION_INVALID:
            self.bad = IN_EXPIRATION
            return ROW_EXPIRATION
        if found.delivery_mode == 2:
            content_flags |= CONTENT_PERSISTENT
        if flags & PROP_EXPIRATION:
            content_flags |= CONTENT_EXPIRES
        if flags & PROP_HEADERS:
            content_flags |= CONTENT_HEADERS
        if flags & PROP_REPLY_TO:
            content_flags |= CONTENT_REPLY_TO
        if flags & PROP_PRIORITY:
            content_flags |= CONTENT_PRIORITY
        memcpy(at, body, body_size)
        set32(entry, cast(uint32_t, header + body_size))
        set32(entry + 4, route)
        set32(entry + 8, header)
        entry[12] = content_flags
        entry[13] = found.priority if found.priority != PRIORITY_ABSENT else 0
        set16(entry + 14, 0)
        set64(entry + 16, cast(uint64_t, found.expiration_ms))
        self.used += ENTRY_HEAD + header + body_size
        while self.used & 7:
            self.out[self.used] = 0
            self.used += 1
        return ROW_FINE

    def block(self) -> tuple[list[list[str]], bytes] | None:
        """The next block and its routes [[exchange, routing key], ...]; None after the last row. Raises: EncodeError, MemoryError."""
        how: c_int = ROW_FINE
        i: uint32_t
        self.used = 0
        self.route_count = 0
        self.last_route = 0
        if self.next >= self.rows:
            return None
        memset(self.slots, 0, SLOTS * 4)
        with nogil:
            while self.next < self.rows:
                how = self._row(self.next)
                if how != ROW_FINE:
                    break
                self.next += 1
        if how > ROW_FULL:
            raise self._error(how)
        routes: list = []
        for i in range(self.route_count):
            exchange = PyBytes_FromStringAndSize(cast(p_char, self.routes[i].exchange), self.routes[i].exchange_size)
            key = PyBytes_FromStringAndSize(cast(p_char, self.routes[i].key), self.routes[i].key_size)
            routes.append([exchange.decode(), key.decode()])
        return routes, PyBytes_FromStringAndSize(cast(p_char, self.out), self.used)

    def _error(self, how: c_int):
        if how == ROW_MEMORY:
            return MemoryError("no memory for a block of messages")
        text = {
            ROW_NULL: "is null; an empty message has an empty body",
            ROW_LONG: f"more than {SHORT_MAX} bytes of UTF-8",
            ROW_NAME_LONG: f"the name of a header has more than {SHORT_MAX} bytes, or is null",
            ROW_EXPIRATION: "no expiration: a decimal number of milliseconds from 0 to 2^32 - 1 is needed",
            ROW_TABLE: "no field table that the broker takes (its length, a type, more than 1024 fields, or nested too deep)",
            ROW_OCTET: "not in 0..255",
            ROW_TIME: "before 1970: AMQP's timestamp has no sign",
            ROW_HUGE: "the message has more than 2 GiB",
        }[how]
        return EncodeError(self.first_row + self.next, INPUTS[self.bad], text)


def blocks_of(batch: Any, options: EncodeOptions | None = None, *, first_row: int = 0) -> Iterator[tuple[list[list[str]], bytes]]:
    """Blocks of all rows of a record batch, in order, for the call `block`.

    Args: batch: columns `body` (or `value`: binary or string; required unless it is a constant), exchange, routing_key, headers
    (map of strings), headers_raw (above headers where not null), and the basic properties; other columns are ignored; first_row:
    number of the batch's first row, for errors.
    Raises: EncodeError: arrays that contradict themselves, a column of a wrong type, a row that can't be a message (blocks given out
    before are whole). Cost: every byte of the batch is read once before the first block.
    """
    validate(batch)
    encoder: Encoder = Encoder(batch, options or EncodeOptions(), first_row)
    while True:
        block = encoder.block()
        if block is None:
            return
        yield block
