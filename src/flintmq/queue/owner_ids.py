"""Ids under which entries are acquired; an id that somebody uses is never given out a second time.

A node that makes 5,000 consumers a second has used all 32 bits after ten days. Ids are given out in rising order, and those in use are
passed over, so that a settlement under an old id cannot meet an entry of a new consumer.

I1  An id is in `used` from owner_ids_take to owner_ids_give_back, and 0 never is.
"""

from __future__ import annotations

from cython import address, declare, pointer, void
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.hash64 import map64_get, map64_put, map64_remove
from cython.cimports.libc.stdint import uint32_t, uint64_t

_ids = declare(owner_ids_t)


def owner_ids_take(ids: pointer[owner_ids_t]) -> uint32_t:
    one: uint64_t = 0
    id_: uint32_t
    spin_lock(address(ids.lock))
    id_ = ids.last + 1
    # Fewer ids than 2^32 fit into memory, so a free one is found.
    while id_ == 0 or map64_get(address(ids.used), id_, address(one)):
        id_ += 1
    if map64_put(address(ids.used), id_, 1):
        check(id_ != 0, b"owner_ids I1 no id is 0", ids.last, 0)
        ids.last = id_
    else:
        id_ = 0
    spin_unlock(address(ids.lock))
    return id_


def owner_ids_give_back(ids: pointer[owner_ids_t], id: uint32_t) -> void:
    if id == 0:
        return
    spin_lock(address(ids.lock))
    check(map64_remove(address(ids.used), id), b"owner_ids I1 an id that is given back was in use", id, ids.last)
    spin_unlock(address(ids.lock))


def owner_id_new() -> uint32_t:
    return owner_ids_take(address(_ids))


def owner_id_free(id: uint32_t) -> void:
    owner_ids_give_back(address(_ids), id)
