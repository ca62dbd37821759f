"""Who reads for the cold reader (see cold_readers.pxd).

in: queues that are to be read. out: a reader for each, back after a slice.
"""

from __future__ import annotations

from cython import address, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.libc.stdint import uint32_t, uint64_t


def readers_take(readers: pointer[readers_t], queue_id: uint64_t) -> c_int:
    i: uint32_t
    best: c_int = -1
    spin_lock(address(readers.lock))
    for i in range(readers.count):
        if readers.busy[i]:
            continue
        if readers.last_queue[i] == queue_id:
            best = i
            break
        if best < 0 or readers.last_used[i] < readers.last_used[best]:
            best = i
    if best >= 0:
        readers.uses += 1
        readers.busy[best] = True
        readers.last_queue[best] = queue_id
        readers.last_used[best] = readers.uses
    spin_unlock(address(readers.lock))
    return best


def readers_give(readers: pointer[readers_t], number: c_int) -> void:
    spin_lock(address(readers.lock))
    readers.busy[number] = False
    spin_unlock(address(readers.lock))
