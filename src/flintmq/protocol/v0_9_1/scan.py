"""What the broker needs to know of a message's properties, read without making Python objects.

in: a content header payload as received. out: props_scan_t (see scan.pxd), or refused.

I1  Safe on arbitrary bytes: each length is checked against the remaining bytes before anything behind it is read.
I2  It accepts exactly what decode_properties accepts under the default limits, headers down to the last nested field
    included: what is stored and delivered later can be decoded.
"""
# Compiled: Cython checks the types and names that come from the .pxd.
# mypy: ignore-errors

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, pointer
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.protocol.v0_9_1.ids import CLASS_BASIC
from cython.cimports.flintmq.protocol.v0_9_1.tables import (
    TYPE_ARRAY, TYPE_BOOL, TYPE_BYTES, TYPE_DECIMAL, TYPE_DOUBLE, TYPE_FLOAT, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_INT64_QPID,
    TYPE_INT8, TYPE_LONGSTR, TYPE_TABLE, TYPE_TIMESTAMP, TYPE_UINT16, TYPE_UINT32, TYPE_UINT8, TYPE_VOID, be_load,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t

from flintmq.config import Limits
from flintmq.errors import check

_LIMITS = Limits()
check(SCAN_DEPTH_MAX == _LIMITS.table_depth_max, "scan.pxd and Limits disagree")
check(_LIMITS.table_fields_max >= _LIMITS.frame_size_max, "a frame may have more fields than are decoded")

# RabbitMQ's ceiling of message and queue TTL (the 32-bit timer of Erlang): 4,294,967,295 ms, 49 days.
# milliseconds: ten years, RabbitMQ's limit (vhost/policy.EXPIRY_MS_MAX)
EXPIRATION_MAX = declare(int64_t, 315_360_000_000)


# what _scan_table found among the top-level names
FOUND_CC = declare(c_int, 1)
FOUND_TIME = declare(c_int, 2)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _may_name_time(name: pointer[cython.const[uint8_t]], size: uint32_t) -> bint:
    """x-delay, x-deliver-at, x-opt-delivery-..., x-qpid-not-...: channel/scheduling.py reads the whole name."""
    if name[2] == 100:
        return size == 7 or size == 12
    if size == 19 or size == 20:
        return name[2] == 111 and name[6] == 100
    return size == 23 and name[2] == 113


@cfunc
@nogil
@exceptval(check=False)
def _scan_table(p: pointer[cython.const[uint8_t]], n: uint32_t) -> c_int:
    """Validates a table's fields. -1 malformed, else FOUND_* of its top-level names."""
    ends: pointer[cython.const[uint8_t]][SCAN_DEPTH_MAX]
    is_table: bint[SCAN_DEPTH_MAX]
    end: pointer[cython.const[uint8_t]] = p + n
    depth: uint32_t = 0
    size: uint64_t = 0
    kind: uint8_t = 0
    flags: c_int = 0
    ends[0] = end
    is_table[0] = True
    while True:
        if p == end:
            if depth == 0:
                return flags
            depth -= 1
            end = ends[depth]
            continue
        if is_table[depth]:
            size = p[0]
            if cast(uint64_t, end - p) < size + 2:  # the length, the name, the type
                return -1
            if depth == 0 and size > 1 and p[2] == 67 and ((size == 2 and p[1] == 67) or (size == 3 and p[1] == 66 and p[3] == 67)):
                flags |= FOUND_CC  # "CC", "BCC"
            elif depth == 0 and size > 6 and p[1] == 120 and p[2] == 45 and _may_name_time(p + 1, cast(uint32_t, size)):
                flags |= FOUND_TIME
            p += size + 1
        kind = p[0]
        p += 1
        size = 0
        if kind == TYPE_LONGSTR or kind == TYPE_BYTES or kind == TYPE_TABLE or kind == TYPE_ARRAY:
            if end - p < 4:
                return -1
            size = be_load(p, 4)
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
        if cast(uint64_t, end - p) < size:
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


@cfunc
@nogil
@exceptval(check=False)
def _scan_expiration(p: pointer[cython.const[uint8_t]], n: uint32_t) -> int64_t:
    """Milliseconds of the text, or EXPIRATION_INVALID. A sign is allowed, as Erlang's string:to_integer allows it."""
    i: uint32_t = 0
    value: int64_t = 0
    negative: bint = False
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


def scan_properties(p: pointer[cython.const[uint8_t]], n: uint32_t, out: pointer[props_scan_t]) -> c_int:
    end: pointer[cython.const[uint8_t]] = p + n
    flag: uint16_t = PROP_CONTENT_TYPE
    size: uint32_t = 0
    flags: c_int = 0
    if n < CONTENT_HEADER_SIZE or be_load(p, 2) != CLASS_BASIC or be_load(p + 2, 2) != 0:
        return -1
    out.body_size = be_load(p + 4, 8)
    out.flags = cast(uint16_t, be_load(p + 12, 2))
    out.delivery_mode = 0
    out.priority = PRIORITY_ABSENT
    out.expiration_ms = EXPIRATION_ABSENT
    out.reply_to = NULL
    out.reply_to_len = 0
    out.user_id = NULL
    out.user_id_len = 0
    out.headers = NULL
    out.headers_len = 0
    out.has_cc = False
    out.has_time = False
    if out.flags & PROP_UNKNOWN:
        return -1
    p += CONTENT_HEADER_SIZE
    while flag >= PROP_CLUSTER_ID:
        if out.flags & flag == 0:
            flag >>= 1
            continue
        if p == end:
            return -1
        if flag == PROP_HEADERS:
            if end - p < 4:
                return -1
            size = cast(uint32_t, be_load(p, 4))
            p += 4
            if cast(uint64_t, end - p) < size:
                return -1
            flags = _scan_table(p, size)
            if flags < 0:
                return -1
            out.headers = p
            out.headers_len = size
            out.has_cc = flags & FOUND_CC != 0
            out.has_time = flags & FOUND_TIME != 0
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
                out.reply_to_len = cast(uint8_t, size)
            elif flag == PROP_USER_ID:
                out.user_id = p
                out.user_id_len = cast(uint8_t, size)
            elif flag == PROP_EXPIRATION and cast(uint64_t, end - p) >= size:
                out.expiration_ms = _scan_expiration(p, size)
        if cast(uint64_t, end - p) < size:
            return -1
        p += size
        flag >>= 1
    return 0 if p == end else -1


def scan_properties_of(payload: bytes) -> dict[str, object] | None:
    """scan_properties for tests and tools: its struct as a dict (reply_to and headers as bytes or None); None when malformed."""
    out: props_scan_t
    if scan_properties(cast(pointer[uint8_t], PyBytes_AS_STRING(payload)), len(payload), address(out)) != 0:
        return None
    return {
        "body_size": out.body_size,
        "flags": out.flags,
        "delivery_mode": out.delivery_mode,
        "priority": out.priority,
        "expiration_ms": out.expiration_ms,
        "reply_to": None if out.reply_to == NULL else PyBytes_FromStringAndSize(cast(p_char, out.reply_to), out.reply_to_len),
        "headers": None if out.headers == NULL else PyBytes_FromStringAndSize(cast(p_char, out.headers), out.headers_len),
        "has_cc": bool(out.has_cc),
        "has_time": bool(out.has_time),
    }
