"""Entries that come back to a queue that counts their deliveries.

in: releases of delivered entries. out: notes of (position, count) for the control plane, which keeps the counts over a restart, and ends
what came back more often than x-delivery-limit allows.

I1  A note is made before the entry is available again, under the list lock; without memory for it the entry is just released.
I2  An entry over the limit is never available again by this release: it passes to the broker in the same step.

Source: rabbit_fifo.erl of RabbitMQ 3.10 (return_one: dead when the count, this return included, is above the limit).
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.slot import slot_hold, slot_pass_on, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED,
    ENTRY_COUNT_SHIFT,
    ENTRY_HELD,
    ENTRY_LOGGED,
    ENTRY_OWNER_SHIFT,
    ENTRY_REDELIVERED,
    ENTRY_STATE_MASK,
    returned_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

COUNT_MAX = cython.declare(uint32_t, 0xFFFF)


def queue_set_returns(queue, flags, limit):
    queue.returns = flags
    queue.delivery_limit = limit


def queue_count_return(queue, position, owner):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t = 0
    over: cython.bint = False
    note: cython.pointer(returned_t) = cython.cast(cython.pointer(returned_t), calloc(1, cython.sizeof(returned_t)))
    if note == cython.NULL:
        return False
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = at_load64(cython.address(slot.state))
    if state & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED or cython.cast(uint32_t, state >> ENTRY_OWNER_SHIFT) != owner:
        spin_unlock(cython.address(queue.entries.lock))
        free(note)
        return False
    note.position = position
    note.count = cython.cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & COUNT_MAX)
    if note.count < COUNT_MAX:
        note.count += 1
    note.logged = state & ENTRY_LOGGED != 0
    over = note.count > queue.delivery_limit and slot_pass_on(slot, owner)
    note.over = over
    if queue.returned == cython.NULL:
        queue.returned = note
    else:
        queue.returned_last.next = note
    queue.returned_last = note
    at_store32(cython.address(queue.returned_count), queue.returned_count + 1)
    spin_unlock(cython.address(queue.entries.lock))
    return over


def queue_take_return(queue, out):
    note: cython.pointer(returned_t)
    spin_lock(cython.address(queue.entries.lock))
    note = queue.returned
    if note != cython.NULL:
        queue.returned = note.next
        at_store32(cython.address(queue.returned_count), queue.returned_count - 1)
    spin_unlock(cython.address(queue.entries.lock))
    if note == cython.NULL:
        return False
    out[0] = note[0]
    free(note)
    return True


def queue_set_count(queue, position, count):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, True)
        if state:
            state &= ~(cython.cast(uint64_t, COUNT_MAX) << ENTRY_COUNT_SHIFT)
            state |= cython.cast(uint64_t, count if count < COUNT_MAX else COUNT_MAX) << ENTRY_COUNT_SHIFT | ENTRY_REDELIVERED
            slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    return state != 0


def queue_free_returns(queue):
    note: cython.pointer(returned_t)
    while queue.returned != cython.NULL:
        note = queue.returned
        queue.returned = note.next
        free(note)
