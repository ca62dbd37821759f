"""Ids under which entries are acquired; an id that somebody uses is never given out a second time.

A node that makes 5,000 consumers a second has used all 32 bits after ten days. Ids are given out in rising order, and those in use are
passed over, so that a settlement under an old id cannot meet an entry of a new consumer.

I1  An id is in `used` from owner_ids_take to owner_ids_give_back, and 0 never is.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_put, map64_remove
from cython.cimports.libc.stdint import uint32_t, uint64_t

_ids = cython.declare(owner_ids_t)


def owner_ids_take(ids):
    one: uint64_t = 0
    id_: uint32_t
    spin_lock(cython.address(ids.lock))
    id_ = ids.last + 1
    # Fewer ids than 2^32 fit into memory, so a free one is found.
    while id_ == 0 or map64_get(cython.address(ids.used), id_, cython.address(one)):
        id_ += 1
    if map64_put(cython.address(ids.used), id_, 1):
        ids.last = id_
    else:
        id_ = 0
    spin_unlock(cython.address(ids.lock))
    return id_


def owner_ids_give_back(ids, id):
    if id == 0:
        return
    spin_lock(cython.address(ids.lock))
    map64_remove(cython.address(ids.used), id)
    spin_unlock(cython.address(ids.lock))


def owner_id_new():
    return owner_ids_take(cython.address(_ids))


def owner_id_free(id):
    owner_ids_give_back(cython.address(_ids), id)


@cython.cclass
class OwnerIds:
    """An owner_ids_t for Python callers: tests. last: the id that counts as given out last, 0..2^32-1."""

    ids: owner_ids_t

    def __cinit__(self, last: int = 0):
        self.ids.lock = 0
        self.ids.last = last
        map64_init(cython.address(self.ids.used))

    def __dealloc__(self):
        map64_free(cython.address(self.ids.used))

    def set_last(self, last: int) -> None:
        """As if 2^32 ids had been given out up to `last`."""
        self.ids.last = last

    def take(self) -> int:
        return owner_ids_take(cython.address(self.ids))

    def give_back(self, id: int) -> None:
        number: uint32_t = id
        owner_ids_give_back(cython.address(self.ids), number)
