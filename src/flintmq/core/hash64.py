"""A hash table from uint64 to uint64 for the store: ids of messages and transactions to places in arrays.

in: keys other than 0. out: values. One table costs 16 bytes per place, and is between 3/8 and 3/4 full once it has grown.

I1  Between a key's home place and the place it is stored at, no place is free (so a search may stop at the first free one).
I2  At most 3/4 of the places are taken, so every search ends.
"""

from __future__ import annotations

from cython import NULL, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free

# places of a new table; small, because there may be one per container
FIRST_SIZE = declare(uint64_t, 16)
# 2^64 / golden ratio, made odd: multiplying by it spreads keys that are close together (LSNs) over the high bits (Knuth 6.4)
SPREAD = declare(uint64_t, 0x9E3779B97F4A7C15)


def map64_home(key: uint64_t, mask: uint64_t) -> uint64_t:
    # The middle bits of the product: every bit of the key below them takes part, and the fold brings the highest ones in.
    spread: uint64_t = key * SPREAD
    return (spread ^ (spread >> 32)) & mask


@cfunc
@nogil
@exceptval(check=False)
def _resize(map: pointer[map64_t], size: uint64_t) -> bint:
    """Moves everything to a table of `size` places (a power of two). False: no memory, nothing changed."""
    cells: pointer[map64_cell_t] = cast(pointer[map64_cell_t], calloc(size, sizeof(map64_cell_t)))
    if cells == NULL:
        return False
    mask: uint64_t = size - 1
    i: uint64_t
    index: uint64_t
    if map.cells != NULL:
        for i in range(map.mask + 1):
            if map.cells[i].key != 0:
                index = map64_home(map.cells[i].key, mask)
                while cells[index].key != 0:
                    index = (index + 1) & mask
                cells[index] = map.cells[i]
        free(map.cells)
    map.cells = cells
    map.mask = mask
    return True


def map64_init(map: pointer[map64_t]) -> void:
    map.cells = NULL
    map.mask = 0
    map.count = 0


def map64_free(map: pointer[map64_t]) -> void:
    free(map.cells)
    map64_init(map)


def map64_count(map: pointer[map64_t]) -> uint64_t:
    return map.count


def map64_get(map: pointer[map64_t], key: uint64_t, value: pointer[uint64_t]) -> bint:
    if map.count == 0 or key == 0:
        return False
    index: uint64_t = map64_home(key, map.mask)
    while map.cells[index].key != key:
        if map.cells[index].key == 0:
            return False
        index = (index + 1) & map.mask
    value[0] = map.cells[index].value
    return True


def map64_put(map: pointer[map64_t], key: uint64_t, value: uint64_t) -> bint:
    if key == 0:
        return False
    index: uint64_t
    if map.cells != NULL:
        index = map64_home(key, map.mask)
        while map.cells[index].key != 0:
            if map.cells[index].key == key:
                map.cells[index].value = value
                return True
            index = (index + 1) & map.mask
    if map.cells == NULL or (map.count + 1) * 4 > (map.mask + 1) * 3:
        if not _resize(map, FIRST_SIZE if map.cells == NULL else (map.mask + 1) * 2):
            return False
        index = map64_home(key, map.mask)
        while map.cells[index].key != 0:
            index = (index + 1) & map.mask
    map.cells[index].key = key
    map.cells[index].value = value
    map.count += 1
    check(map.count * 4 <= (map.mask + 1) * 3, b"hash64 I2 a table has free places after a put", map.count, map.mask)
    return True


def map64_remove(map: pointer[map64_t], key: uint64_t) -> bint:
    if map.count == 0 or key == 0:
        return False
    mask: uint64_t = map.mask
    hole: uint64_t = map64_home(key, mask)
    while map.cells[hole].key != key:
        if map.cells[hole].key == 0:
            return False
        hole = (hole + 1) & mask
    # Backward shift: whoever stands behind the hole and is allowed to stand in it moves there, until a free place ends the run.
    index: uint64_t = hole
    home: uint64_t
    while True:
        index = (index + 1) & mask
        if map.cells[index].key == 0:
            break
        home = map64_home(map.cells[index].key, mask)
        # Distances from `at` backwards: its home must not lie between the hole (exclusive) and `at`.
        if ((index - home) & mask) >= ((index - hole) & mask):
            map.cells[hole] = map.cells[index]
            hole = index
    map.cells[hole].key = 0
    map.cells[hole].value = 0
    check(map.count <= map.mask, b"hash64 I2 a table has free places at a removal", map.count, map.mask)
    map.count -= 1
    return True


def map64_reserve(map: pointer[map64_t], count: uint64_t) -> bint:
    size: uint64_t = FIRST_SIZE
    if map.cells != NULL and count * 4 <= (map.mask + 1) * 3:
        return True
    while size * 3 < count * 4:
        size *= 2
    return _resize(map, size)


def map64_trim(map: pointer[map64_t]) -> void:
    size: uint64_t = FIRST_SIZE
    if map.count == 0:
        map64_free(map)
    elif map.count * 8 <= map.mask + 1:
        while size * 3 < map.count * 8:
            size *= 2
        if size <= map.mask:
            _resize(map, size)


def map64_next(map: pointer[map64_t], cursor: pointer[uint64_t], key: pointer[uint64_t], value: pointer[uint64_t]) -> bint:
    index: uint64_t = cursor[0]
    if map.cells == NULL:
        return False
    while index <= map.mask:
        if map.cells[index].key != 0:
            key[0] = map.cells[index].key
            value[0] = map.cells[index].value
            cursor[0] = index + 1
            return True
        index += 1
    cursor[0] = index
    return False


def map64_slice(
    map: pointer[map64_t], mask: uint64_t, first: uint64_t, end: uint64_t, cells: pointer[map64_cell_t], room: uint64_t
) -> uint64_t:
    # A home is the lower bits of a number that only the key decides: in a larger table the slice is several ranges, each as wide.
    start: uint64_t = first & map.mask
    index: uint64_t
    passed: uint64_t
    home: uint64_t
    count: uint64_t = 0
    if map.cells == NULL:
        return 0
    while True:
        index = start
        passed = 0
        # I1: behind the range go those on that had no free place in it, up to the first free place.
        while passed <= map.mask and (passed < end - first or map.cells[index].key != 0):
            if map.cells[index].key != 0:
                home = map64_home(map.cells[index].key, map.mask)
                if ((home - start) & map.mask) < end - first and map64_home(map.cells[index].key, mask) - first < end - first:
                    if count < room:
                        cells[count] = map.cells[index]
                    count += 1
            index = (index + 1) & map.mask
            passed += 1
        start += mask + 1
        if start > map.mask:
            return count
