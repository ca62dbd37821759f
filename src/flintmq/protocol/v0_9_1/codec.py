"""AMQP 0-9-1 codec: method, content header and table bytes <-> Python values (signatures for C callers: codec.pxd).

in: payloads of whole frames, as received; Method objects, dicts. out: Method objects, dicts, wire bytes.

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

from __future__ import annotations

from decimal import Decimal

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.stdint import int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy

from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode, check
from flintmq.protocol.v0_9_1.spec import BASIC_PROPERTIES, CLASS_BASIC, METHODS, Method

_LIMITS = Limits()
DEPTH_MAX = _LIMITS.table_depth_max
FIELDS_MAX = _LIMITS.table_fields_max
check(DEPTH_MAX == SCAN_DEPTH_MAX and FIELDS_MAX == SCAN_FIELDS_MAX, "scan_properties and Limits disagree about tables")

# RabbitMQ's ceiling of message and queue TTL (the 32-bit timer of Erlang): 4,294,967,295 ms, 49 days.
EXPIRATION_MAX = cython.declare(int64_t, 0xFFFFFFFF)
_FRAME_METHOD = cython.declare(uint8_t, 1)
_FRAME_END = cython.declare(uint8_t, 0xCE)
# Bytes of frame type, channel and size before a payload.
_FRAME_HEADER_SIZE = cython.declare(cython.size_t, 7)
# Bytes of class, weight, body size and flags before the properties.
_CONTENT_HEADER_SIZE = cython.declare(uint32_t, 14)
_CLASS_BASIC = cython.declare(uint32_t, CLASS_BASIC)

# One dictionary look-up and no attribute access per decoded method.
_METHODS: dict = {id_: (class_, class_.WIRE) for id_, class_ in METHODS.items()}
_PROPERTY_LETTERS = {"octet": b"o", "timestamp": b"t", "shortstr": b"s", "table": b"F"}
_PROPERTIES: tuple = tuple((name, _PROPERTY_LETTERS[wire], flag) for name, wire, flag in BASIC_PROPERTIES)
_PROPERTY_NAMES = frozenset(name for name, _, _ in BASIC_PROPERTIES)


class Timestamp(int):
    """A table field or property of type T: seconds since the Unix epoch, 0 .. 2**64 - 1. An int in all but its wire type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


# --- reading ------------------------------------------------------------------------------------------------------------


@cython.cfunc
def _syntax_error(text: str):
    return PeerError(ReplyCode.SYNTAX_ERROR, text)


@cython.cfunc
@cython.exceptval(-1)
def _need(reader: cython.pointer(reader_t), size: cython.size_t) -> cython.int:
    if cython.cast(cython.size_t, reader.end - reader.at) < size:
        raise _syntax_error("truncated: a length points past the end")
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _be(at: cython.pointer(cython.const[uint8_t]), size: uint32_t) -> uint64_t:
    """The big-endian number of `size` bytes at `at`."""
    value: uint64_t = 0
    i: uint32_t = 0
    while i < size:
        value = value << 8 | at[i]
        i += 1
    return value


@cython.cfunc
@cython.exceptval(-1, check=True)
def _number(reader: cython.pointer(reader_t), size: uint32_t) -> uint64_t:
    _need(reader, size)
    value: uint64_t = _be(reader.at, size)
    reader.at += size
    return value


@cython.cfunc
def _shortstr(reader: cython.pointer(reader_t)):
    size: cython.size_t = _number(reader, 1)
    _need(reader, size)
    text = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, reader.at), size, b"surrogateescape")
    reader.at += size
    return text


@cython.cfunc
def _longstr(reader: cython.pointer(reader_t)):
    size: cython.size_t = _number(reader, 4)
    _need(reader, size)
    value = PyBytes_FromStringAndSize(cython.cast(cython.p_char, reader.at), size)
    reader.at += size
    return value


@cython.cfunc
def _longstr_text(reader: cython.pointer(reader_t)):
    """A field of type S."""
    size: cython.size_t = _number(reader, 4)
    _need(reader, size)
    try:
        value = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, reader.at), size, cython.NULL)
    except UnicodeDecodeError:
        value = PyBytes_FromStringAndSize(cython.cast(cython.p_char, reader.at), size)
    reader.at += size
    return value


@cython.cfunc
def _decimal(reader: cython.pointer(reader_t)):
    scale: cython.int = _number(reader, 1)
    # Signed: the specification's grammar says unsigned, but clients send negative decimals in two's complement.
    value: int32_t = cython.cast(int32_t, cython.cast(uint32_t, _number(reader, 4)))
    digits = tuple([int(digit) for digit in str(abs(cython.cast(int64_t, value)))])
    return Decimal((1 if value < 0 else 0, digits, -scale))


@cython.cfunc
def _float32(reader: cython.pointer(reader_t)):
    bits: uint32_t = _number(reader, 4)
    value: cython.float = 0
    memcpy(cython.address(value), cython.address(bits), 4)
    return cython.cast(cython.double, value)


@cython.cfunc
def _float64(reader: cython.pointer(reader_t)):
    bits: uint64_t = _number(reader, 8)
    value: cython.double = 0
    memcpy(cython.address(value), cython.address(bits), 8)
    return value


@cython.cfunc
def _field_value(reader: cython.pointer(reader_t)):
    """Type octet and value of a table field or array element."""
    if reader.fields_left == 0:
        raise _syntax_error(f"table of more than {reader.fields_max} fields")
    reader.fields_left -= 1
    kind: uint8_t = _number(reader, 1)
    if kind == TYPE_LONGSTR:
        return _longstr_text(reader)
    if kind == TYPE_BOOL:
        return _number(reader, 1) != 0
    if kind == TYPE_INT32:
        return cython.cast(int32_t, cython.cast(uint32_t, _number(reader, 4)))
    if kind == TYPE_INT64 or kind == TYPE_INT64_QPID:
        return cython.cast(int64_t, _number(reader, 8))
    if kind == TYPE_TABLE:
        return _table(reader)
    if kind == TYPE_ARRAY:
        return _array(reader)
    if kind == TYPE_INT8:
        return cython.cast(int8_t, cython.cast(uint8_t, _number(reader, 1)))
    if kind == TYPE_UINT8:
        return _number(reader, 1)
    if kind == TYPE_INT16:
        return cython.cast(int16_t, cython.cast(uint16_t, _number(reader, 2)))
    if kind == TYPE_UINT16:
        return _number(reader, 2)
    if kind == TYPE_UINT32:
        return _number(reader, 4)
    if kind == TYPE_DOUBLE:
        return _float64(reader)
    if kind == TYPE_FLOAT:
        return _float32(reader)
    if kind == TYPE_TIMESTAMP:
        return Timestamp(_number(reader, 8))
    if kind == TYPE_BYTES:
        return _longstr(reader)
    if kind == TYPE_VOID:
        return None
    if kind == TYPE_DECIMAL:
        return _decimal(reader)
    raise _syntax_error(f"unknown table field type 0x{kind:02x}")


@cython.cfunc
def _enter(reader: cython.pointer(reader_t)):
    """Opens a nested table or array: `reader` ends where it does. Returns nothing; the caller restores `end`."""
    size: cython.size_t = _number(reader, 4)
    _need(reader, size)
    if reader.depth_left == 0:
        raise _syntax_error(f"tables nested deeper than {reader.depth_max}")
    reader.depth_left -= 1
    reader.end = reader.at + size


@cython.cfunc
def _table_fields(reader: cython.pointer(reader_t)) -> dict:
    """Fields up to the end of `reader`."""
    table: dict = {}
    while reader.at < reader.end:
        name = _shortstr(reader)
        value = _field_value(reader)
        if name not in table:
            table[name] = value
    return table


@cython.cfunc
def _table(reader: cython.pointer(reader_t)) -> dict:
    outer: cython.pointer(cython.const[uint8_t]) = reader.end
    _enter(reader)
    table: dict = _table_fields(reader)
    reader.end = outer
    reader.depth_left += 1
    return table


@cython.cfunc
def _array(reader: cython.pointer(reader_t)) -> list:
    outer: cython.pointer(cython.const[uint8_t]) = reader.end
    _enter(reader)
    items: list = []
    while reader.at < reader.end:
        items.append(_field_value(reader))
    reader.end = outer
    reader.depth_left += 1
    return items


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _reader_init(
    reader: cython.pointer(reader_t),
    data: cython.pointer(cython.const[uint8_t]),
    size: cython.size_t,
    depth_max: uint32_t,
    fields_max: uint32_t,
) -> cython.void:
    reader.at = data
    reader.end = data + size
    reader.depth_max = depth_max if depth_max < NESTING_MAX else NESTING_MAX
    reader.depth_left = reader.depth_max
    reader.fields_left = fields_max
    reader.fields_max = fields_max


def decode_table_at(data, size, depth_max, fields_max):
    reader: reader_t
    _reader_init(cython.address(reader), data, size, depth_max, fields_max)
    if reader.depth_left == 0:
        raise _syntax_error("tables nested deeper than 0")
    reader.depth_left -= 1
    return _table_fields(cython.address(reader))


def decode_table(data: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> dict[str, object]:
    """Decodes a table given without its 4-byte length (the headers of scan_properties, an AMQPLAIN response).

    Args: depth_max: nesting, the outermost table is 1, at most 256; fields_max: fields in all, nested ones counted too.
    Raises: PeerError SYNTAX_ERROR when malformed or over a limit.
    """
    return decode_table_at(cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(data)), PyBytes_GET_SIZE(data), depth_max, fields_max)


@cython.cfunc
def _argument(reader: cython.pointer(reader_t), letter: uint8_t):
    """One argument of a method or property that is no bit."""
    if letter == WIRE_SHORTSTR:
        return _shortstr(reader)
    if letter == WIRE_SHORT:
        return _number(reader, 2)
    if letter == WIRE_LONGLONG:
        return _number(reader, 8)
    if letter == WIRE_LONG:
        return _number(reader, 4)
    if letter == WIRE_TABLE:
        return _table(reader)
    if letter == WIRE_OCTET:
        return _number(reader, 1)
    if letter == WIRE_TIMESTAMP:
        return Timestamp(_number(reader, 8))
    return _longstr(reader)


@cython.cfunc
def _arguments(reader: cython.pointer(reader_t), wire: bytes) -> list:
    """All arguments of a method that are not reserved, in wire order."""
    letters: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(wire))
    count: cython.Py_ssize_t = PyBytes_GET_SIZE(wire)
    i: cython.Py_ssize_t = 0
    bits: uint32_t = 0
    bit: uint32_t = 8
    values: list = []
    while i < count:
        reserved: cython.bint = letters[i] == WIRE_RESERVED
        if reserved:
            i += 1
        letter: uint8_t = letters[i]
        i += 1
        if letter == WIRE_BIT:
            # Consecutive bits share octets, the first in the lowest bit (specification 4.2.5.2).
            if bit == 8:
                bits = _number(reader, 1)
                bit = 0
            value = (bits >> bit & 1) != 0
            bit += 1
        else:
            bit = 8
            value = _argument(reader, letter)
        if not reserved:
            values.append(value)
    if reader.at != reader.end:
        raise _syntax_error(f"{reader.end - reader.at} bytes left over")
    return values


def decode_method_at(data, size, depth_max, fields_max):
    reader: reader_t
    if size < 4:
        raise _syntax_error("method frame without class and method id")
    id_: uint32_t = _be(data, 4)
    entry = _METHODS.get(id_)
    if entry is None:
        raise PeerError(ReplyCode.COMMAND_INVALID, "unimplemented method")
    class_, wire = cython.cast(tuple, entry)
    if size == 4 and not wire:
        return class_()
    _reader_init(cython.address(reader), data + 4, size - 4, depth_max, fields_max)
    try:
        values = _arguments(cython.address(reader), wire)
    except PeerError as error:
        raise PeerError(error.code, f"cannot decode {class_.NAME}: {error.text}") from None
    return class_(*values)


def decode_method(payload: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> Method:
    """Decodes a method frame's payload (class id, method id, arguments); limits as in decode_table.

    Raises: PeerError COMMAND_INVALID when no such method exists, SYNTAX_ERROR when its arguments are malformed.
    """
    return decode_method_at(
        cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(payload)), PyBytes_GET_SIZE(payload), depth_max, fields_max
    )


@cython.cfunc
@cython.exceptval(PROP_UNKNOWN, check=True)
def _content_header(data: cython.pointer(cython.const[uint8_t]), size: cython.size_t) -> uint16_t:
    """Checks the fixed part of a content header and returns its property flags."""
    if size < _CONTENT_HEADER_SIZE:
        raise _syntax_error("truncated content header")
    if _be(data, 2) != _CLASS_BASIC:
        raise PeerError(
            ReplyCode.UNEXPECTED_FRAME, f"expected content header for class {_CLASS_BASIC}, got one for class {_be(data, 2)} instead"
        )
    if _be(data + 2, 2) != 0:
        raise _syntax_error("content header with a weight that is not 0")
    flags: uint16_t = _be(data + 12, 2)
    if flags & PROP_UNKNOWN:
        raise _syntax_error(f"unknown property flags 0x{flags:04x}")
    return flags


def decode_properties(payload: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> tuple[int, dict[str, object]]:
    """Decodes a content header frame's payload.

    Returns: body size (bytes, 0 .. 2**64 - 1) and the properties that are present, named as in BASIC_PROPERTIES.
    Raises: PeerError UNEXPECTED_FRAME for another class than basic, SYNTAX_ERROR when malformed.
    """
    reader: reader_t
    data: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(payload))
    size: cython.size_t = PyBytes_GET_SIZE(payload)
    flags: uint16_t = _content_header(data, size)
    _reader_init(cython.address(reader), data + _CONTENT_HEADER_SIZE, size - _CONTENT_HEADER_SIZE, depth_max, fields_max)
    properties: dict = {}
    for name, wire, flag in _PROPERTIES:
        if flags & cython.cast(uint16_t, flag):
            properties[name] = _argument(cython.address(reader), PyBytes_AS_STRING(wire)[0])
    if reader.at != reader.end:
        raise _syntax_error(f"{reader.end - reader.at} bytes left over after the properties")
    return _be(data + 4, 8), properties


# --- writing ------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(-1)
def _reserve(writer: cython.pointer(writer_t), size: cython.size_t) -> cython.int:
    wanted: cython.size_t = writer.used + size
    if wanted <= writer.size:
        return 0
    capacity: cython.size_t = 128 if writer.size == 0 else writer.size
    while capacity < wanted:
        capacity *= 2
    data: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), realloc(writer.data, capacity))
    if data == cython.NULL:
        raise MemoryError
    writer.data = data
    writer.size = capacity
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_at(at: cython.pointer(uint8_t), value: uint64_t, size: uint32_t) -> cython.void:
    while size > 0:
        size -= 1
        at[size] = value & 0xFF
        value >>= 8


@cython.cfunc
@cython.exceptval(-1)
def _put(writer: cython.pointer(writer_t), value: uint64_t, size: uint32_t) -> cython.int:
    """The `size` low bytes of `value`, big-endian."""
    _reserve(writer, size)
    _put_at(writer.data + writer.used, value, size)
    writer.used += size
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_number(writer: cython.pointer(writer_t), number, size: uint32_t) -> cython.int:
    """An unsigned number that has to fit `size` bytes."""
    if number < 0 or number >> (8 * size) != 0:
        raise ValueError(f"{number} does not fit {size} bytes")
    return _put(writer, number, size)


@cython.cfunc
@cython.exceptval(-1)
def _put_bytes(writer: cython.pointer(writer_t), data: bytes, length_size: uint32_t) -> cython.int:
    """`data` after its length of `length_size` bytes."""
    size: cython.size_t = PyBytes_GET_SIZE(data)
    if size >> (8 * length_size) != 0:
        raise ValueError(f"a string of {size} bytes does not fit a length of {length_size} bytes")
    _put(writer, size, length_size)
    _reserve(writer, size)
    memcpy(writer.data + writer.used, PyBytes_AS_STRING(data), size)
    writer.used += size
    return 0


@cython.cfunc
def _utf8(text) -> bytes:
    """The inverse of PyUnicode_DecodeUTF8 with surrogate escapes; TypeError unless `text` is str."""
    if not isinstance(text, str):
        raise TypeError(f"str wanted, not {type(text).__name__}")
    return cython.cast(str, text).encode("utf-8", "surrogateescape")


@cython.cfunc
@cython.exceptval(-1)
def _put_decimal(writer: cython.pointer(writer_t), value) -> cython.int:
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
    _put(writer, -exponent, 1)
    return _put(writer, number & 0xFFFFFFFF, 4)


@cython.cfunc
@cython.exceptval(-1)
def _put_int(writer: cython.pointer(writer_t), value) -> cython.int:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        _put(writer, TYPE_INT32, 1)
        return _put(writer, value & 0xFFFFFFFF, 4)
    if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        _put(writer, TYPE_INT64, 1)
        return _put(writer, value & 0xFFFFFFFFFFFFFFFF, 8)
    raise ValueError(f"{value} does not fit 64 bits")


@cython.cfunc
@cython.exceptval(-1)
def _put_double(writer: cython.pointer(writer_t), value: cython.double) -> cython.int:
    bits: uint64_t = 0
    memcpy(cython.address(bits), cython.address(value), 8)
    _put(writer, TYPE_DOUBLE, 1)
    return _put(writer, bits, 8)


@cython.cfunc
@cython.exceptval(-1)
def _put_field_value(writer: cython.pointer(writer_t), value, depth: uint32_t) -> cython.int:
    """Type octet and value. The order of the tests matters: bool and Timestamp are ints."""
    if isinstance(value, str):
        _put(writer, TYPE_LONGSTR, 1)
        _put_bytes(writer, _utf8(value), 4)
    elif value is None:
        _put(writer, TYPE_VOID, 1)
    elif isinstance(value, bool):
        _put(writer, TYPE_BOOL, 1)
        _put(writer, 1 if value else 0, 1)
    elif isinstance(value, Timestamp):
        _put(writer, TYPE_TIMESTAMP, 1)
        _put_number(writer, int(value), 8)
    elif isinstance(value, int):
        _put_int(writer, value)
    elif isinstance(value, dict):
        _put(writer, TYPE_TABLE, 1)
        _put_table(writer, value, depth)
    elif isinstance(value, (list, tuple)):
        _put(writer, TYPE_ARRAY, 1)
        _put_array(writer, value, depth)
    elif isinstance(value, float):
        _put_double(writer, value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _put(writer, TYPE_BYTES, 1)
        _put_bytes(writer, bytes(value), 4)
    elif isinstance(value, Decimal):
        _put(writer, TYPE_DECIMAL, 1)
        _put_decimal(writer, value)
    else:
        raise TypeError(f"no table field type for {type(value).__name__}")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_table_fields(writer: cython.pointer(writer_t), table: dict, depth: uint32_t) -> cython.int:
    if depth >= NESTING_MAX:
        raise ValueError(f"tables nested deeper than {NESTING_MAX}")
    for name, value in table.items():
        _put_bytes(writer, _utf8(name), 1)
        _put_field_value(writer, value, depth + 1)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_length(writer: cython.pointer(writer_t), start: cython.size_t) -> cython.int:
    """Fills in the 4-byte length at `start` of what was written after it."""
    size: cython.size_t = writer.used - start - 4
    if size > 0xFFFFFFFF:
        raise ValueError("table of 4 GiB or more")
    _put_at(writer.data + start, size, 4)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_table(writer: cython.pointer(writer_t), table: dict, depth: uint32_t) -> cython.int:
    start: cython.size_t = writer.used
    _put(writer, 0, 4)
    _put_table_fields(writer, table, depth)
    return _put_length(writer, start)


@cython.cfunc
@cython.exceptval(-1)
def _put_array(writer: cython.pointer(writer_t), items, depth: uint32_t) -> cython.int:
    if depth >= NESTING_MAX:
        raise ValueError(f"tables nested deeper than {NESTING_MAX}")
    start: cython.size_t = writer.used
    _put(writer, 0, 4)
    for item in items:
        _put_field_value(writer, item, depth + 1)
    return _put_length(writer, start)


@cython.cfunc
@cython.exceptval(-1)
def _put_argument(writer: cython.pointer(writer_t), letter: uint8_t, value) -> cython.int:
    """One argument of a method or property that is no bit."""
    if letter == WIRE_SHORTSTR:
        return _put_bytes(writer, _utf8(value), 1)
    if letter == WIRE_SHORT:
        return _put_number(writer, value, 2)
    if letter == WIRE_LONG:
        return _put_number(writer, value, 4)
    if letter == WIRE_LONGLONG or letter == WIRE_TIMESTAMP:
        return _put_number(writer, value, 8)
    if letter == WIRE_OCTET:
        return _put_number(writer, value, 1)
    if letter == WIRE_TABLE:
        return _put_table(writer, value, 0)
    return _put_bytes(writer, value, 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _zero_size(letter: uint8_t) -> uint32_t:
    """Bytes of a reserved argument that is no bit; all of them zero: no text, empty table, 0."""
    if letter == WIRE_SHORT:
        return 2
    if letter == WIRE_SHORTSTR or letter == WIRE_OCTET:
        return 1
    if letter == WIRE_LONGLONG or letter == WIRE_TIMESTAMP:
        return 8
    return 4


@cython.cfunc
@cython.exceptval(-1)
def _put_method(writer: cython.pointer(writer_t), method) -> cython.int:
    wire: bytes = method.WIRE
    fields: tuple = method.FIELDS
    letters: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(wire))
    count: cython.Py_ssize_t = PyBytes_GET_SIZE(wire)
    i: cython.Py_ssize_t = 0
    field: cython.Py_ssize_t = 0
    bit: uint32_t = 8
    _put(writer, method.ID, 4)
    while i < count:
        reserved: cython.bint = letters[i] == WIRE_RESERVED
        if reserved:
            i += 1
            value = False
        else:
            value = getattr(method, cython.cast(tuple, fields[field])[0])
            field += 1
        letter: uint8_t = letters[i]
        i += 1
        if letter == WIRE_BIT:
            if bit == 8:
                _put(writer, 0, 1)
                bit = 0
            if value:
                writer.data[writer.used - 1] |= cython.cast(uint8_t, 1 << bit)
            bit += 1
            continue
        bit = 8
        if reserved:
            _put(writer, 0, _zero_size(letter))
        else:
            _put_argument(writer, letter, value)
    return 0


@cython.cfunc
def _taken(writer: cython.pointer(writer_t)) -> bytes:
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, writer.data), writer.used)


def encode_table(table: dict) -> bytes:
    """Encodes a table without its 4-byte length: the inverse of decode_table.

    Raises: ValueError when something does not fit (a name above 255 bytes, a number above 64 bits, nesting above 256),
    TypeError for a value that no field type can hold.
    """
    writer: writer_t = writer_t(cython.NULL, 0, 0)
    try:
        _reserve(cython.address(writer), 1)
        _put_table_fields(cython.address(writer), table, 0)
        return _taken(cython.address(writer))
    finally:
        free(writer.data)


def encode_method(method: Method) -> bytes:
    """Encodes a method frame's payload. Raises: ValueError or TypeError when an argument does not fit."""
    writer: writer_t = writer_t(cython.NULL, 0, 0)
    try:
        _put_method(cython.address(writer), method)
        return _taken(cython.address(writer))
    finally:
        free(writer.data)


def method_frame(channel: uint16_t, method: Method) -> bytes:
    """A whole method frame. Raises: ValueError or TypeError when an argument does not fit."""
    writer: writer_t = writer_t(cython.NULL, 0, 0)
    try:
        _put(cython.address(writer), _FRAME_METHOD, 1)
        _put(cython.address(writer), channel, 2)
        _put(cython.address(writer), 0, 4)
        _put_method(cython.address(writer), method)
        _put_at(writer.data + 3, writer.used - _FRAME_HEADER_SIZE, 4)
        _put(cython.address(writer), _FRAME_END, 1)
        return _taken(cython.address(writer))
    finally:
        free(writer.data)


def encode_frame(frame_type: uint8_t, channel: uint16_t, payload: bytes) -> bytes:
    """A whole frame around `payload` (its size is not compared with frame-max: the connection knows that)."""
    writer: writer_t = writer_t(cython.NULL, 0, 0)
    try:
        _put(cython.address(writer), frame_type, 1)
        _put(cython.address(writer), channel, 2)
        _put_bytes(cython.address(writer), payload, 4)
        _put(cython.address(writer), _FRAME_END, 1)
        return _taken(cython.address(writer))
    finally:
        free(writer.data)


def encode_properties(body_size: int, properties: dict) -> bytes:
    """Encodes a content header frame's payload.

    Args: body_size: bytes, 0 .. 2**64 - 1; properties: by the names of BASIC_PROPERTIES, None counts as absent.
    Raises: ValueError for an unknown name or a value that does not fit, TypeError for one of the wrong type.
    """
    for name in properties:
        if name not in _PROPERTY_NAMES:
            raise ValueError(f"no property {name!r}")
    flags: uint16_t = 0
    writer: writer_t = writer_t(cython.NULL, 0, 0)
    try:
        _put(cython.address(writer), _CLASS_BASIC, 2)
        _put(cython.address(writer), 0, 2)
        _put_number(cython.address(writer), body_size, 8)
        _put(cython.address(writer), 0, 2)
        for name, wire, flag in _PROPERTIES:
            value = properties.get(name)
            if value is not None:
                flags |= cython.cast(uint16_t, flag)
                _put_argument(cython.address(writer), PyBytes_AS_STRING(wire)[0], value)
        _put_at(writer.data + 12, flags, 2)
        return _taken(cython.address(writer))
    finally:
        free(writer.data)


def clip_shortstr(text: str, size_max: int = 255) -> str:
    """`text` cut to at most `size_max` bytes of UTF-8, between characters: for reply texts, which quote what clients sent."""
    data: bytes = _utf8(text)
    if len(data) <= size_max:
        return text
    while size_max > 0 and data[size_max] & 0xC0 == 0x80:
        size_max -= 1
    return data[:size_max].decode("utf-8", "surrogateescape")


# --- scanning (no Python objects) ---------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_table(p: cython.pointer(cython.const[uint8_t]), n: uint32_t) -> cython.int:
    """Validates a table's fields. -1 malformed, 1 when it has a top-level CC or BCC, else 0."""
    ends: cython.pointer(cython.const[uint8_t])[SCAN_DEPTH_MAX]
    is_table: cython.bint[SCAN_DEPTH_MAX]
    end: cython.pointer(cython.const[uint8_t]) = p + n
    depth: uint32_t = 0
    fields: uint32_t = 0
    size: uint64_t = 0
    kind: uint8_t = 0
    has_cc: cython.int = 0
    ends[0] = end
    is_table[0] = True
    while True:
        if p == end:
            if depth == 0:
                return has_cc
            depth -= 1
            end = ends[depth]
            continue
        fields += 1
        if fields > SCAN_FIELDS_MAX:
            return -1
        if is_table[depth]:
            size = p[0]
            if cython.cast(uint64_t, end - p) < size + 2:  # the length, the name, the type
                return -1
            if depth == 0 and ((size == 2 and p[1] == 67 and p[2] == 67) or (size == 3 and p[1] == 66 and p[2] == 67 and p[3] == 67)):
                has_cc = 1  # "CC", "BCC"
            p += size + 1
        kind = p[0]
        p += 1
        size = 0
        if kind == TYPE_LONGSTR or kind == TYPE_BYTES or kind == TYPE_TABLE or kind == TYPE_ARRAY:
            if end - p < 4:
                return -1
            size = _be(p, 4)
            p += 4
        elif kind == TYPE_BOOL or kind == TYPE_INT8 or kind == TYPE_UINT8:
            size = 1
        elif kind == TYPE_INT16 or kind == TYPE_UINT16:
            size = 2
        elif kind == TYPE_INT32 or kind == TYPE_UINT32 or kind == TYPE_FLOAT:
            size = 4
        elif kind == TYPE_INT64 or kind == TYPE_INT64_QPID or kind == TYPE_DOUBLE or kind == TYPE_TIMESTAMP:
            size = 8
        elif kind == TYPE_DECIMAL:
            size = 5
        elif kind != TYPE_VOID:
            return -1
        if cython.cast(uint64_t, end - p) < size:
            return -1
        if kind == TYPE_TABLE or kind == TYPE_ARRAY:
            depth += 1
            if depth == SCAN_DEPTH_MAX:
                return -1
            end = p + size
            ends[depth] = end
            is_table[depth] = kind == TYPE_TABLE
        else:
            p += size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_expiration(p: cython.pointer(cython.const[uint8_t]), n: uint32_t) -> int64_t:
    """Milliseconds of the text, or EXPIRATION_INVALID. A sign is allowed, as Erlang's string:to_integer allows it."""
    i: uint32_t = 0
    value: int64_t = 0
    negative: cython.bint = False
    if n > 0 and (p[0] == 43 or p[0] == 45):  # + -
        negative = p[0] == 45
        i = 1
    if i == n:
        return EXPIRATION_INVALID
    while i < n:
        if p[i] < 48 or p[i] > 57:
            return EXPIRATION_INVALID
        value = value * 10 + (p[i] - 48)
        if value > EXPIRATION_MAX:
            return EXPIRATION_INVALID
        i += 1
    if negative and value != 0:
        return EXPIRATION_INVALID
    return value


def scan_properties(p, n, out):
    end: cython.pointer(cython.const[uint8_t]) = p + n
    flag: uint16_t = PROP_CONTENT_TYPE
    size: uint32_t = 0
    has_cc: cython.int = 0
    if n < _CONTENT_HEADER_SIZE or _be(p, 2) != _CLASS_BASIC or _be(p + 2, 2) != 0:
        return -1
    out.body_size = _be(p + 4, 8)
    out.flags = cython.cast(uint16_t, _be(p + 12, 2))
    out.delivery_mode = 0
    out.priority = PRIORITY_ABSENT
    out.expiration_ms = EXPIRATION_ABSENT
    out.reply_to = cython.NULL
    out.reply_to_len = 0
    out.headers = cython.NULL
    out.headers_len = 0
    out.has_cc = False
    if out.flags & PROP_UNKNOWN:
        return -1
    p += _CONTENT_HEADER_SIZE
    while flag >= PROP_CLUSTER_ID:
        if out.flags & flag == 0:
            flag >>= 1
            continue
        if p == end:
            return -1
        if flag == PROP_HEADERS:
            if end - p < 4:
                return -1
            size = cython.cast(uint32_t, _be(p, 4))
            p += 4
            if cython.cast(uint64_t, end - p) < size:
                return -1
            has_cc = _scan_table(p, size)
            if has_cc < 0:
                return -1
            out.headers = p
            out.headers_len = size
            out.has_cc = has_cc
        elif flag == PROP_DELIVERY_MODE:
            out.delivery_mode = p[0]
            size = 1
        elif flag == PROP_PRIORITY:
            out.priority = p[0] if p[0] != PRIORITY_ABSENT else PRIORITY_ABSENT - 1
            size = 1
        elif flag == PROP_TIMESTAMP:
            size = 8
        else:
            size = p[0]
            p += 1
            if flag == PROP_REPLY_TO:
                out.reply_to = p
                out.reply_to_len = cython.cast(uint8_t, size)
            elif flag == PROP_EXPIRATION and cython.cast(uint64_t, end - p) >= size:
                out.expiration_ms = _scan_expiration(p, size)
        if cython.cast(uint64_t, end - p) < size:
            return -1
        p += size
        flag >>= 1
    return 0 if p == end else -1


def scan_properties_of(payload: bytes) -> dict[str, object] | None:
    """scan_properties for tests and tools: its struct as a dict (reply_to and headers as bytes or None); None when malformed."""
    out: props_scan_t
    if scan_properties(cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(payload)), len(payload), cython.address(out)) != 0:
        return None
    return {
        "body_size": out.body_size,
        "flags": out.flags,
        "delivery_mode": out.delivery_mode,
        "priority": out.priority,
        "expiration_ms": out.expiration_ms,
        "reply_to": None
        if out.reply_to == cython.NULL
        else PyBytes_FromStringAndSize(cython.cast(cython.p_char, out.reply_to), out.reply_to_len),
        "headers": None
        if out.headers == cython.NULL
        else PyBytes_FromStringAndSize(cython.cast(cython.p_char, out.headers), out.headers_len),
        "has_cc": bool(out.has_cc),
    }
