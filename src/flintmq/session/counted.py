"""Tells a consumer how often a message came back: x-delivery-count, as quorum queues of RabbitMQ do.

in: the content of an entry that was delivered before. out: a content of its own, for one delivery.

Source: rabbit_quorum_queue.erl of RabbitMQ 3.10 (add_delivery_count_header: type long, replaces a field of that name).
"""

from __future__ import annotations

import cython
from cython import NULL, cast, cfunc, declare, exceptval, longlong, nogil, p_char, pointer
from cython.cimports.flintmq.core.byte_order import get16, get32, put16, put32, put64
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS,
    arena_t,
    content_body,
    content_frame,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.flintmq.protocol.v0_9_1.scan import CONTENT_HEADER_SIZE
from cython.cimports.flintmq.protocol.v0_9_1.splice import value_end
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memcmp, memcpy

NAME_SIZE = declare(uint32_t, 16)
# length octet and name, type, 8 bytes
FIELD_SIZE = declare(uint32_t, 1 + 16 + 1 + 8)


@cfunc
@nogil
@exceptval(check=False)
def _copy_others(at: pointer[cython.const[uint8_t]], end: pointer[cython.const[uint8_t]], out: pointer[uint8_t]) -> longlong:
    """Bytes of the fields of a table but x-delivery-count, copied to `out` (NULL: only counted); -1 when it can't be read."""
    size: longlong = 0
    value: pointer[cython.const[uint8_t]]
    behind: pointer[cython.const[uint8_t]]
    while at < end:
        if end - at <= at[0]:
            return -1
        value = at + 1 + at[0]
        behind = value_end(value, end)
        if behind == NULL:
            return -1
        if at[0] != NAME_SIZE or memcmp(at + 1, cast(p_char, b"x-delivery-count"), NAME_SIZE) != 0:
            if out != NULL:
                memcpy(out + size, at, behind - at)
            size += behind - at
        at = behind
    return size


def content_with_count(arena: pointer[arena_t], content: pointer[content_t], count: uint32_t) -> pointer[content_t]:
    header: pointer[uint8_t] = content_header(content)
    size: uint32_t = content.header_len
    at: uint32_t = CONTENT_HEADER_SIZE
    behind: uint32_t
    kept: longlong = 0
    flags: uint16_t
    copy: pointer[content_t]
    out: pointer[uint8_t]
    if size < CONTENT_HEADER_SIZE:
        return NULL
    flags = get16(header + 12)
    if flags & 1:
        return NULL  # more flag words: no property of class basic needs them
    if flags & 0x8000 and at < size:
        at += 1 + header[at]
    if flags & 0x4000 and at < size:
        at += 1 + header[at]
    behind = at
    if flags & 0x2000:
        if at + 4 > size or get32(header + at) > size - at - 4:
            return NULL
        behind = at + 4 + get32(header + at)
        kept = _copy_others(header + at + 4, header + behind, NULL)
    if behind > size or kept < 0:
        return NULL
    copy = content_new(arena, content.route_len, at + 4 + FIELD_SIZE + cast(uint32_t, kept) + (size - behind), content.body_len)
    if copy == NULL:
        return NULL
    copy.flags = content.flags | CONTENT_HEADERS
    copy.priority = content.priority
    memcpy(content_route(copy), content_route(content), content.route_len)
    out = content_header(copy)
    memcpy(out, header, at)
    put16(out + 12, flags | 0x2000)
    out += at
    put32(out, cast(uint32_t, kept) + FIELD_SIZE)
    out += 4
    if kept:
        _copy_others(header + at + 4, header + behind, out)
        out += kept
    out[0] = cast(uint8_t, NAME_SIZE)
    memcpy(out + 1, cast(p_char, b"x-delivery-count"), NAME_SIZE)
    out[17] = cast(uint8_t, 108)  # 'l'
    put64(out + 18, count)
    memcpy(out + FIELD_SIZE, header + behind, size - behind)
    if content.body_len:
        memcpy(content_body(copy), content_body(content), content.body_len)
    content_frame(copy)
    return copy
