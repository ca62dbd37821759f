"""The output buffer of a connection: grows by doubling, is sent from the front, gives memory back when idle.

in: frames from the session layer. out: bytes for one send() of the loop per pass.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memmove

# bytes; most idle connections never need more than the handshake
INITIAL_SIZE = cython.declare(cython.size_t, 2048)


def out_reserve(out, count):
    if out.size - out.end < count:
        used: cython.size_t = out.end - out.start
        if out.start and out.size - used >= count and out.start >= used:
            # At least half of the buffer is sent already: moving the rest costs less than growing.
            memmove(out.data, out.data + out.start, used)
        else:
            size: cython.size_t = out.size if out.size else INITIAL_SIZE
            while size - out.end < count:
                size *= 2
            data: cython.pointer(uint8_t) = cython.cast(cython.pointer(uint8_t), realloc(out.data, size))
            if data == cython.NULL:
                return cython.NULL
            out.data = data
            out.size = size
            return out.data + out.end
        out.start = 0
        out.end = used
    return out.data + out.end


def out_sent(out, count):
    out.start += count
    if out.start == out.end:
        out.start = 0
        out.end = 0


def out_release(out):
    free(out.data)
    out.data = cython.NULL
    out.size = 0
    out.start = 0
    out.end = 0


def out_trim(out):
    if out.start == out.end and out.size > INITIAL_SIZE:
        out_release(out)
