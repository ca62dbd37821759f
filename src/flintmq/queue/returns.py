"""Entries that come back to a queue that counts their deliveries.

in: releases of delivered entries. out: counts of logged entries for the log, which keeps them over a restart; notes of (position, count)
for the control plane, which ends what came back more often than x-delivery-limit allows. Of an entry that needs none of that there is no
note: it counts for itself. An entry that has to wait (x-delayed-retry-type) does so in retries.py.

I1  A note is made before the entry is available again, under the list lock; without memory for it the entry is just released.
I2  An entry over the limit, or one that has to wait, is never available again by this release: it passes to the broker in the same step.
I3  `returned_count` is the number of notes.

Source: rabbit_fifo.erl of RabbitMQ 3.10 (return_one: dead when the count, this return included, is above the limit).
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.grouped import grouped_passed_on
from cython.cimports.flintmq.queue.slot import slot_hold, slot_pass_on, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_COUNT_SHIFT, ENTRY_HELD, ENTRY_LOGGED, ENTRY_OWNER_SHIFT, ENTRY_REDELIVERED, ENTRY_STATE_MASK, RETURNS_DELAY_CALM,
    RETURNS_DELAY_FAILED, RETURNS_NOTED, RETURN_FAILED, queue_t, returned_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waits import retries_wait
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

COUNT_MAX = declare(uint32_t, 0xFFFF)


def queue_set_returns(queue: pointer[queue_t], flags: uint32_t, limit: uint32_t) -> void:
    queue.returns = flags
    queue.delivery_limit = limit


@cfunc
@nogil
@exceptval(check=False)
def _keep_count(queue: pointer[queue_t], position: uint64_t, state: uint64_t, count: uint32_t) -> void:
    """Tells the log; the entry is still its holder's. What the log refuses is no reason to keep the entry: a count is lost."""
    if state & ENTRY_LOGGED and queue.port != NULL and queue.port.counted != NULL:
        queue.port.counted(queue.port.context, queue, position, count)


@cfunc
@nogil
@exceptval(check=False)
def _add_note(queue: pointer[queue_t], note: pointer[returned_t]) -> void:
    """For the control plane. Under the list lock."""
    check(
        (queue.returned == NULL) == (queue.returned_count == 0),
        b"returns I3 no notes are counted where there are none",
        queue.id,
        queue.returned_count,
    )
    if queue.returned == NULL:
        queue.returned = note
    else:
        queue.returned_last.next = note
    queue.returned_last = note
    at_store32(address(queue.returned_count), queue.returned_count + 1)


def queue_count_return(queue: pointer[queue_t], position: uint64_t, owner: uint32_t, how: c_int) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t = 0
    over: bint = False
    passed_on: bint
    delayed: bint = queue.returns & (RETURNS_DELAY_FAILED if how == RETURN_FAILED else RETURNS_DELAY_CALM) != 0
    waits: bint
    count: uint32_t
    note: pointer[returned_t] = NULL
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL:
        state = at_load64(address(slot.state))
    if state & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED or cast(uint32_t, state >> ENTRY_OWNER_SHIFT) != owner:
        spin_unlock(address(queue.entries.lock))
        return False
    count = cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & COUNT_MAX)
    if count < COUNT_MAX:
        count += 1
    if count <= queue.delivery_limit and not delayed and not queue.returns & RETURNS_NOTED:
        spin_unlock(address(queue.entries.lock))
        _keep_count(queue, position, state, count)
        return False
    note = cast(pointer[returned_t], calloc(1, sizeof(returned_t)))
    if note == NULL:
        spin_unlock(address(queue.entries.lock))
        return False
    note.position = position
    note.count = count
    over = count > queue.delivery_limit and slot_pass_on(slot, owner)
    note.over = over
    if not over and delayed:
        note.delayed = slot_pass_on(slot, owner)
    passed_on = over or note.delayed
    # A list whose kind has a say in it asks the control plane whether the entry was replaced meanwhile.
    waits = note.delayed and queue.entries.kind == NULL and not queue.returns & RETURNS_NOTED
    if not waits:
        _add_note(queue, note)
    spin_unlock(address(queue.entries.lock))
    if not over:
        _keep_count(queue, position, state, count)
    if passed_on and queue.message_groups != NULL:
        grouped_passed_on(queue, position, not over)  # what waits for its next delivery is not overtaken
    if waits and retries_wait(queue, position, count, -1):
        free(note)
    elif waits:
        spin_lock(address(queue.entries.lock))
        _add_note(queue, note)
        spin_unlock(address(queue.entries.lock))
    return passed_on


def queue_pass_on(queue: pointer[queue_t], position: uint64_t, owner: uint32_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    passed_on: bint
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    passed_on = slot != NULL and slot_pass_on(slot, owner)
    spin_unlock(address(queue.entries.lock))
    return passed_on


def queue_take_return(queue: pointer[queue_t], out: pointer[returned_t]) -> bint:
    note: pointer[returned_t]
    spin_lock(address(queue.entries.lock))
    note = queue.returned
    if note != NULL:
        queue.returned = note.next
        check(queue.returned_count > 0, b"returns I3 a note that is taken was counted", queue.id, note.position)
        at_store32(address(queue.returned_count), queue.returned_count - 1)
    spin_unlock(address(queue.entries.lock))
    if note == NULL:
        return False
    out[0] = note[0]
    free(note)
    return True


def queue_set_count(queue: pointer[queue_t], position: uint64_t, count: uint32_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t = 0
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL:
        state = slot_hold(slot, True)
        if state:
            state &= ~(cast(uint64_t, COUNT_MAX) << ENTRY_COUNT_SHIFT)
            state |= cast(uint64_t, count if count < COUNT_MAX else COUNT_MAX) << ENTRY_COUNT_SHIFT | ENTRY_REDELIVERED
            slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    return state != 0


def queue_free_returns(queue: pointer[queue_t]) -> void:
    note: pointer[returned_t]
    while queue.returned != NULL:
        note = queue.returned
        queue.returned = note.next
        free(note)
