"""Which messages of a stream belong to one of several readers, so that each key has one reader (see keys.pxd).

in: a column of schema.KEY_COLUMNS, or `headers.` and a name; contents as they lie in the log. out: yes or no.

I1  A message belongs to exactly one part: key and offset decide, nothing else, now and in every later version, because tasks of one
    batch may ask before and after an upgrade.
I2  All messages with one key belong to one part. A message without the key goes by its offset, one whose header can't be read, too.
I3  Nothing outside a content is read, whatever it holds: its header was checked whole (protocol.scan) before it is looked through.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, pointer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.arrow.containers import stored_content_t
from cython.cimports.flintmq.arrow.text import route_good
from cython.cimports.flintmq.core.byte_order import get32
from cython.cimports.flintmq.core.header_field import value_size
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    CONTENT_HEADER_SIZE, PROP_CONTENT_TYPE, PROP_DELIVERY_MODE, PROP_HEADERS, PROP_PRIORITY, PROP_TIMESTAMP, props_scan_t, scan_properties,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.tables import TYPE_BYTES, TYPE_LONGSTR
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcmp

from flintmq.arrow import schema

# Property flags on the wire (AMQP 0-9-1 specification 2.3.5.2, and its class basic).
_FLAGS = {
    "content_type": 0x8000,
    "content_encoding": 0x4000,
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "message_id": 0x0080,
    "type": 0x0020,
    "user_id": 0x0010,
    "app_id": 0x0008,
    "cluster_id": 0x0004,
}
SEED = declare(uint32_t, 0x9747B28C)
FACTOR = declare(uint32_t, 0x5BD1E995)


def key_hash(p: pointer[cython.const[uint8_t]], n: uint32_t) -> uint32_t:
    h: uint32_t = SEED ^ n
    k: uint32_t
    while n >= 4:
        k = p[0] | cast(uint32_t, p[1]) << 8 | cast(uint32_t, p[2]) << 16 | cast(uint32_t, p[3]) << 24
        k *= FACTOR
        k ^= k >> 24
        k *= FACTOR
        h *= FACTOR
        h ^= k
        p += 4
        n -= 4
    if n == 3:
        h ^= cast(uint32_t, p[2]) << 16
    if n >= 2:
        h ^= cast(uint32_t, p[1]) << 8
    if n >= 1:
        h ^= p[0]
        h *= FACTOR
    h ^= h >> 13
    h *= FACTOR
    h ^= h >> 15
    return h


def hash_of(key: bytes) -> int:
    """The hash of a key. For tests and for people who want to know where a key goes."""
    return key_hash(cast(pointer[uint8_t], PyBytes_AS_STRING(key)), PyBytes_GET_SIZE(key))


@cfunc
@nogil
@exceptval(check=False)
def _property(p: pointer[cython.const[uint8_t]], flags: uint16_t, wanted: uint16_t) -> pointer[cython.const[uint8_t]]:
    """The property's first byte. p: the first of all, in a payload that was checked; the property is there."""
    flag: uint16_t = PROP_CONTENT_TYPE
    while flag > wanted:
        if flags & flag:
            if flag == PROP_HEADERS:
                p += 4 + get32(p)
            elif flag == PROP_DELIVERY_MODE or flag == PROP_PRIORITY:
                p += 1
            elif flag == PROP_TIMESTAMP:
                p += 8
            else:
                p += 1 + p[0]
        flag >>= 1
    return p


@cclass
class KeyPart:
    """Part `part` of `parts` of a range, by the key that `column` names. Raises: ValueError for another column or another part."""

    def __init__(self, column: str, part: int, parts: int):
        kind: str
        name: str
        if not 0 <= part < parts <= 0x7FFFFFFF:
            raise ValueError(f"part {part} of {parts}")
        kind, name = schema.key_column(column)
        self.kind = KEY_HEADER if kind == "headers" else KEY_ROUTING if kind == "routing_key" else KEY_PROPERTY
        self.flag = _FLAGS.get(kind, 0)
        self.name = name.encode("utf-8", "surrogatepass")
        self.name_at = cast(pointer[uint8_t], PyBytes_AS_STRING(self.name))
        self.name_size = PyBytes_GET_SIZE(self.name)
        self.part = part
        self.parts = parts

    def here(self, content: pointer[stored_content_t], offset: uint64_t) -> bint:
        scan: props_scan_t
        p: pointer[cython.const[uint8_t]] = NULL
        size: uint32_t = 0
        end: pointer[cython.const[uint8_t]]
        if self.kind == KEY_ROUTING:
            if route_good(content.route, content.route_len):
                p = content.route + 1 + content.route[0]
                size = p[0]
                p += 1
        elif scan_properties(content.header, content.header_len, address(scan)) != 0:
            p = NULL
        elif self.kind == KEY_PROPERTY:
            if scan.flags & self.flag:
                p = _property(content.header + CONTENT_HEADER_SIZE, scan.flags, self.flag)
                size = p[0]
                p += 1
        elif scan.headers != NULL:
            p = scan.headers
            end = p + scan.headers_len
            while p < end:
                size = value_size(p + 1 + p[0], cast(uint64_t, end - p) - 1 - p[0])
                if p[0] == self.name_size and memcmp(p + 1, self.name_at, self.name_size) == 0:
                    p += 1 + p[0]
                    break
                if size == 0:
                    p = end
                    break
                p += 1 + p[0] + size
            if p >= end or size <= 1:  # it is not there, or is void
                p = NULL
            elif p[0] == TYPE_LONGSTR or p[0] == TYPE_BYTES:
                p += 5
                size -= 5
        if p == NULL:
            return offset % self.parts == self.part
        return (key_hash(p, size) & 0x7FFFFFFF) % self.parts == self.part
