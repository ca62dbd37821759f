"""Fields of the headers table in a content header payload (see header_field.pxd).

in: the parts of a content; the name of a field. out: where the field stands; a copy of the content with the field set.

I1  Nothing outside the payload is read, whatever it holds: each length is compared with what is left.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, char, declare, pointer
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
from cython.cimports.libc.string import memcmp, memcpy, strlen

# offset of the property flags; bytes of class, weight, body size and property flags
FLAGS_AT = declare(uint32_t, 12)
FIXED_SIZE = declare(uint32_t, 14)
HAS_HEADERS = declare(uint32_t, 0x2000)


def value_size(p: pointer[cython.const[uint8_t]], left: uint64_t) -> uint32_t:
    size: uint64_t
    if left == 0:
        return 0
    kind: uint8_t = p[0]
    if kind == ord("S") or kind == ord("x") or kind == ord("F") or kind == ord("A"):
        if left < 5:
            return 0
        size = 5 + cast(uint64_t, get32(p + 1))
    elif kind == ord("t") or kind == ord("b") or kind == ord("B"):
        size = 2
    elif kind == ord("I") or kind == ord("i") or kind == ord("f"):
        size = 5
    elif kind == ord("l") or kind == ord("L") or kind == ord("d") or kind == ord("T"):
        size = 9
    elif kind == ord("s") or kind == ord("u"):
        size = 3
    elif kind == ord("D"):
        size = 6
    elif kind == ord("V"):
        size = 1
    else:
        return 0
    return cast(uint32_t, size) if size <= left else 0


def header_look(
    p: pointer[cython.const[uint8_t]],
    n: uint32_t,
    name: pointer[cython.const[char]],
    text_name: pointer[cython.const[char]],
    out: pointer[header_look_t],
) -> bint:
    at: uint32_t = FIXED_SIZE
    name_size: uint32_t = cast(uint32_t, strlen(name))
    text_name_size: uint32_t = cast(uint32_t, strlen(text_name)) if text_name != NULL else 256  # no name is that long
    size: uint32_t
    value: uint32_t
    flags: uint32_t
    prop: uint32_t = 0x8000
    out.table = 0
    out.cut_size = 0
    out.text_at = 0
    out.text_size = 0
    if n < FIXED_SIZE:
        return False
    flags = get16(p + FLAGS_AT)
    if flags & 1:
        return False  # more flags follow: no property of class basic needs them
    while prop > HAS_HEADERS:  # content type and encoding stand before the headers
        if flags & prop:
            if at >= n or at + 1 + p[at] > n:
                return False
            at += 1 + p[at]
        prop >>= 1
    if not flags & HAS_HEADERS:
        out.end = at
        return True
    if at + 4 > n or get32(p + at) > n - at - 4:
        return False
    out.table = at
    out.end = at + 4 + get32(p + at)
    at += 4
    while at < out.end:
        size = 1 + cast(uint32_t, p[at])
        if at + size >= out.end:
            return False
        value = value_size(p + at + size, out.end - at - size)
        if value == 0:
            return False
        if size == name_size + 1 and memcmp(p + at + 1, name, name_size) == 0:
            out.cut_size += size + value
        elif size == text_name_size + 1 and p[at + size] == ord("S") and memcmp(p + at + 1, text_name, text_name_size) == 0:
            out.text_at = at + size + 5 - out.cut_size
            out.text_size = value - 5
        at += size + value
    return at == out.end


def parts_with_field(
    arena: pointer[arena_t],
    parts: pointer[cython.const[parts_t]],
    look: pointer[cython.const[header_look_t]],
    name: pointer[cython.const[char]],
    value: uint64_t,
    at: pointer[pointer[uint8_t]],
) -> pointer[content_t]:
    name_size: uint32_t = cast(uint32_t, strlen(name))
    field: uint32_t = 1 + name_size + 1 + 8
    header: pointer[cython.const[uint8_t]] = parts.header
    length: uint32_t = parts.header_len - look.cut_size + field + (0 if look.table else 4)
    content: pointer[content_t] = content_new(arena, parts.route_len, length, parts.body_len)
    place: uint32_t
    size: uint32_t
    out: pointer[uint8_t]
    if content == NULL:
        return NULL
    out = content_header(content)
    if look.cut_size == 0:
        memcpy(out, header, look.end)
        out += look.end
    else:
        place = look.table + 4
        memcpy(out, header, place)
        out += place
        while place < look.end:
            size = 1 + cast(uint32_t, header[place])
            size += value_size(header + place + size, look.end - place - size)
            if header[place] != name_size or memcmp(header + place + 1, name, name_size) != 0:
                memcpy(out, header + place, size)
                out += size
            place += size
    if look.table:
        put32(content_header(content) + look.table, get32(header + look.table) - look.cut_size + field)
    else:
        put16(content_header(content) + FLAGS_AT, cast(uint16_t, get16(header + FLAGS_AT) | HAS_HEADERS))
        put32(out, field)
        out += 4
    out[0] = cast(uint8_t, name_size)
    memcpy(out + 1, name, name_size)
    out[1 + name_size] = ord("l")
    at[0] = out + 2 + name_size
    put64(at[0], value)
    memcpy(out + field, header + look.end, parts.header_len - look.end)
    memcpy(content_route(content), parts.route, parts.route_len)
    if parts.body_len:
        memcpy(content_body(content), parts.body, parts.body_len)
    content.flags = parts.flags | CONTENT_HEADERS
    content.priority = parts.priority
    content_frame(content)
    return content


def content_with_field(
    arena: pointer[arena_t], content: pointer[content_t], name: pointer[cython.const[char]], value: uint64_t
) -> pointer[content_t]:
    parts: parts_t
    look: header_look_t
    at: pointer[uint8_t] = NULL
    parts_of(content, address(parts))
    if not header_look(parts.header, parts.header_len, name, NULL, address(look)):
        return NULL
    return parts_with_field(arena, address(parts), address(look), name, value, address(at))
