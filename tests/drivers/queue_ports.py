"""Ports of a queue that count and keep nothing (tests only): ids for what is logged or spilled, a list of the loads that were asked for.

in: the queue core. out: counters and positions in loads_t.
"""

from __future__ import annotations

from cython import address, bint, cast, p_void, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT, queue_t, slot_t, swept_t, waiter_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


def note_load(context: p_void, queue: pointer[queue_t], position: uint64_t, message_id: uint64_t) -> void:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    spin_lock(address(loads.lock))
    if loads.count < 4096:
        loads.positions[loads.count] = position
        loads.count += 1
    spin_unlock(address(loads.lock))


def note_enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: int64_t) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    lsn: uint64_t
    spin_lock(address(loads.lock))
    loads.ids += 1
    loads.logged += 1
    lsn = loads.ids
    slot.message_id = lsn
    spin_unlock(address(loads.lock))
    return lsn


def note_dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    spin_lock(address(loads.lock))
    loads.logged -= 1
    spin_unlock(address(loads.lock))
    return 1


def note_sweep(context: p_void, queue: pointer[queue_t], swept: pointer[swept_t], count: uint32_t, ended: bint) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    spin_lock(address(loads.lock))
    loads.logged -= count
    spin_unlock(address(loads.lock))
    return 1


def note_spill(context: p_void, content: pointer[content_t]) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    number: uint64_t
    spin_lock(address(loads.lock))
    loads.ids += 1
    loads.spilled += 1
    number = loads.ids
    spin_unlock(address(loads.lock))
    return number | (cast(uint64_t, 1) << MESSAGE_SPILLED_BIT)


def note_unspill(context: p_void, message_id: uint64_t) -> void:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    spin_lock(address(loads.lock))
    loads.spilled -= 1
    spin_unlock(address(loads.lock))


def count_wake(waiter: pointer[waiter_t]) -> void:
    at_add32(cast(pointer[uint32_t], waiter.context), 1)
