"""Bodies that need not be in memory leave it; those that must are moved out of thin chunks.

in: queues, from the memory keeper's thread. out: entries that are not resident, contents in fresh chunks.

S1  A body that is delivered and not settled, or came back, is evicted as one that waits: it is in the log (or the page log), so its entry
    becomes not resident. Delivered ones are ENTRY_ASIDE: they don't count for the queue's window until they come back.
S2  Without need nothing is evicted that is in the queue's window, nor what consumers hold up to HELD_WINDOWS of it (residency.py). When
    memory is short, everything that consumers hold is.
S3  When memory is short, a content that a thin chunk (content_is_thin) is kept for is copied, and the entry's pointer swapped: under the list
    lock and ENTRY_BUSY, and never between an acquire and entry_sent, when the session reads the content without either.
S4  A content that several entries share has one copy for all of them in one round.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    arena_free,
    arena_new,
    content_copy,
    content_decref,
    content_incref,
    content_is_thin,
    content_t,
)
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_next, map64_put
from cython.cimports.flintmq.queue.counts import count_cold, count_resident
from cython.cimports.flintmq.queue.entry_list import list_next, list_slot_locked
from cython.cimports.flintmq.queue.handle import QueueHandle
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_content, slot_hold, slot_set_cold, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED,
    ENTRY_ASIDE,
    ENTRY_HELD,
    ENTRY_NOT_RESIDENT,
    ENTRY_STATE_MASK,
    ENTRY_UNSTEALABLE,
    found_t,
    place_t,
    queue_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t

# windows of bodies that consumers may hold in memory while it is not short: as residency.HELD_WINDOWS, from where arrivals go cold
HELD_WINDOWS = cython.declare(uint64_t, 8)
ALL_HOT = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
# entries between two returns to Python
SLICE = cython.declare(uint32_t, 2048)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _may_touch(state: uint64_t) -> cython.bint:
    """Whether the content of an entry in this state (held by ENTRY_BUSY) is nobody's to read but through a hold."""
    if state & ENTRY_NOT_RESIDENT:
        return False
    return state & ENTRY_STATE_MASK != ENTRY_ACQUIRED or not state & (ENTRY_UNSTEALABLE | ENTRY_HELD)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hold_locked(queue: cython.pointer(queue_t), position: uint64_t, state: cython.pointer(uint64_t)) -> cython.pointer(slot_t):
    """The entry, held by ENTRY_BUSY, when its content may be touched; else NULL. The list lock is held by the caller."""
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t) = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot == cython.NULL:
        return cython.NULL
    state[0] = slot_hold(slot, True)
    if state[0] == 0:
        return cython.NULL
    if not _may_touch(state[0]) or slot_content(slot) == cython.NULL:
        slot_unhold(slot, state[0])
        return cython.NULL
    return slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _evict(queue: cython.pointer(queue_t), sweep: cython.pointer(sweep_t), position: uint64_t) -> cython.bint:
    """S1. False: it is not to be read back from anywhere, or just now somebody has it."""
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    slot: cython.pointer(slot_t)
    spin_lock(cython.address(queue.entries.lock))
    slot = _hold_locked(queue, position, cython.address(state))
    if slot != cython.NULL:
        if slot.message_id:
            content = slot.content
            slot_set_cold(slot, content.body_len)
            count_resident(cython.address(queue.entries), -cython.cast(uint64_t, content.body_len))
            if state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
                state |= ENTRY_NOT_RESIDENT | ENTRY_ASIDE
            else:
                state |= ENTRY_NOT_RESIDENT
                count_cold(cython.address(queue.entries), 1)
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if content == cython.NULL:
        return False
    sweep.evicted += 1
    sweep.evicted_bytes += content.body_len
    content_decref(content)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_of(sweep: cython.pointer(sweep_t), content: cython.pointer(content_t)) -> cython.pointer(content_t):
    """A counted copy, the same one for all who share the content (S4); NULL: no memory."""
    found: uint64_t = 0
    copy: cython.pointer(content_t)
    shared: cython.bint = at_load32(cython.address(content.refs)) > 2  # the entry's, and the caller's
    if shared and map64_get(cython.address(sweep.moved), cython.cast(uint64_t, content), cython.address(found)):
        copy = cython.cast(cython.pointer(content_t), found)
        content_incref(copy)
        return copy
    copy = content_copy(sweep.arena, content)
    if (
        copy != cython.NULL
        and shared
        and map64_put(cython.address(sweep.moved), cython.cast(uint64_t, content), cython.cast(uint64_t, copy))
    ):
        content_incref(content)
        content_incref(copy)
    return copy


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _move(queue: cython.pointer(queue_t), sweep: cython.pointer(sweep_t), position: uint64_t) -> cython.void:
    """S3. The copy is made between two looks: nobody waits for it."""
    content: cython.pointer(content_t) = cython.NULL
    copy: cython.pointer(content_t)
    state: uint64_t = 0
    slot: cython.pointer(slot_t)
    spin_lock(cython.address(queue.entries.lock))
    slot = _hold_locked(queue, position, cython.address(state))
    if slot != cython.NULL:
        if content_is_thin(slot.content):
            content = slot.content
            content_incref(content)
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if content == cython.NULL:
        return
    copy = _copy_of(sweep, content)
    if copy != cython.NULL:
        spin_lock(cython.address(queue.entries.lock))
        slot = _hold_locked(queue, position, cython.address(state))
        if slot != cython.NULL:
            if slot.content == content:
                slot.content = copy
                copy = content  # whose reference of the entry is dropped instead
                sweep.copied += 1
                sweep.copied_bytes += content.body_len
            slot_unhold(slot, state)
        spin_unlock(cython.address(queue.entries.lock))
        content_decref(copy)
    content_decref(content)


def queue_sweep(queue, sweep, position, most, low):
    place: place_t
    found: found_t
    state: uint64_t
    window: uint64_t = ALL_HOT
    readable: cython.bint = queue.port != cython.NULL and queue.port.load != cython.NULL
    resident: uint64_t = at_load64(cython.address(queue.entries.resident_bytes))
    held: cython.bint
    evict: cython.bint
    if readable:
        window = at_load64(cython.address(queue.port.hot_bytes))
    if queue.ops != cython.NULL or resident == 0:
        return 0
    if not low and (window == ALL_HOT or resident // HELD_WINDOWS < window):
        return 0
    if position <= 1:
        position = 1
        sweep.kept = 0
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    while most:
        if not list_next(cython.address(queue.entries), cython.address(place), position, cython.address(found)):
            position = 0
            break
        position = found.position + 1
        most -= 1
        state = at_load64(cython.address(found.slot.state))
        if not _may_touch(state):
            continue
        held = state & ENTRY_STATE_MASK == ENTRY_ACQUIRED
        evict = readable and (held or sweep.kept > window)
        if evict and _evict(queue, sweep, found.position):
            continue
        if low:
            _move(queue, sweep, found.position)
        if not held:
            state = slot_hold(found.slot, False)
            if state:
                sweep.kept += slot_body_len(found.slot)
                slot_unhold(found.slot, state)
    at_sub32(cython.address(queue.pins), 1)
    return position


def sweep_end(sweep):
    cursor: uint64_t = 0
    key: uint64_t = 0
    value: uint64_t = 0
    while map64_next(cython.address(sweep.moved), cython.address(cursor), cython.address(key), cython.address(value)):
        content_decref(cython.cast(cython.pointer(content_t), key))
        content_decref(cython.cast(cython.pointer(content_t), value))
    map64_free(cython.address(sweep.moved))


@cython.cclass
class Sweeper:
    """One thread's sweeps. Figures: bodies evicted and copied since it was made, and their bytes."""

    def __cinit__(self):
        self.sweep.arena = arena_new()
        if self.sweep.arena == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        sweep_end(cython.address(self.sweep))
        arena_free(self.sweep.arena)

    def queue(self, handle: QueueHandle, low: bool) -> None:
        """Sweeps one queue, in slices without the GIL. `low`: memory is short. O(entries) when there is something to do, else O(1)."""
        queue: cython.pointer(queue_t) = handle.queue
        position: uint64_t = 1
        short: cython.bint = low
        while position:
            with cython.nogil:
                position = queue_sweep(queue, cython.address(self.sweep), position, SLICE, short)

    def end(self) -> None:
        """A round over all queues is done."""
        sweep_end(cython.address(self.sweep))

    @property
    def evicted(self) -> int:
        return self.sweep.evicted

    @property
    def evicted_bytes(self) -> int:
        return self.sweep.evicted_bytes

    @property
    def copied(self) -> int:
        return self.sweep.copied

    @property
    def copied_bytes(self) -> int:
        return self.sweep.copied_bytes
