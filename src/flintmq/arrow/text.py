"""Properties of a message as columns (see text.pxd).

in: content header payloads as they lie in the log. out: values in a Table.

I1  A payload is checked whole (protocol.scan) before any of it becomes a value.
I2  `headers_raw` are the bytes of the field table with their length; `headers` is a readable form of them (readable.py).
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, pointer, size_t, void, with_gil
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.arrow.table import COL_NONE, Table, col_bytes, col_int32, col_int64, col_next, col_text, column_t
from cython.cimports.flintmq.core.byte_order import get16, get32, get64
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    CONTENT_HEADER_SIZE, PROP_APP_ID, PROP_CLUSTER_ID, PROP_CONTENT_ENCODING, PROP_CONTENT_TYPE, PROP_CORRELATION_ID, PROP_DELIVERY_MODE,
    PROP_EXPIRATION, PROP_HEADERS, PROP_MESSAGE_ID, PROP_PRIORITY, PROP_REPLY_TO, PROP_TIMESTAMP, PROP_TYPE, PROP_USER_ID, props_scan_t,
    scan_properties,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.tables import (
    TYPE_BOOL, TYPE_BYTES, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_INT64_QPID, TYPE_INT8, TYPE_LONGSTR, TYPE_UINT16, TYPE_UINT32,
    TYPE_UINT8, TYPE_VOID,
)  # fmt: skip
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcmp

from flintmq.arrow.readable import readable_headers
from flintmq.protocol.v0_9_1.tables import Timestamp, decode_table

# Microseconds of 9999-12-31, the last day Spark can show; AMQP allows any 64-bit number of seconds.
LAST_MICROSECOND = declare(uint64_t, 253402300799999999)
# Tables of more fields go through Python, which finds names that repeat by hash.
SIMPLE_FIELDS_MAX = declare(uint32_t, 32)


def put_time(c: pointer[column_t], row: uint32_t, time_us: uint64_t) -> void:
    if time_us <= LAST_MICROSECOND:
        col_int64(c, row, cast(int64_t, time_us))


def route_good(p: pointer[cython.const[uint8_t]], n: uint32_t) -> bint:
    cut: uint32_t
    if n < 2:
        return False
    cut = 1 + p[0]
    return cut < n and cut + 1 + p[cut] == n


def put_route(exchange: pointer[column_t], key: pointer[column_t], row: uint32_t, p: pointer[cython.const[uint8_t]], n: uint32_t) -> bint:
    cut: uint32_t
    if not route_good(p, n):
        return False
    cut = 1 + p[0]
    col_text(exchange, row, p + 1, p[0])
    col_text(key, row, p + cut + 1, p[cut])
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _short(c: pointer[column_t], row: uint32_t, p: pointer[cython.const[uint8_t]]) -> uint32_t:
    """A short string; how many bytes it takes."""
    col_text(c, row, p + 1, p[0])
    return 1 + cast(uint32_t, p[0])


def put_header(table: Table | None, row: uint32_t, p: pointer[cython.const[uint8_t]], n: uint32_t) -> bint:
    out: props_scan_t
    columns: pointer[column_t] = table.columns
    flags: uint16_t
    seconds: uint64_t
    size: uint32_t
    if scan_properties(p, n, address(out)) != 0:
        return False
    flags = out.flags
    p += CONTENT_HEADER_SIZE
    if flags & PROP_CONTENT_TYPE:
        p += _short(columns + M_CONTENT_TYPE, row, p)
    if flags & PROP_CONTENT_ENCODING:
        p += _short(columns + M_CONTENT_ENCODING, row, p)
    if flags & PROP_HEADERS:
        size = get32(p)
        col_bytes(columns + M_HEADERS_RAW, row, p, size + 4)
        if columns[M_HEADERS].kind != COL_NONE:
            _put_map(table, row, p + 4, size)
        p += size + 4
    if flags & PROP_DELIVERY_MODE:
        col_int32(columns + M_DELIVERY_MODE, row, p[0])
        p += 1
    if flags & PROP_PRIORITY:
        col_int32(columns + M_PRIORITY, row, p[0])
        p += 1
    if flags & PROP_CORRELATION_ID:
        p += _short(columns + M_CORRELATION_ID, row, p)
    if flags & PROP_REPLY_TO:
        p += _short(columns + M_REPLY_TO, row, p)
    if flags & PROP_EXPIRATION:
        p += _short(columns + M_EXPIRATION, row, p)
    if flags & PROP_MESSAGE_ID:
        p += _short(columns + M_MESSAGE_ID, row, p)
    if flags & PROP_TIMESTAMP:
        seconds = get64(p)
        p += 8
        if seconds <= LAST_MICROSECOND // 1000000:
            col_int64(columns + M_TIMESTAMP, row, cast(int64_t, seconds * 1000000))
    if flags & PROP_TYPE:
        p += _short(columns + M_TYPE, row, p)
    if flags & PROP_USER_ID:
        p += _short(columns + M_USER_ID, row, p)
    if flags & PROP_APP_ID:
        p += _short(columns + M_APP_ID, row, p)
    if flags & PROP_CLUSTER_ID:
        _short(columns + M_CLUSTER_ID, row, p)
    return True


def find_message_id(p: pointer[cython.const[uint8_t]], n: uint32_t) -> pointer[cython.const[uint8_t]]:
    out: props_scan_t
    flags: uint16_t
    flag: uint16_t = PROP_CONTENT_TYPE
    if scan_properties(p, n, address(out)) != 0 or out.flags & PROP_MESSAGE_ID == 0:
        return NULL
    flags = out.flags
    p += CONTENT_HEADER_SIZE
    while flag > PROP_MESSAGE_ID:
        if flags & flag:
            if flag == PROP_HEADERS:
                p += 4 + get32(p)
            elif flag == PROP_DELIVERY_MODE or flag == PROP_PRIORITY:
                p += 1
            else:
                p += 1 + p[0]
        flag >>= 1
    return p


# --- headers ------------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _simple_size(kind: uint8_t, p: pointer[cython.const[uint8_t]]) -> int64_t:
    """Bytes of the value at `p` of a type that is put without Python; -1: another type."""
    if kind == TYPE_LONGSTR or kind == TYPE_BYTES:
        return 4 + cast(int64_t, get32(p))
    if kind == TYPE_BOOL or kind == TYPE_INT8 or kind == TYPE_UINT8:
        return 1
    if kind == TYPE_INT16 or kind == TYPE_UINT16:
        return 2
    if kind == TYPE_INT32 or kind == TYPE_UINT32:
        return 4
    if kind == TYPE_INT64 or kind == TYPE_INT64_QPID:
        return 8
    if kind == TYPE_VOID:
        return 0
    return -1


@cfunc
@nogil
@exceptval(check=False)
def _is_simple(p: pointer[cython.const[uint8_t]], n: uint32_t) -> bint:
    """Whether all fields are of simple types, few, valid UTF-8, and no name repeats. The table was checked."""
    names: pointer[cython.const[uint8_t]][32]
    count: uint32_t = 0
    i: uint32_t
    at: uint32_t = 0
    kind: uint8_t
    size: int64_t
    while at < n:
        if count == SIMPLE_FIELDS_MAX or not is_utf8(p + at + 1, p[at]):
            return False
        for i in range(count):
            if memcmp(names[i], p + at, cast(size_t, 1) + p[at]) == 0:
                return False
        names[count] = p + at
        count += 1
        at += 1 + p[at]
        kind = p[at]
        size = _simple_size(kind, p + at + 1)
        if size < 0:
            return False
        if (kind == TYPE_LONGSTR or kind == TYPE_BYTES) and not is_utf8(p + at + 5, cast(uint64_t, size - 4)):
            return False
        at += 1 + cast(uint32_t, size)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _put_decimal(c: pointer[column_t], row: uint32_t, value: int64_t) -> void:
    text: uint8_t[24]
    at: uint32_t = 24
    rest: uint64_t = cast(uint64_t, value)
    if value < 0:
        rest = 0 - rest
    while True:
        at -= 1
        text[at] = cast(uint8_t, 48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        text[at] = 45
    col_bytes(c, row, address(text[at]), 24 - at)


@cfunc
@nogil
@exceptval(check=False)
def _put_simple(c: pointer[column_t], row: uint32_t, kind: uint8_t, p: pointer[cython.const[uint8_t]]) -> void:
    if kind == TYPE_LONGSTR or kind == TYPE_BYTES:
        col_bytes(c, row, p + 4, get32(p))
    elif kind == TYPE_BOOL:
        if p[0]:
            col_bytes(c, row, b"true", 4)
        else:
            col_bytes(c, row, b"false", 5)
    elif kind == TYPE_INT8:
        _put_decimal(c, row, cast(int8_t, p[0]))
    elif kind == TYPE_UINT8:
        _put_decimal(c, row, p[0])
    elif kind == TYPE_INT16:
        _put_decimal(c, row, cast(int16_t, get16(p)))
    elif kind == TYPE_UINT16:
        _put_decimal(c, row, get16(p))
    elif kind == TYPE_INT32:
        _put_decimal(c, row, cast(int32_t, get32(p)))
    elif kind == TYPE_UINT32:
        _put_decimal(c, row, get32(p))
    elif kind != TYPE_VOID:
        _put_decimal(c, row, cast(int64_t, get64(p)))


@cfunc
@nogil
@exceptval(check=False)
def _put_map(table: Table, row: uint32_t, p: pointer[cython.const[uint8_t]], n: uint32_t) -> void:
    """The field table at `p` (without its length, checked) as entries of the map column."""
    column: pointer[column_t] = table.columns + M_HEADERS
    at: uint32_t = 0
    kind: uint8_t
    if not col_next(column, row):
        return
    if _is_simple(p, n):
        while at < n:
            col_bytes(address(table.keys), table.entries, p + at + 1, p[at])
            at += 1 + p[at]
            kind = p[at]
            _put_simple(address(table.items), table.entries, kind, p + at + 1)
            at += 1 + cast(uint32_t, _simple_size(kind, p + at + 1))
            table.entries += 1
    else:
        _put_readable(table, column, p, n)
    cast(pointer[int32_t], column.values)[row + 1] = cast(int32_t, table.entries)


@cfunc
def _readable_pairs(table: bytes) -> list:
    """The field table (without its length) as pairs of UTF-8; bytes of names that are none are replaced. Raises: PeerError."""
    pairs: dict = {}
    for name, text in readable_headers(decode_table(table), Timestamp):
        pairs.setdefault(_utf8(name), None if text is None else _utf8(text))
    return list(pairs.items())


@cfunc
def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


@cfunc
@with_gil
@exceptval(check=False)
def _put_readable(table: Table, column: pointer[column_t], p: pointer[cython.const[uint8_t]], n: uint32_t) -> void:
    """Nested, fractional, repeated or broken fields: as Python writes them."""
    key: bytes
    item: bytes
    try:
        for key, item in _readable_pairs(PyBytes_FromStringAndSize(cast(p_char, p), n)):
            col_bytes(address(table.keys), table.entries, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            if item is not None:
                col_bytes(address(table.items), table.entries, PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item))
            table.entries += 1
    except MemoryError:
        column.failed = 1
