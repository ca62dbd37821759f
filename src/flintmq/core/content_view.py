"""A message content as Python reads it in pieces: no copy of the body, which may have 128 MiB.

in: a counted reference on a content. out: its short parts as bytes, pieces of its body. The memory stays a content's, in the account of
contents, until the view goes.
"""

from __future__ import annotations

from cython import NULL, cast, cclass, nogil, p_char, pointer, uchar
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import COPY_BARE, content_body, content_decref, content_header, content_route, content_t
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memcpy


@cclass
class ContentView:
    """See content_view.pyi."""

    def __dealloc__(self):
        if self.content != NULL:
            content_decref(self.content)

    @property
    def body_bytes(self) -> int:
        return self.content.body_len if self.content != NULL else 0

    @property
    def size(self) -> int:
        if self.content == NULL:
            return 0
        return cast(uint64_t, self.content.route_len) + self.content.header_len + self.content.body_len

    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes:
        first: uint64_t = start
        count: uint64_t = size
        if self.content == NULL or first >= self.content.body_len:
            return b""
        if count > self.content.body_len - first:
            count = self.content.body_len - first
        source: p_char = cast(p_char, content_body(self.content)) + first
        if count <= COPY_BARE:
            return PyBytes_FromStringAndSize(source, count)
        copied: bytes = PyBytes_FromStringAndSize(NULL, count)
        room: p_char = cast(p_char, copied)
        with nogil:
            memcpy(room, source, count)
        return copied


def content_view(content: pointer[content_t]) -> ContentView:
    route: p_char = cast(p_char, content_route(content))
    exchange_len: c_int = cast(uchar, route[0])
    key_len: c_int = cast(uchar, route[1 + exchange_len])
    view: ContentView = ContentView.__new__(ContentView)
    view.content = content
    view.exchange = PyBytes_FromStringAndSize(route + 1, exchange_len)
    view.routing_key = PyBytes_FromStringAndSize(route + 2 + exchange_len, key_len)
    view.header = PyBytes_FromStringAndSize(cast(p_char, content_header(content)), content.header_len)
    return view
