"""The content of a stream's message as consumers get it: with x-stream-offset in its headers (see stream_content.pxd).

in: the parts of a published content. out: a content ready to be sent; its filter value.

I1  A header that can't be read is copied as it is: such a message has no offset in its headers, and no filter value.
"""

from __future__ import annotations

from cython import NULL, address, cast, pointer
from cython.cimports.flintmq.core.content import (
    CONTENT_SHARED, arena_t, content_body, content_frame, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.header_field import header_look, header_look_t, parts_t, parts_with_field
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy


def stream_content(
    arena: pointer[arena_t],
    parts: pointer[parts_t],
    offset: uint64_t,
    at: pointer[pointer[uint8_t]],
    filter_at: pointer[uint32_t],
    filter_size: pointer[uint32_t],
) -> pointer[content_t]:
    look: header_look_t
    content: pointer[content_t]
    parts.flags &= ~cast(uint8_t, CONTENT_SHARED)
    at[0] = NULL
    filter_at[0] = 0
    filter_size[0] = 0
    if header_look(parts.header, parts.header_len, b"x-stream-offset", b"x-stream-filter-value", address(look)):
        if look.text_size < STREAM_NO_FILTER:  # no value is that long
            filter_at[0] = look.text_at
            filter_size[0] = look.text_size
        return parts_with_field(arena, parts, address(look), b"x-stream-offset", offset, at)
    content = content_new(arena, parts.route_len, parts.header_len, parts.body_len)
    if content == NULL:
        return NULL
    memcpy(content_header(content), parts.header, parts.header_len)
    memcpy(content_route(content), parts.route, parts.route_len)
    if parts.body_len:
        memcpy(content_body(content), parts.body, parts.body_len)
    content.flags = parts.flags
    content.priority = parts.priority
    content_frame(content)
    return content
