"""AMQP 0-9-1 tables: field values <-> Python values, and the readers and writers that methods and properties share.

in: bytes as received, with their length; dicts. out: dicts, wire bytes.

I1  Decoding raises PeerError and nothing else, whatever the bytes.
I2  No byte beyond the given length is read; nesting and number of fields are bounded before memory is taken for them.
I3  Encoding never truncates or wraps: what does not fit raises ValueError (a wrong type TypeError).
I4  decode(encode(v)) == v, and encode(decode(b)) keeps every value though not every wire type.

Values of table fields (specification 4.2.5 with RabbitMQ's errata):
    t bool; b B s u I i l L int; f d float; D Decimal; T Timestamp; V None; F dict; A list; x bytes;
    S str, or bytes when it is not UTF-8
back: bool t; int I when it fits 32 bits, else l; float d; Decimal D; Timestamp T; None V; dict F; list or tuple A; bytes x; str S.
Short strings (names, keys) are str; bytes that are not UTF-8 become surrogate escapes and so survive a round trip.
Of a name that a table repeats the first value counts, as on RabbitMQ.
"""
# Compiled: Cython checks the types and names that come from the .pxd.
# mypy: ignore-errors

from __future__ import annotations

from decimal import Decimal

import cython
from cython import NULL, address, cast, cfunc, double, exceptval, p_char, pointer, size_t, void
from cython import float as c_float
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode

_LIMITS = Limits()
DEPTH_MAX = _LIMITS.table_depth_max
FIELDS_MAX = _LIMITS.table_fields_max
# the exponent that a decimal of scale n has
_SCALES: tuple = tuple([Decimal(-scale) for scale in range(256)])


class Timestamp(int):
    """A table field or property of type T: seconds since the Unix epoch, 0 .. 2**64 - 1. An int in all but its wire type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


def syntax_error(text: str | None) -> object:
    return PeerError(ReplyCode.SYNTAX_ERROR, text)


@cfunc
@exceptval(-1)
def _need(reader: pointer[reader_t], size: size_t) -> c_int:
    if cast(size_t, reader.end - reader.at) < size:
        raise syntax_error("truncated: a length points past the end")
    return 0


def read_number(reader: pointer[reader_t], size: uint32_t) -> uint64_t:
    _need(reader, size)
    value: uint64_t = be_load(reader.at, size)
    reader.at += size
    return value


def read_shortstr(reader: pointer[reader_t]) -> str:
    size: size_t = read_number(reader, 1)
    _need(reader, size)
    text = PyUnicode_DecodeUTF8(cast(p_char, reader.at), size, b"surrogateescape")
    reader.at += size
    return text


def read_longstr(reader: pointer[reader_t]) -> bytes:
    size: size_t = read_number(reader, 4)
    _need(reader, size)
    value = PyBytes_FromStringAndSize(cast(p_char, reader.at), size)
    reader.at += size
    return value


@cfunc
def _longstr_text(reader: pointer[reader_t]):
    """A field of type S. An exception for each that is no text would take a microsecond, and a frame holds 20,000."""
    size: size_t = read_number(reader, 4)
    _need(reader, size)
    if is_utf8(reader.at, size):
        value = PyUnicode_DecodeUTF8(cast(p_char, reader.at), size, NULL)
    else:
        value = PyBytes_FromStringAndSize(cast(p_char, reader.at), size)
    reader.at += size
    return value


@cfunc
def _decimal(reader: pointer[reader_t]):
    scale: c_int = read_number(reader, 1)
    # Signed: the specification's grammar says unsigned, but clients send negative decimals in two's complement.
    value: int32_t = cast(int32_t, cast(uint32_t, read_number(reader, 4)))
    return Decimal(value).scaleb(_SCALES[scale])  # a fifth of the time that a tuple of digits takes, and as exact


@cfunc
def _float32(reader: pointer[reader_t]):
    bits: uint32_t = read_number(reader, 4)
    value: c_float = 0
    memcpy(address(value), address(bits), 4)
    return cast(double, value)


@cfunc
def _float64(reader: pointer[reader_t]):
    bits: uint64_t = read_number(reader, 8)
    value: double = 0
    memcpy(address(value), address(bits), 8)
    return value


@cfunc
def _field_value(reader: pointer[reader_t]):
    """Type octet and value of a table field or array element."""
    if reader.fields_left == 0:
        raise syntax_error(f"table of more than {reader.fields_max} fields")
    reader.fields_left -= 1
    kind: uint8_t = read_number(reader, 1)
    if kind == TYPE_LONGSTR:
        return _longstr_text(reader)
    if kind == TYPE_BOOL:
        return read_number(reader, 1) != 0
    if kind == TYPE_INT32:
        return cast(int32_t, cast(uint32_t, read_number(reader, 4)))
    if kind == TYPE_INT64 or kind == TYPE_INT64_QPID:
        return cast(int64_t, read_number(reader, 8))
    if kind == TYPE_TABLE:
        return read_table(reader)
    if kind == TYPE_ARRAY:
        return _array(reader)
    if kind == TYPE_INT8:
        return cast(int8_t, cast(uint8_t, read_number(reader, 1)))
    if kind == TYPE_UINT8:
        return read_number(reader, 1)
    if kind == TYPE_INT16:
        return cast(int16_t, cast(uint16_t, read_number(reader, 2)))
    if kind == TYPE_UINT16:
        return read_number(reader, 2)
    if kind == TYPE_UINT32:
        return read_number(reader, 4)
    if kind == TYPE_DOUBLE:
        return _float64(reader)
    if kind == TYPE_FLOAT:
        return _float32(reader)
    if kind == TYPE_TIMESTAMP:
        return Timestamp(read_number(reader, 8))
    if kind == TYPE_BYTES:
        return read_longstr(reader)
    if kind == TYPE_VOID:
        return None
    if kind == TYPE_DECIMAL:
        return _decimal(reader)
    raise syntax_error(f"unknown table field type 0x{kind:02x}")


@cfunc
def _enter(reader: pointer[reader_t]):
    """Opens a nested table or array: `reader` ends where it does. Returns nothing; the caller restores `end`."""
    size: size_t = read_number(reader, 4)
    _need(reader, size)
    if reader.depth_left == 0:
        raise syntax_error(f"tables nested deeper than {reader.depth_max}")
    reader.depth_left -= 1
    reader.end = reader.at + size


@cfunc
def _table_fields(reader: pointer[reader_t]) -> dict:
    """Fields up to the end of `reader`."""
    table: dict = {}
    while reader.at < reader.end:
        name = read_shortstr(reader)
        value = _field_value(reader)
        if name not in table:
            table[name] = value
    return table


def read_table(reader: pointer[reader_t]) -> dict:
    outer: pointer[cython.const[uint8_t]] = reader.end
    _enter(reader)
    table: dict = _table_fields(reader)
    reader.end = outer
    reader.depth_left += 1
    return table


@cfunc
def _array(reader: pointer[reader_t]) -> list:
    outer: pointer[cython.const[uint8_t]] = reader.end
    _enter(reader)
    items: list = []
    while reader.at < reader.end:
        items.append(_field_value(reader))
    reader.end = outer
    reader.depth_left += 1
    return items


def reader_init(
    reader: pointer[reader_t], data: pointer[cython.const[uint8_t]], size: size_t, depth_max: uint32_t, fields_max: uint32_t
) -> void:
    reader.at = data
    reader.end = data + size
    reader.depth_max = depth_max if depth_max < NESTING_MAX else NESTING_MAX
    reader.depth_left = reader.depth_max
    reader.fields_left = fields_max
    reader.fields_max = fields_max
    reader.strict = False


def decode_table_at(data: pointer[cython.const[uint8_t]], size: size_t, depth_max: uint32_t, fields_max: uint32_t) -> dict:
    reader: reader_t
    reader_init(address(reader), data, size, depth_max, fields_max)
    if reader.depth_left == 0:
        raise syntax_error("tables nested deeper than 0")
    reader.depth_left -= 1
    return _table_fields(address(reader))


def decode_table(data: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> dict[str, object]:
    """Decodes a table given without its 4-byte length (the headers of scan_properties, an AMQPLAIN response).

    Args: depth_max: nesting, the outermost table is 1, at most 256; fields_max: fields in all, nested ones counted too.
    Raises: PeerError SYNTAX_ERROR when malformed or over a limit.
    """
    return decode_table_at(cast(pointer[uint8_t], PyBytes_AS_STRING(data)), PyBytes_GET_SIZE(data), depth_max, fields_max)


def writer_reserve(writer: pointer[writer_t], size: size_t) -> c_int:
    wanted: size_t = writer.used + size
    if wanted <= writer.size:
        return 0
    capacity: size_t = 128 if writer.size == 0 else writer.size
    while capacity < wanted:
        capacity *= 2
    data: pointer[uint8_t] = cast(pointer[uint8_t], realloc(writer.data, capacity))
    if data == NULL:
        raise MemoryError
    writer.data = data
    writer.size = capacity
    return 0


def be_store(at: pointer[uint8_t], value: uint64_t, size: uint32_t) -> void:
    while size > 0:
        size -= 1
        at[size] = value & 0xFF
        value >>= 8


def put_uint(writer: pointer[writer_t], value: uint64_t, size: uint32_t) -> c_int:
    """The `size` low bytes of `value`, big-endian."""
    writer_reserve(writer, size)
    be_store(writer.data + writer.used, value, size)
    writer.used += size
    return 0


def put_number(writer: pointer[writer_t], number: object, size: uint32_t) -> c_int:
    """An unsigned number that has to fit `size` bytes."""
    if number < 0 or number >> (8 * size) != 0:
        raise ValueError(f"{number} does not fit {size} bytes")
    return put_uint(writer, number, size)


def put_bytes(writer: pointer[writer_t], data: bytes | None, length_size: uint32_t) -> c_int:
    """`data` after its length of `length_size` bytes."""
    size: size_t = PyBytes_GET_SIZE(data)
    if size >> (8 * length_size) != 0:
        raise ValueError(f"a string of {size} bytes does not fit a length of {length_size} bytes")
    put_uint(writer, size, length_size)
    writer_reserve(writer, size)
    memcpy(writer.data + writer.used, PyBytes_AS_STRING(data), size)
    writer.used += size
    return 0


def utf8_bytes(text: object) -> bytes:
    """The inverse of PyUnicode_DecodeUTF8 with surrogate escapes; TypeError unless `text` is str."""
    if not isinstance(text, str):
        raise TypeError(f"str wanted, not {type(text).__name__}")
    return cast(str, text).encode("utf-8", "surrogateescape")


@cfunc
@exceptval(-1)
def _put_decimal(writer: pointer[writer_t], value) -> c_int:
    sign, digits, exponent = value.as_tuple()
    # 10 digits hold every 32-bit number; the check keeps 10 ** exponent small.
    if not isinstance(exponent, int) or exponent < -255 or len(digits) + max(exponent, 0) > 10:
        raise ValueError(f"decimal {value} does not fit an octet of scale and 32 bits")
    number = 0
    for digit in digits:
        number = number * 10 + digit
    if exponent > 0:
        number *= 10**exponent
        exponent = 0
    if sign:
        number = -number
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise ValueError(f"decimal {value} does not fit an octet of scale and 32 bits")
    put_uint(writer, -exponent, 1)
    return put_uint(writer, number & 0xFFFFFFFF, 4)


@cfunc
@exceptval(-1)
def _put_int(writer: pointer[writer_t], value) -> c_int:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        put_uint(writer, TYPE_INT32, 1)
        return put_uint(writer, value & 0xFFFFFFFF, 4)
    if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        put_uint(writer, TYPE_INT64, 1)
        return put_uint(writer, value & 0xFFFFFFFFFFFFFFFF, 8)
    raise ValueError(f"{value} does not fit 64 bits")


@cfunc
@exceptval(-1)
def _put_double(writer: pointer[writer_t], value: double) -> c_int:
    bits: uint64_t = 0
    memcpy(address(bits), address(value), 8)
    put_uint(writer, TYPE_DOUBLE, 1)
    return put_uint(writer, bits, 8)


@cfunc
@exceptval(-1)
def _put_field_value(writer: pointer[writer_t], value, depth: uint32_t) -> c_int:
    """Type octet and value. The order of the tests matters: bool and Timestamp are ints."""
    if isinstance(value, str):
        put_uint(writer, TYPE_LONGSTR, 1)
        put_bytes(writer, utf8_bytes(value), 4)
    elif value is None:
        put_uint(writer, TYPE_VOID, 1)
    elif isinstance(value, bool):
        put_uint(writer, TYPE_BOOL, 1)
        put_uint(writer, 1 if value else 0, 1)
    elif isinstance(value, Timestamp):
        put_uint(writer, TYPE_TIMESTAMP, 1)
        put_number(writer, int(value), 8)
    elif isinstance(value, int):
        _put_int(writer, value)
    elif isinstance(value, dict):
        put_uint(writer, TYPE_TABLE, 1)
        put_table(writer, value, depth)
    elif isinstance(value, (list, tuple)):
        put_uint(writer, TYPE_ARRAY, 1)
        _put_array(writer, value, depth)
    elif isinstance(value, float):
        _put_double(writer, value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        put_uint(writer, TYPE_BYTES, 1)
        put_bytes(writer, bytes(value), 4)
    elif isinstance(value, Decimal):
        put_uint(writer, TYPE_DECIMAL, 1)
        _put_decimal(writer, value)
    else:
        raise TypeError(f"no table field type for {type(value).__name__}")
    return 0


@cfunc
@exceptval(-1)
def _put_table_fields(writer: pointer[writer_t], table: dict, depth: uint32_t) -> c_int:
    if depth >= NESTING_MAX:
        raise ValueError(f"tables nested deeper than {NESTING_MAX}")
    for name, value in table.items():
        put_bytes(writer, utf8_bytes(name), 1)
        _put_field_value(writer, value, depth + 1)
    return 0


@cfunc
@exceptval(-1)
def _put_length(writer: pointer[writer_t], start: size_t) -> c_int:
    """Fills in the 4-byte length at `start` of what was written after it."""
    size: size_t = writer.used - start - 4
    if size > 0xFFFFFFFF:
        raise ValueError("table of 4 GiB or more")
    be_store(writer.data + start, size, 4)
    return 0


def put_table(writer: pointer[writer_t], table: dict | None, depth: uint32_t) -> c_int:
    start: size_t = writer.used
    put_uint(writer, 0, 4)
    _put_table_fields(writer, table, depth)
    return _put_length(writer, start)


@cfunc
@exceptval(-1)
def _put_array(writer: pointer[writer_t], items, depth: uint32_t) -> c_int:
    if depth >= NESTING_MAX:
        raise ValueError(f"tables nested deeper than {NESTING_MAX}")
    start: size_t = writer.used
    put_uint(writer, 0, 4)
    for item in items:
        _put_field_value(writer, item, depth + 1)
    return _put_length(writer, start)


def writer_bytes(writer: pointer[writer_t]) -> bytes:
    return PyBytes_FromStringAndSize(cast(p_char, writer.data), writer.used)


def encode_table(table: dict) -> bytes:
    """Encodes a table without its 4-byte length: the inverse of decode_table.

    Raises: ValueError when something does not fit (a name above 255 bytes, a number above 64 bits, nesting above 256),
    TypeError for a value that no field type can hold.
    """
    writer: writer_t = writer_t(NULL, 0, 0)
    try:
        writer_reserve(address(writer), 1)
        _put_table_fields(address(writer), table, 0)
        return writer_bytes(address(writer))
    finally:
        free(writer.data)


def clip_shortstr(text: str, size_max: int = 255) -> str:
    """`text` cut to at most `size_max` bytes of UTF-8, between characters, "..." at its end then, as RabbitMQ cuts reply texts."""
    data: bytes = utf8_bytes(text)
    if len(data) <= size_max:
        return text
    size_max -= 3
    while size_max > 0 and data[size_max] & 0xC0 == 0x80:
        size_max -= 1
    return data[:size_max].decode("utf-8", "surrogateescape") + "..."
