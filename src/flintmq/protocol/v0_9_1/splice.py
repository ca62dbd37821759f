"""Content headers and tables as their wire bytes: cut apart, changed in one place, put together again.

in: a content header payload, a table or an array as received. out: the same bytes in pieces; and bytes of new field values.

A broker that changes one header of a message must not change the type of the others: an int16 decoded and encoded again is an int32,
a float a double, and a client that casts what it reads fails. So whoever changes a header does it on the wire bytes.

I1  join(split(b)) == b, for every b that split accepts.
I2  No byte beyond the given length is read; malformed bytes raise PeerError and nothing else. Nested values are not looked into.
"""
# Compiled: Cython checks the types and names that come from the .pxd.
# mypy: ignore-errors

from __future__ import annotations

import cython
from cython import NULL, cast, cfunc, p_char, p_void, pointer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.header_field import value_size
from cython.cimports.flintmq.protocol.v0_9_1.scan import CONTENT_HEADER_SIZE, PROP_UNKNOWN
from cython.cimports.flintmq.protocol.v0_9_1.tables import be_load, syntax_error
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t

from flintmq.protocol.v0_9_1.spec import BASIC_PROPERTIES, CLASS_BASIC

_FIXED = CLASS_BASIC.to_bytes(2, "big") + b"\x00\x00"
_INTEGERS = {b"b": True, b"B": False, b"s": True, b"u": False, b"I": True, b"i": False, b"l": True, b"L": True}
_INT64_MAX = 2**63 - 1


def value_end(byte: pointer[cython.const[uint8_t]], end: pointer[cython.const[uint8_t]]) -> pointer[cython.const[uint8_t]]:
    size: uint32_t = value_size(byte, cast(uint64_t, end - byte)) if byte < end else 0
    return byte + size if size else NULL


@cfunc
def _slice(start: pointer[cython.const[uint8_t]], end: pointer[cython.const[uint8_t]]):
    return PyBytes_FromStringAndSize(cast(p_char, cast(p_void, start)), end - start)


def split_properties(payload: bytes) -> tuple[int, dict[str, bytes]]:
    """Cuts a content header frame's payload: body size (bytes), and the wire bytes of each property that is there, by its name in
    BASIC_PROPERTIES: strings with their length octet, `headers` without its length. Raises: PeerError SYNTAX_ERROR when malformed."""
    byte: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], PyBytes_AS_STRING(payload))
    end: pointer[cython.const[uint8_t]] = byte + PyBytes_GET_SIZE(payload)
    flags: uint16_t
    size: uint64_t
    body_size: uint64_t
    parts: dict = {}
    if end - byte < CONTENT_HEADER_SIZE or payload[:4] != _FIXED:
        raise syntax_error("a content header that is truncated or of another class")
    body_size = be_load(byte + 4, 8)
    flags = cast(uint16_t, be_load(byte + 12, 2))
    if flags & PROP_UNKNOWN:
        raise syntax_error(f"unknown property flags 0x{flags:04x}")
    byte += CONTENT_HEADER_SIZE
    for name, wire, flag in BASIC_PROPERTIES:
        if not flags & cast(uint16_t, flag):
            continue
        if wire == "table":
            if end - byte < 4:
                raise syntax_error("truncated: a length points past the end")
            size = be_load(byte, 4)
            byte += 4
        elif wire == "timestamp":
            size = 8
        elif wire == "octet":
            size = 1
        else:
            if byte == end:
                raise syntax_error("truncated: a length points past the end")
            size = cast(uint64_t, byte[0]) + 1
        if cast(uint64_t, end - byte) < size:
            raise syntax_error("truncated: a length points past the end")
        parts[name] = _slice(byte, byte + size)
        byte += size
    if byte != end:
        raise syntax_error(f"{end - byte} bytes left over after the properties")
    return body_size, parts


def join_properties(body_size: int, parts: dict[str, bytes]) -> bytes:
    """The inverse of split_properties. Raises: ValueError for headers of 4 GiB."""
    flags = 0
    pieces: list = []
    for name, _, flag in BASIC_PROPERTIES:
        value = parts.get(name)
        if value is None:
            continue
        flags |= flag
        if name == "headers":
            pieces.append(_length(value))
        pieces.append(value)
    return b"".join([_FIXED, body_size.to_bytes(8, "big"), flags.to_bytes(2, "big"), *pieces])


def split_table(table: bytes) -> list[tuple[bytes, bytes]]:
    """(name, value with its type octet) of each field of a table given without its length, in order, repeated names included.
    Raises: PeerError SYNTAX_ERROR when malformed."""
    byte: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], PyBytes_AS_STRING(table))
    end: pointer[cython.const[uint8_t]] = byte + PyBytes_GET_SIZE(table)
    value: pointer[cython.const[uint8_t]]
    behind: pointer[cython.const[uint8_t]]
    fields: list = []
    while byte < end:
        value = byte + 1 + byte[0] if end - byte > byte[0] else end
        behind = value_end(value, end)
        if behind == NULL:
            raise syntax_error("truncated table, or a field of an unknown type")
        fields.append((_slice(byte + 1, value), _slice(value, behind)))
        byte = behind
    return fields


def join_table(fields: list[tuple[bytes, bytes]]) -> bytes:
    """The inverse of split_table. Raises: ValueError for a name above 255 bytes."""
    pieces: list = []
    for name, value in fields:
        if len(name) > 255:
            raise ValueError(f"a field name of {len(name)} bytes, at most 255")
        pieces.append(bytes((len(name),)))
        pieces.append(name)
        pieces.append(value)
    return b"".join(pieces)


def split_array(items: bytes) -> list[bytes]:
    """Each item, with its type octet, of an array given without its length. Raises: PeerError SYNTAX_ERROR when malformed."""
    byte: pointer[cython.const[uint8_t]] = cast(pointer[uint8_t], PyBytes_AS_STRING(items))
    end: pointer[cython.const[uint8_t]] = byte + PyBytes_GET_SIZE(items)
    behind: pointer[cython.const[uint8_t]]
    items_out: list = []
    while byte < end:
        behind = value_end(byte, end)
        if behind == NULL:
            raise syntax_error("truncated array, or an item of an unknown type")
        items_out.append(_slice(byte, behind))
        byte = behind
    return items_out


# --- single values ----------------------------------------------------------------------------------------------------------


def _length(data: bytes) -> bytes:
    if len(data) > 0xFFFFFFFF:
        raise ValueError("a string or table of 4 GiB or more")
    return len(data).to_bytes(4, "big")


def longstr_field(data: bytes) -> bytes:
    return b"S" + _length(data) + data


def table_field(fields: list[tuple[bytes, bytes]]) -> bytes:
    data: bytes = join_table(fields)
    return b"F" + _length(data) + data


def array_field(items: list[bytes]) -> bytes:
    data: bytes = b"".join(items)
    return b"A" + _length(data) + data


def long_field(value: int) -> bytes:
    """An int64; what is more saturates."""
    return b"l" + min(value, _INT64_MAX).to_bytes(8, "big", signed=True)


def field_integer(value: bytes) -> int | None:
    """The number in a field value of an integer type; None for any other."""
    signed = _INTEGERS.get(value[:1])
    return None if signed is None else int.from_bytes(value[1:], "big", signed=signed)


def field_text(value: bytes) -> bytes | None:
    """The bytes of a field value of type S; None for any other."""
    return value[5:] if value[:1] == b"S" else None
