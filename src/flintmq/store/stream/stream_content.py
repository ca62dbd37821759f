"""The content of a stream's message as consumers get it: with x-stream-offset in its headers (see stream_content.pxd).

in: the parts of a published content. out: a content ready to be sent; its filter value.

I1  Nothing outside the header payload is read, whatever it holds: lengths are checked against what is left. A header that can't be read
    is copied as it is.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, pointer, void
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS,
    CONTENT_SHARED,
    arena_t,
    content_body,
    content_frame,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy

OFFSET_NAME = declare(p_char, b"x-stream-offset")
FILTER_NAME = declare(p_char, b"x-stream-filter-value")
OFFSET_FIELD = declare(uint32_t, 25)  # 1 + 15 bytes of name, type octet, 8 bytes


@cfunc
@inline
@nogil
@exceptval(check=False)
def _be32(p: pointer[cython.const[uint8_t]]) -> uint32_t:
    return cast(uint32_t, p[0]) << 24 | cast(uint32_t, p[1]) << 16 | cast(uint32_t, p[2]) << 8 | cast(uint32_t, p[3])


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_be32(p: pointer[uint8_t], value: uint32_t) -> void:
    p[0] = cast(uint8_t, value >> 24)
    p[1] = cast(uint8_t, value >> 16)
    p[2] = cast(uint8_t, value >> 8)
    p[3] = cast(uint8_t, value)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_be64(p: pointer[uint8_t], value: uint64_t) -> void:
    _put_be32(p, cast(uint32_t, value >> 32))
    _put_be32(p + 4, cast(uint32_t, value))


@cfunc
@nogil
@exceptval(check=False)
def _value_size(p: pointer[cython.const[uint8_t]], left: uint32_t) -> uint32_t:
    """Bytes of a table field from its type octet on; 0: unknown type, or it does not fit into `left` bytes."""
    size: uint64_t
    if left == 0:
        return 0
    kind: uint8_t = p[0]
    if kind == ord("V"):
        size = 1
    elif kind == ord("t") or kind == ord("b") or kind == ord("B"):
        size = 2
    elif kind == ord("s") or kind == ord("u"):
        size = 3
    elif kind == ord("I") or kind == ord("i") or kind == ord("f"):
        size = 5
    elif kind == ord("D"):
        size = 6
    elif kind == ord("l") or kind == ord("L") or kind == ord("d") or kind == ord("T"):
        size = 9
    elif kind == ord("S") or kind == ord("x") or kind == ord("F") or kind == ord("A"):
        if left < 5:
            return 0
        size = 5 + cast(uint64_t, _be32(p + 1))
    else:
        return 0
    return cast(uint32_t, size) if size <= left else 0


@cfunc
@nogil
@exceptval(check=False)
def _look_at_header(
    p: pointer[cython.const[uint8_t]],
    n: uint32_t,
    table: pointer[uint32_t],
    end: pointer[uint32_t],
    cut: pointer[uint32_t],
    cut_size: pointer[uint32_t],
    filter_at: pointer[uint32_t],
    filter_size: pointer[uint32_t],
) -> bint:
    """Where things stand in a content header payload: `table`: its headers' length field, 0 without headers; `end`: behind the table, or
    where one belongs; cut: an x-stream-offset that is there; filter_at 0: no filter value. False: it can't be read."""
    at: uint32_t = 14
    size: uint32_t
    value: uint32_t
    flags: uint32_t
    prop: uint32_t
    table[0] = 0
    cut[0] = 0
    cut_size[0] = 0
    filter_at[0] = 0
    filter_size[0] = 0
    if n < 14:
        return False
    flags = cast(uint32_t, p[12]) << 8 | p[13]
    if flags & 1:
        return False  # more flags follow: not for the class basic
    prop = 0x8000
    while prop >= 0x4000:  # content type and encoding stand before the headers
        if flags & prop:
            if at >= n or at + 1 + p[at] > n:
                return False
            at += 1 + p[at]
        prop >>= 1
    if not flags & 0x2000:
        end[0] = at
        return True
    if at + 4 > n or _be32(p + at) > n - at - 4:
        return False
    table[0] = at
    end[0] = at + 4 + _be32(p + at)
    at += 4
    while at < end[0]:
        size = 1 + cast(uint32_t, p[at])
        if at + size >= end[0]:
            return False
        value = _value_size(p + at + size, end[0] - at - size)
        if value == 0:
            return False
        if size == 16 and memcmp(p + at + 1, OFFSET_NAME, 15) == 0 and cut_size[0] == 0:
            cut[0] = at
            cut_size[0] = size + value
        elif size == 22 and p[at + size] == ord("S") and memcmp(p + at + 1, FILTER_NAME, 21) == 0:
            filter_at[0] = at + size + 5
            filter_size[0] = value - 5
            if filter_size[0] >= STREAM_NO_FILTER:
                filter_at[0] = 0  # no value is that long
        at += size + value
    return at == end[0]


def stream_content(
    arena: pointer[arena_t],
    route: pointer[cython.const[uint8_t]],
    route_len: uint16_t,
    header: pointer[cython.const[uint8_t]],
    header_len: uint32_t,
    body: pointer[cython.const[uint8_t]],
    body_len: uint32_t,
    flags: uint8_t,
    priority: uint8_t,
    offset: uint64_t,
    at: pointer[pointer[uint8_t]],
    filter_at: pointer[uint32_t],
    filter_size: pointer[uint32_t],
) -> pointer[content_t]:
    table: uint32_t = 0
    end: uint32_t = 0
    cut: uint32_t = 0
    cut_size: uint32_t = 0
    length: uint32_t
    content: pointer[content_t]
    out: pointer[uint8_t]
    readable: bint = _look_at_header(
        header,
        header_len,
        address(table),
        address(end),
        address(cut),
        address(cut_size),
        filter_at,
        filter_size,
    )
    at[0] = NULL
    if not readable:
        filter_at[0] = 0
        content = content_new(arena, route_len, header_len, body_len)
        if content == NULL:
            return NULL
        memcpy(content_header(content), header, header_len)
    else:
        length = header_len - cut_size + OFFSET_FIELD + (0 if table else 4)
        content = content_new(arena, route_len, length, body_len)
        if content == NULL:
            return NULL
        out = content_header(content)
        if table:
            if cut_size:
                memcpy(out, header, cut)
                memcpy(out + cut, header + cut + cut_size, end - cut - cut_size)
                if filter_at[0] > cut:
                    filter_at[0] -= cut_size
            else:
                memcpy(out, header, end)
            _put_be32(out + table, _be32(header + table) - cut_size + OFFSET_FIELD)
            out += end - cut_size
        else:
            memcpy(out, header, end)
            out[12] |= 0x20
            out += end
            _put_be32(out, OFFSET_FIELD)
            out += 4
        out[0] = 15
        memcpy(out + 1, OFFSET_NAME, 15)
        out[16] = ord("l")
        _put_be64(out + 17, offset)
        at[0] = out + 17
        memcpy(out + OFFSET_FIELD, header + end, header_len - end)
        flags |= CONTENT_HEADERS
    memcpy(content_route(content), route, route_len)
    if body_len:
        memcpy(content_body(content), body, body_len)
    content.flags = flags & ~cast(uint8_t, CONTENT_SHARED)
    content.priority = priority
    content_frame(content)
    return content


def stream_put_offset(at: pointer[uint8_t], offset: uint64_t) -> void:
    _put_be64(at, offset)
