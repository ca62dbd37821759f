"""Small tables of the core by themselves: map64_t and owner_ids_t as Python objects."""

from __future__ import annotations

from cython import address, cast, cclass, pointer, sizeof
from cython.cimports.flintmq.core.hash64 import (
    map64_cell_t, map64_count, map64_free, map64_get, map64_home, map64_init, map64_next, map64_put, map64_remove, map64_reserve,
    map64_slice,
)  # fmt: skip
from cython.cimports.flintmq.queue.owner_ids import owner_ids_give_back, owner_ids_take
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


@cclass
class Map64:
    """A map64_t. Keys and values 0..2^64-1, keys not 0."""

    def __cinit__(self):
        map64_init(address(self.map))

    def __dealloc__(self):
        map64_free(address(self.map))

    def __len__(self) -> int:
        return map64_count(address(self.map))

    def put(self, key: int, value: int) -> bool:
        return bool(map64_put(address(self.map), key, value))

    def get(self, key: int) -> int | None:
        value: uint64_t = 0
        return value if map64_get(address(self.map), key, address(value)) else None

    def remove(self, key: int) -> bool:
        return bool(map64_remove(address(self.map), key))

    def reserve(self, count: int) -> bool:
        return bool(map64_reserve(address(self.map), count))

    def clear(self) -> None:
        map64_free(address(self.map))

    def items(self) -> list:
        """(key, value) of everything stored."""
        found = []
        cursor: uint64_t = 0
        key: uint64_t = 0
        value: uint64_t = 0
        while map64_next(address(self.map), address(cursor), address(key), address(value)):
            found.append((key, value))
        return found

    def slice(self, mask: int, first: int, end: int) -> list:
        """(key, value) of the keys that have their home in [first, end) of a table of mask + 1 places."""
        room: uint64_t = map64_count(address(self.map)) + 1
        cells: pointer[map64_cell_t] = cast(pointer[map64_cell_t], calloc(room, sizeof(map64_cell_t)))
        count: uint64_t = map64_slice(address(self.map), mask, first, end, cells, room)
        found = [(cells[i].key, cells[i].value) for i in range(min(count, room))]
        free(cells)
        assert count < room, "a key was met twice"
        return found

    def home(self, key: int) -> int:
        """The place a key would like to have: tests make collisions with it."""
        wanted: uint64_t = key
        return map64_home(wanted, self.map.mask)


@cclass
class OwnerIds:
    """An owner_ids_t. last: the id that counts as given out last, 0..2^32-1."""

    def __cinit__(self, last: int = 0):
        self.ids.lock = 0
        self.ids.last = last
        map64_init(address(self.ids.used))

    def __dealloc__(self):
        map64_free(address(self.ids.used))

    def set_last(self, last: int) -> None:
        """As if 2^32 ids had been given out up to `last`."""
        self.ids.last = last

    def take(self) -> int:
        return owner_ids_take(address(self.ids))

    def give_back(self, id: int) -> None:
        number: uint32_t = id
        owner_ids_give_back(address(self.ids), number)
