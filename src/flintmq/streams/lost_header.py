"""Adds the x-stream-lost header to a copy of a message (see lost_header.pxd).

in: the content of a message, as the stream hands it out. out: a content of its own with one field more in its headers table.

Source: AMQP 0-9-1 specification 2.3.5.2 (property flags: 15 content-type, 14 content-encoding, 13 headers), 4.2.5.5 (tables).
"""

from __future__ import annotations

from cython import NULL, cast, declare, p_char, pointer
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
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy

# name (length and 13 letters), type, 8 bytes
FIELD_SIZE = declare(uint32_t, 1 + 13 + 1 + 8)
# class, weight, body size, property flags
FIXED_SIZE = declare(uint32_t, 14)


def content_with_lost(arena: pointer[arena_t], content: pointer[content_t], lost: uint64_t) -> pointer[content_t]:
    header: pointer[uint8_t] = content_header(content)
    size: uint32_t = content.header_len
    at: uint32_t = FIXED_SIZE
    grown: uint32_t = FIELD_SIZE
    flags: uint16_t
    copy: pointer[content_t]
    out: pointer[uint8_t]
    if size < FIXED_SIZE:
        return NULL
    flags = get16(header + 12)
    if flags & 1:
        return NULL  # more flag words: no property of class basic needs them
    if flags & 0x8000:
        if at >= size:
            return NULL
        at += 1 + header[at]
    if flags & 0x4000:
        if at >= size:
            return NULL
        at += 1 + header[at]
    if flags & 0x2000:
        if at + 4 > size or at + 4 + get32(header + at) > size:
            return NULL
    else:
        grown += 4
    if at > size:
        return NULL
    copy = content_new(arena, content.route_len, size + grown, content.body_len)
    if copy == NULL:
        return NULL
    copy.flags = content.flags | CONTENT_HEADERS
    copy.priority = content.priority
    memcpy(content_route(copy), content_route(content), content.route_len)
    out = content_header(copy)
    memcpy(out, header, at)
    put16(out + 12, flags | 0x2000)
    out += at
    if flags & 0x2000:
        put32(out, get32(header + at) + FIELD_SIZE)
        at += 4
    else:
        put32(out, FIELD_SIZE)
    out[4] = 13
    memcpy(out + 5, cast(p_char, b"x-stream-lost"), 13)
    out[18] = cast(uint8_t, 108)  # 'l'
    put64(out + 19, lost)
    memcpy(out + 4 + FIELD_SIZE, header + at, size - at)
    if content.body_len:
        memcpy(content_body(copy), content_body(content), content.body_len)
    content_frame(copy)
    return copy
