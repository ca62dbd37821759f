"""Output buffers and growing contents for unit tests: the compiled functions, one call each.

in: bytes and message bodies from a test. out: what a socket would be given.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, longlong, p_char, pointer
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.buffer import out_pending, out_refer, out_release, out_reserve, out_take
from cython.cimports.flintmq.core.content import (
    arena_free, arena_new, content_body, content_copy, content_decref, content_from_bytes, content_grow, content_header, content_is_thin,
    content_new, content_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.string import memcpy


@cclass
class OutputDriver:
    """One output buffer."""

    def write(self, data: bytes) -> None:
        place: pointer[uint8_t] = out_reserve(address(self.out), len(data))
        memcpy(place, cast(p_char, data), len(data))
        self.out.end += len(data)

    def refer(self, body: bytes, channel: int, most: int) -> None:
        """A body by reference; the buffer alone holds its content."""
        content: pointer[content_t] = content_from_bytes(b"", b"k", bytes(14), body, 0, 0)
        assert out_refer(address(self.out), content, channel, most)
        content_decref(content)

    def take(self, room: int) -> bytes:
        data: bytes = PyBytes_FromStringAndSize(NULL, room)
        return data[: out_take(address(self.out), cast(pointer[uint8_t], cast(p_char, data)), room)]

    @property
    def pending(self) -> int:
        return out_pending(address(self.out))

    def release(self) -> None:
        out_release(address(self.out))

    def __dealloc__(self):
        out_release(address(self.out))


@cclass
class ContentDriver:
    """A content that grows as its body comes, in an arena of its own. `room`: bytes of body it has at first."""

    def __cinit__(self, header: bytes, room: int):
        self.arena = arena_new()
        self.content = content_new(self.arena, 2, len(header), room)
        memcpy(content_header(self.content), cast(p_char, header), len(header))

    def __dealloc__(self):
        content_decref(self.content)
        arena_free(self.arena)

    def neighbour(self, size: int) -> None:
        """Something else takes `size` bytes of the arena, and is gone at once."""
        content_decref(content_new(self.arena, 2, 14, size))

    def arrive(self, data: bytes, room: int) -> None:
        """More of the body; `room`: bytes the content has place for then."""
        if room > cast(longlong, self.content.body_len):
            self.content = content_grow(self.arena, self.content, self.filled, room)
        memcpy(content_body(self.content) + self.filled, cast(p_char, data), len(data))
        self.filled += len(data)

    def move(self) -> None:
        """A copy takes the content's place."""
        copy: pointer[content_t] = content_copy(self.arena, self.content)
        content_decref(self.content)
        self.content = copy

    @property
    def thin(self) -> bool:
        return content_is_thin(self.content)

    @property
    def header(self) -> bytes:
        return PyBytes_FromStringAndSize(cast(p_char, content_header(self.content)), self.content.header_len)

    @property
    def body(self) -> bytes:
        return PyBytes_FromStringAndSize(cast(p_char, content_body(self.content)), self.filled)
