"""Ports of a queue that count and keep nothing (tests only): ids for what is logged or spilled, a list of the loads that were asked for.

in: the queue core. out: counters and positions in loads_t.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, declare, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.paging import PAGE_NOT_NOW
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT, queue_t, restored_t, slot_t, swept_t, waiter_t
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode, run_encode
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc

# number of the run before the first one
FIRST_RUN = declare(uint64_t, PAGE_NOT_NOW)


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


def note_page_out(context: p_void, queue: pointer[queue_t], entries: pointer[restored_t], count: uint32_t) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    kept: pointer[kept_run_t]
    data: pointer[uint8_t]
    run: uint64_t = PAGE_NOT_NOW
    if loads.runs_full or loads.run_count == 4096:
        loads.refusals += 1
        return PAGE_NOT_NOW
    data = cast(pointer[uint8_t], malloc(RUN_BYTES_MAX))
    if data == NULL:
        return PAGE_NOT_NOW
    spin_lock(address(loads.lock))
    kept = address(loads.runs[loads.run_count])
    kept.size = run_encode(queue.id, entries, count, data, RUN_BYTES_MAX)
    kept.bytes = data
    loads.run_count += 1
    run = loads.run_count + FIRST_RUN
    spin_unlock(address(loads.lock))
    return run


def note_page_in(context: p_void, run: uint64_t, entries: pointer[restored_t], room: uint32_t) -> uint32_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    kept: pointer[kept_run_t] = address(loads.runs[run - FIRST_RUN - 1])
    queue_id: uint64_t = 0
    if loads.runs_lost or kept.bytes == NULL:
        return 0
    return run_decode(kept.bytes, kept.size, entries, room, address(queue_id))


def note_page_end(context: p_void, run: uint64_t) -> void:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    kept: pointer[kept_run_t] = address(loads.runs[run - FIRST_RUN - 1])
    spin_lock(address(loads.lock))
    free(kept.bytes)
    kept.bytes = NULL
    spin_unlock(address(loads.lock))


def note_page_bury(context: p_void, queue: pointer[queue_t], run: uint64_t, first: uint64_t, last: uint64_t, ended: bint) -> uint64_t:
    loads: pointer[loads_t] = cast(pointer[loads_t], context)
    entries: pointer[restored_t] = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
    count: uint32_t = note_page_in(context, run, entries, LARGE_SLOTS) if entries != NULL else 0
    i: uint32_t
    for i in range(count):
        spin_lock(address(loads.lock))
        if entries[i].message_id >> MESSAGE_SPILLED_BIT:
            loads.spilled -= 1
        else:
            loads.logged -= 1
        spin_unlock(address(loads.lock))
    free(entries)
    note_page_end(context, run)
    return 1


def loads_free(loads: pointer[loads_t]) -> void:
    i: uint32_t
    for i in range(loads.run_count):
        free(loads.runs[i].bytes)


def count_wake(waiter: pointer[waiter_t]) -> void:
    at_add32(cast(pointer[uint32_t], waiter.context), 1)
