"""AMQP 0-9-1 codec: methods, content headers and frames <-> Python values (signatures for C callers: codec.pxd).

in: payloads of whole frames, as received; Method objects, dicts. out: Method objects, dicts, wire bytes.
The invariants and the mapping of values are those of tables.py, whose public names and scan.py's are offered here too.
"""

from __future__ import annotations

import cython
from cython import NULL, Py_ssize_t, address, bint, cast, cfunc, exceptval, nogil, pointer, size_t
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.content import FRAME_END, FRAME_HEADER_SIZE
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.flintmq.protocol.v0_9_1.ids import CLASS_BASIC, FRAME_METHOD
from cython.cimports.flintmq.protocol.v0_9_1.scan import CONTENT_HEADER_SIZE, PROP_UNKNOWN
from cython.cimports.flintmq.protocol.v0_9_1.tables import (
    be_load, be_store, put_bytes, put_number, put_table, put_uint, read_longstr, read_number, read_shortstr, read_table, reader_init,
    reader_t, syntax_error, utf8_bytes, writer_bytes, writer_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint8_t
from cython.cimports.libc.stdlib import free

from flintmq.errors import PeerError, ReplyCode
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from flintmq.protocol.v0_9_1.spec import BASIC_PROPERTIES, METHODS, Method
from flintmq.protocol.v0_9_1.tables import DEPTH_MAX, FIELDS_MAX, Timestamp, clip_shortstr, decode_table, encode_table

__all__ = [
    "Timestamp",
    "clip_shortstr",
    "decode_method",
    "decode_properties",
    "decode_table",
    "encode_frame",
    "encode_method",
    "encode_properties",
    "encode_table",
    "method_frame",
    "scan_properties_of",
]


# One dictionary look-up and no attribute access per decoded method.
_METHODS: dict = {id_: (class_, class_.WIRE) for id_, class_ in METHODS.items()}
_PROPERTY_LETTERS = {"octet": b"o", "timestamp": b"t", "shortstr": b"s", "table": b"F"}
_PROPERTIES: tuple = tuple((name, _PROPERTY_LETTERS[wire], flag) for name, wire, flag in BASIC_PROPERTIES)
# RabbitMQ's words for a name, tag or routing key that is none
NOT_UTF8 = "Malformed UTF-8 in shortstr"
_PROPERTY_NAMES = frozenset(name for name, _, _ in BASIC_PROPERTIES)


@cfunc
def _argument(reader: pointer[reader_t], letter: uint8_t):
    """One argument of a method or property that is no bit."""
    if letter == WIRE_SHORTSTR:
        if reader.strict and reader.at < reader.end and not is_utf8(reader.at + 1, min(reader.at[0], reader.end - reader.at - 1)):
            raise PeerError(ReplyCode.FRAME_ERROR, NOT_UTF8)
        return read_shortstr(reader)
    if letter == WIRE_SHORT:
        return read_number(reader, 2)
    if letter == WIRE_LONGLONG:
        return read_number(reader, 8)
    if letter == WIRE_LONG:
        return read_number(reader, 4)
    if letter == WIRE_TABLE:
        return read_table(reader)
    if letter == WIRE_OCTET:
        return read_number(reader, 1)
    if letter == WIRE_TIMESTAMP:
        return Timestamp(read_number(reader, 8))
    return read_longstr(reader)


@cfunc
def _arguments(reader: pointer[reader_t], wire: bytes) -> list:
    """All arguments of a method that are not reserved, in wire order."""
    letters: pointer[uint8_t] = cast(pointer[uint8_t], PyBytes_AS_STRING(wire))
    count: Py_ssize_t = PyBytes_GET_SIZE(wire)
    i: Py_ssize_t = 0
    bits: uint32_t = 0
    bit: uint32_t = 8
    values: list = []
    while i < count:
        reserved: bint = letters[i] == WIRE_RESERVED
        if reserved:
            i += 1
        letter: uint8_t = letters[i]
        i += 1
        if letter == WIRE_BIT:
            # Consecutive bits share octets, the first in the lowest bit (specification 4.2.5.2).
            if bit == 8:
                bits = read_number(reader, 1)
                bit = 0
            value = (bits >> bit & 1) != 0
            bit += 1
        else:
            bit = 8
            value = _argument(reader, letter)
        if not reserved:
            values.append(value)
    if reader.at != reader.end:
        raise syntax_error(f"{reader.end - reader.at} bytes left over")
    return values


def decode_method_at(data: pointer[cython.const[uint8_t]], size: size_t, depth_max: uint32_t, fields_max: uint32_t, strict: bint) -> object:
    reader: reader_t
    if size < 4:
        raise syntax_error("method frame without class and method id")
    id_: uint32_t = be_load(data, 4)
    entry = _METHODS.get(id_)
    if entry is None:
        raise PeerError(ReplyCode.COMMAND_INVALID, "unimplemented method")
    class_, wire = cast(tuple, entry)
    if size == 4 and not wire:
        return class_()
    reader_init(address(reader), data + 4, size - 4, depth_max, fields_max)
    reader.strict = strict
    try:
        values = _arguments(address(reader), wire)
    except PeerError as error:
        if error.code == ReplyCode.FRAME_ERROR:
            raise
        raise PeerError(error.code, f"cannot decode {class_.NAME}: {error.text}") from None
    return class_(*values)


def decode_method(payload: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> Method:
    """Decodes a method frame's payload (class id, method id, arguments); limits as in decode_table.

    Raises: PeerError COMMAND_INVALID when no such method exists, SYNTAX_ERROR when its arguments are malformed.
    """
    return decode_method_at(cast(pointer[uint8_t], PyBytes_AS_STRING(payload)), PyBytes_GET_SIZE(payload), depth_max, fields_max, False)


@cfunc
@exceptval(PROP_UNKNOWN, check=True)
def _content_header(data: pointer[cython.const[uint8_t]], size: size_t) -> uint16_t:
    """Checks the fixed part of a content header and returns its property flags."""
    if size < CONTENT_HEADER_SIZE:
        raise syntax_error("truncated content header")
    if be_load(data, 2) != CLASS_BASIC:
        raise PeerError(
            ReplyCode.UNEXPECTED_FRAME, f"expected content header for class {CLASS_BASIC}, got one for class {be_load(data, 2)} instead"
        )
    if be_load(data + 2, 2) != 0:
        raise syntax_error("content header with a weight that is not 0")
    flags: uint16_t = be_load(data + 12, 2)
    if flags & PROP_UNKNOWN:
        raise syntax_error(f"unknown property flags 0x{flags:04x}")
    return flags


def decode_properties(payload: bytes, depth_max: uint32_t = DEPTH_MAX, fields_max: uint32_t = FIELDS_MAX) -> tuple[int, dict[str, object]]:
    """Decodes a content header frame's payload.

    Returns: body size (bytes, 0 .. 2**64 - 1) and the properties that are present, named as in BASIC_PROPERTIES.
    Raises: PeerError UNEXPECTED_FRAME for another class than basic, SYNTAX_ERROR when malformed.
    """
    reader: reader_t
    data: pointer[uint8_t] = cast(pointer[uint8_t], PyBytes_AS_STRING(payload))
    size: size_t = PyBytes_GET_SIZE(payload)
    flags: uint16_t = _content_header(data, size)
    reader_init(address(reader), data + CONTENT_HEADER_SIZE, size - CONTENT_HEADER_SIZE, depth_max, fields_max)
    properties: dict = {}
    for name, wire, flag in _PROPERTIES:
        if flags & cast(uint16_t, flag):
            properties[name] = _argument(address(reader), PyBytes_AS_STRING(wire)[0])
    if reader.at != reader.end:
        raise syntax_error(f"{reader.end - reader.at} bytes left over after the properties")
    return be_load(data + 4, 8), properties


@cfunc
@exceptval(-1)
def _put_argument(writer: pointer[writer_t], letter: uint8_t, value) -> c_int:
    """One argument of a method or property that is no bit."""
    if letter == WIRE_SHORTSTR:
        return put_bytes(writer, utf8_bytes(value), 1)
    if letter == WIRE_SHORT:
        return put_number(writer, value, 2)
    if letter == WIRE_LONG:
        return put_number(writer, value, 4)
    if letter == WIRE_LONGLONG or letter == WIRE_TIMESTAMP:
        return put_number(writer, value, 8)
    if letter == WIRE_OCTET:
        return put_number(writer, value, 1)
    if letter == WIRE_TABLE:
        return put_table(writer, value, 0)
    return put_bytes(writer, value, 4)


@cfunc
@nogil
@exceptval(check=False)
def _zero_size(letter: uint8_t) -> uint32_t:
    """Bytes of a reserved argument that is no bit; all of them zero: no text, empty table, 0."""
    if letter == WIRE_SHORT:
        return 2
    if letter == WIRE_SHORTSTR or letter == WIRE_OCTET:
        return 1
    if letter == WIRE_LONGLONG or letter == WIRE_TIMESTAMP:
        return 8
    return 4


@cfunc
@exceptval(-1)
def _put_method(writer: pointer[writer_t], method) -> c_int:
    wire: bytes = method.WIRE
    fields: tuple = method.FIELDS
    letters: pointer[uint8_t] = cast(pointer[uint8_t], PyBytes_AS_STRING(wire))
    count: Py_ssize_t = PyBytes_GET_SIZE(wire)
    i: Py_ssize_t = 0
    field: Py_ssize_t = 0
    bit: uint32_t = 8
    put_uint(writer, method.ID, 4)
    while i < count:
        reserved: bint = letters[i] == WIRE_RESERVED
        if reserved:
            i += 1
            value = False
        else:
            value = getattr(method, cast(tuple, fields[field])[0])
            field += 1
        letter: uint8_t = letters[i]
        i += 1
        if letter == WIRE_BIT:
            if bit == 8:
                put_uint(writer, 0, 1)
                bit = 0
            if value:
                writer.data[writer.used - 1] |= cast(uint8_t, 1 << bit)
            bit += 1
            continue
        bit = 8
        if reserved:
            put_uint(writer, 0, _zero_size(letter))
        else:
            _put_argument(writer, letter, value)
    return 0


def encode_method(method: object) -> bytes:
    """Encodes the payload of a method frame (a spec.Method). Raises: ValueError or TypeError when an argument does not fit."""
    writer: writer_t = writer_t(NULL, 0, 0)
    try:
        _put_method(address(writer), method)
        return writer_bytes(address(writer))
    finally:
        free(writer.data)


def method_frame(channel: uint16_t, method: Method) -> bytes:
    """A whole method frame. Raises: ValueError or TypeError when an argument does not fit."""
    writer: writer_t = writer_t(NULL, 0, 0)
    try:
        put_uint(address(writer), FRAME_METHOD, 1)
        put_uint(address(writer), channel, 2)
        put_uint(address(writer), 0, 4)
        _put_method(address(writer), method)
        be_store(writer.data + 3, writer.used - FRAME_HEADER_SIZE, 4)
        put_uint(address(writer), FRAME_END, 1)
        return writer_bytes(address(writer))
    finally:
        free(writer.data)


def encode_frame(frame_type: uint8_t, channel: uint16_t, payload: bytes) -> bytes:
    """A whole frame around `payload` (its size is not compared with frame-max: the connection knows that)."""
    writer: writer_t = writer_t(NULL, 0, 0)
    try:
        put_uint(address(writer), frame_type, 1)
        put_uint(address(writer), channel, 2)
        put_bytes(address(writer), payload, 4)
        put_uint(address(writer), FRAME_END, 1)
        return writer_bytes(address(writer))
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
    writer: writer_t = writer_t(NULL, 0, 0)
    try:
        put_uint(address(writer), CLASS_BASIC, 2)
        put_uint(address(writer), 0, 2)
        put_number(address(writer), body_size, 8)
        put_uint(address(writer), 0, 2)
        for name, wire, flag in _PROPERTIES:
            value = properties.get(name)
            if value is not None:
                flags |= cast(uint16_t, flag)
                _put_argument(address(writer), PyBytes_AS_STRING(wire)[0], value)
        be_store(writer.data + 12, flags, 2)
        return writer_bytes(address(writer))
    finally:
        free(writer.data)
