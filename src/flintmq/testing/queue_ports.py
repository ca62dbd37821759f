"""Ports of a queue that count and keep nothing (tests only): ids for what is logged or spilled, a list of the loads that were asked for.

in: the queue core. out: counters and positions in loads_t.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT
from cython.cimports.libc.stdint import uint32_t, uint64_t


def note_load(context, queue, position, message_id):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    spin_lock(cython.address(loads.lock))
    if loads.count < 4096:
        loads.positions[loads.count] = position
        loads.count += 1
    spin_unlock(cython.address(loads.lock))


def note_enqueue(context, queue, position, slot, expires_at_ms):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    lsn: uint64_t
    spin_lock(cython.address(loads.lock))
    loads.ids += 1
    loads.logged += 1
    lsn = loads.ids
    slot.message_id = lsn
    spin_unlock(cython.address(loads.lock))
    return lsn


def note_dequeue(context, queue, position, slot, owner, reason, delivered_us):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    spin_lock(cython.address(loads.lock))
    loads.logged -= 1
    spin_unlock(cython.address(loads.lock))
    return 1


def note_sweep(context, queue, swept, count, ended):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    spin_lock(cython.address(loads.lock))
    loads.logged -= count
    spin_unlock(cython.address(loads.lock))
    return 1


def note_spill(context, content):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    number: uint64_t
    spin_lock(cython.address(loads.lock))
    loads.ids += 1
    loads.spilled += 1
    number = loads.ids
    spin_unlock(cython.address(loads.lock))
    return number | (cython.cast(uint64_t, 1) << MESSAGE_SPILLED_BIT)


def note_unspill(context, message_id):
    loads: cython.pointer(loads_t) = cython.cast(cython.pointer(loads_t), context)
    spin_lock(cython.address(loads.lock))
    loads.spilled -= 1
    spin_unlock(cython.address(loads.lock))


def count_wake(waiter):
    at_add32(cython.cast(cython.pointer(uint32_t), waiter.context), 1)
