"""Segments of a shared queue as rows of the engine (see rows.pxd).

in: contents of entries; bytes of a row. out: a row; its messages, one after the other.

R1  A reader never looks beyond the row, whatever its bytes say.
R2  Places of a row rise, and are below `places`.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import arena_t, content_body, content_frame, content_header, content_new, content_route, content_t
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy, memset


def row_cost(content: pointer[content_t]) -> uint64_t:
    return sizeof(row_fields_t) + cast(uint64_t, content.route_len) + content.header_len + content.body_len


def row_describe(message: pointer[row_message_t]) -> void:
    content: pointer[content_t] = message.content
    message.fields.route_len = content.route_len
    message.fields.header_len = content.header_len
    message.fields.body_len = content.body_len
    message.fields.content_flags = content.flags
    message.fields.priority = content.priority


def row_write(out: pointer[uint8_t], head: pointer[row_head_t], messages: pointer[row_message_t]) -> void:
    i: uint32_t
    content: pointer[content_t]
    memcpy(out, head, sizeof(row_head_t))
    out += sizeof(row_head_t)
    for i in range(head.count):
        content = messages[i].content
        memcpy(out, address(messages[i].fields), sizeof(row_fields_t))
        out += sizeof(row_fields_t)
        memcpy(out, content_route(content), content.route_len)
        out += content.route_len
        memcpy(out, content_header(content), content.header_len)
        out += content.header_len
        if content.body_len:
            memcpy(out, content_body(content), content.body_len)
            out += content.body_len


def row_open(reader: pointer[row_reader_t], data: pointer[cython.const[uint8_t]], size: uint64_t) -> bint:
    memset(reader, 0, sizeof(row_reader_t))
    if size < sizeof(row_head_t):
        return False
    memcpy(address(reader.head), data, sizeof(row_head_t))
    reader.data = data
    reader.at = sizeof(row_head_t)
    return (
        reader.head.format == ROW_FORMAT
        and reader.head.size == size
        and 0 < reader.head.places <= ROW_PLACES
        and reader.head.count <= reader.head.places
        and 0 < reader.head.first < cast(uint64_t, 1) << 48
    )


def row_next(reader: pointer[row_reader_t], out: pointer[row_message_t]) -> c_int:
    size: uint64_t
    route: pointer[cython.const[uint8_t]]
    if reader.read == reader.head.count:
        return 0 if reader.at == reader.head.size else -1
    if reader.head.size - reader.at < sizeof(row_fields_t):
        return -1
    memcpy(address(out.fields), reader.data + reader.at, sizeof(row_fields_t))
    reader.at += sizeof(row_fields_t)
    size = cast(uint64_t, out.fields.route_len) + out.fields.header_len + out.fields.body_len
    if reader.head.size - reader.at < size or out.fields.place < reader.place or out.fields.place >= reader.head.places:
        return -1
    route = reader.data + reader.at
    # Two short strings: whoever reads the route relies on their lengths.
    if out.fields.route_len < 2 or route[0] + 2 > out.fields.route_len or route[0] + 2 + route[1 + route[0]] != out.fields.route_len:
        return -1
    out.data = route
    out.content = NULL
    reader.at += size
    reader.read += 1
    reader.place = out.fields.place + 1
    return 1


def row_content(arena: pointer[arena_t], message: pointer[row_message_t]) -> pointer[content_t]:
    data: pointer[cython.const[uint8_t]] = message.data
    content: pointer[content_t] = content_new(arena, message.fields.route_len, message.fields.header_len, message.fields.body_len)
    if content == NULL:
        return NULL
    memcpy(content_route(content), data, content.route_len)
    data += content.route_len
    memcpy(content_header(content), data, content.header_len)
    data += content.header_len
    if content.body_len:
        memcpy(content_body(content), data, content.body_len)
    content_frame(content)
    content.flags = message.fields.content_flags
    content.priority = message.fields.priority
    return content
