"""Arrays that grow, for a start and for checkpoints (see vectors.pxd).

in: elements, one after the other. out: one piece of memory.
"""

from __future__ import annotations

from cython import NULL, bint, cast, declare, p_char, p_void, pointer, size_t, sizeof, void
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memset

# numbers of elements are 32 bits, and stored plus one
NUMBERS_MAX = declare(uint64_t, 0xFFFFFFF0)


def vector_add(vector: pointer[vector_t], size: size_t) -> p_void:
    room: uint64_t
    data: p_char
    if vector.count == vector.room:
        room = vector.room + vector.room // 2 if vector.room else 64
        if room > NUMBERS_MAX:
            return NULL
        data = cast(p_char, realloc(vector.data, room * size))
        if data == NULL:
            return NULL
        vector.data = data
        vector.room = room
    data = cast(p_char, vector.data) + vector.count * size
    memset(data, 0, size)
    vector.count += 1
    return data


def vector_add_number(vector: pointer[vector_t], number: uint64_t) -> bint:
    element: pointer[uint64_t] = cast(pointer[uint64_t], vector_add(vector, sizeof(uint64_t)))
    if element == NULL:
        return False
    element[0] = number
    return True


def vector_free(vector: pointer[vector_t]) -> void:
    free(vector.data)
    vector.data = NULL
    vector.count = 0
    vector.room = 0
