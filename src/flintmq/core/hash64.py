"""A hash table from uint64 to uint64 for the store: ids of messages and transactions to places in arrays.

in: keys other than 0. out: values. One table costs 16 bytes per place, and is between 3/8 and 3/4 full once it has grown.

I1  Between a key's home place and the place it is stored at, no place is free (so a search may stop at the first free one).
I2  At most 3/4 of the places are taken, so every search ends.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free

# places of a new table; small, because there may be one per container
FIRST_SIZE = cython.declare(uint64_t, 16)
# 2^64 / golden ratio, made odd: multiplying by it spreads keys that are close together (LSNs) over the high bits (Knuth 6.4)
SPREAD = cython.declare(uint64_t, 0x9E3779B97F4A7C15)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _home(key: uint64_t, mask: uint64_t) -> uint64_t:
    # The middle bits of the product: every bit of the key below them takes part, and the fold brings the highest ones in.
    spread: uint64_t = key * SPREAD
    return (spread ^ (spread >> 32)) & mask


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _resize(map: cython.pointer(map64_t), size: uint64_t) -> cython.bint:
    """Moves everything to a table of `size` places (a power of two). False: no memory, nothing changed."""
    cells: cython.pointer(map64_cell_t) = cython.cast(cython.pointer(map64_cell_t), calloc(size, cython.sizeof(map64_cell_t)))
    if cells == cython.NULL:
        return False
    mask: uint64_t = size - 1
    i: uint64_t
    at: uint64_t
    if map.cells != cython.NULL:
        for i in range(map.mask + 1):
            if map.cells[i].key != 0:
                at = _home(map.cells[i].key, mask)
                while cells[at].key != 0:
                    at = (at + 1) & mask
                cells[at] = map.cells[i]
        free(map.cells)
    map.cells = cells
    map.mask = mask
    return True


def map64_init(map):
    map.cells = cython.NULL
    map.mask = 0
    map.count = 0


def map64_free(map):
    free(map.cells)
    map64_init(map)


def map64_count(map):
    return map.count


def map64_get(map, key, value):
    if map.count == 0 or key == 0:
        return False
    at: uint64_t = _home(key, map.mask)
    while map.cells[at].key != key:
        if map.cells[at].key == 0:
            return False
        at = (at + 1) & map.mask
    value[0] = map.cells[at].value
    return True


def map64_put(map, key, value):
    if key == 0:
        return False
    at: uint64_t
    if map.cells != cython.NULL:
        at = _home(key, map.mask)
        while map.cells[at].key != 0:
            if map.cells[at].key == key:
                map.cells[at].value = value
                return True
            at = (at + 1) & map.mask
    if map.cells == cython.NULL or (map.count + 1) * 4 > (map.mask + 1) * 3:
        if not _resize(map, FIRST_SIZE if map.cells == cython.NULL else (map.mask + 1) * 2):
            return False
        at = _home(key, map.mask)
        while map.cells[at].key != 0:
            at = (at + 1) & map.mask
    map.cells[at].key = key
    map.cells[at].value = value
    map.count += 1
    return True


def map64_remove(map, key):
    if map.count == 0 or key == 0:
        return False
    mask: uint64_t = map.mask
    hole: uint64_t = _home(key, mask)
    while map.cells[hole].key != key:
        if map.cells[hole].key == 0:
            return False
        hole = (hole + 1) & mask
    # Backward shift: whoever stands behind the hole and is allowed to stand in it moves there, until a free place ends the run.
    at: uint64_t = hole
    home: uint64_t
    while True:
        at = (at + 1) & mask
        if map.cells[at].key == 0:
            break
        home = _home(map.cells[at].key, mask)
        # Distances from `at` backwards: its home must not lie between the hole (exclusive) and `at`.
        if ((at - home) & mask) >= ((at - hole) & mask):
            map.cells[hole] = map.cells[at]
            hole = at
    map.cells[hole].key = 0
    map.cells[hole].value = 0
    map.count -= 1
    return True


def map64_reserve(map, count):
    size: uint64_t = FIRST_SIZE
    while size * 3 < count * 4:
        size *= 2
    if map.cells != cython.NULL and size <= map.mask + 1:
        return True
    return _resize(map, size)


def map64_next(map, cursor, key, value):
    at: uint64_t = cursor[0]
    if map.cells == cython.NULL:
        return False
    while at <= map.mask:
        if map.cells[at].key != 0:
            key[0] = map.cells[at].key
            value[0] = map.cells[at].value
            cursor[0] = at + 1
            return True
        at += 1
    cursor[0] = at
    return False


@cython.cclass
class Map64:
    """A map64_t for Python callers: tests and tools. Keys and values 0..2^64-1, keys not 0."""

    map: map64_t

    def __cinit__(self):
        map64_init(cython.address(self.map))

    def __dealloc__(self):
        map64_free(cython.address(self.map))

    def __len__(self) -> int:
        return map64_count(cython.address(self.map))

    def put(self, key: int, value: int) -> bool:
        return bool(map64_put(cython.address(self.map), key, value))

    def get(self, key: int) -> int | None:
        value: uint64_t = 0
        return value if map64_get(cython.address(self.map), key, cython.address(value)) else None

    def remove(self, key: int) -> bool:
        return bool(map64_remove(cython.address(self.map), key))

    def reserve(self, count: int) -> bool:
        return bool(map64_reserve(cython.address(self.map), count))

    def clear(self) -> None:
        map64_free(cython.address(self.map))

    def items(self) -> list:
        """(key, value) of everything stored."""
        found = []
        cursor: uint64_t = 0
        key: uint64_t = 0
        value: uint64_t = 0
        while map64_next(cython.address(self.map), cython.address(cursor), cython.address(key), cython.address(value)):
            found.append((key, value))
        return found

    def home(self, key: int) -> int:
        """The place a key would like to have: tests make collisions with it."""
        wanted: uint64_t = key
        return _home(wanted, self.map.mask)
