"""What of a queue is in memory (see residency.pxd).

in: the store's evictions and loads. out: consumers, browsers and waiting gets woken.

I1  `cold_count` and `resident_bytes` change under the list lock together with the entry they count.
I2  Whoever parks on an entry has set ENTRY_PARKED on it while it was not resident; the content clears both flags in one step, so
    it sees everyone who parked before, and who comes later finds it.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_add_waiter,
    manager_available,
    manager_changed,
    manager_figures,
    manager_remove_waiter,
    manager_wake_waiters,
)
from cython.cimports.flintmq.queue.counts import count_cold, count_resident, count_taken
from cython.cimports.flintmq.queue.entry_list import list_scan, list_slot_locked
from cython.cimports.flintmq.queue.pull import queue_unparked
from cython.cimports.flintmq.queue.slot import (
    slot_acquire,
    slot_body_len,
    slot_content,
    slot_hold,
    slot_set,
    slot_set_cold,
    slot_unhold,
)
from cython.cimports.flintmq.queue.types import (
    ENTRY_ASIDE,
    ENTRY_FAILED,
    ENTRY_LOADING,
    ENTRY_NOT_RESIDENT,
    ENTRY_PARKED,
    found_t,
    place_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t

# Unacked messages in consumers' hands don't fill the window, or a slow consumer would send every message over the disk; but above so
# many windows they do, so that memory has a bound.
HELD_WINDOWS = cython.declare(uint64_t, 8)


def queue_evict_content(queue, position):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, False)
    if state:
        if slot.message_id and not state & ENTRY_NOT_RESIDENT:
            content = slot.content
            slot_set_cold(slot, content.body_len)
            state |= ENTRY_NOT_RESIDENT
            count_cold(cython.address(queue.entries), 1)
            count_resident(cython.address(queue.entries), -cython.cast(uint64_t, content.body_len))
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if content == cython.NULL:
        return False
    content_decref(content)
    return True


def queue_content_loaded(queue, position, content):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t = 0
    asked: cython.bint = False
    body_len: uint32_t
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, False)
    if state:
        state &= ~cython.cast(uint64_t, ENTRY_LOADING)
        if content != cython.NULL and state & ENTRY_NOT_RESIDENT:
            body_len = slot_body_len(slot)
            content_incref(content)
            slot.content = content
            asked = (state & ENTRY_PARKED) != 0
            state &= ~cython.cast(uint64_t, ENTRY_NOT_RESIDENT | ENTRY_PARKED)
            count_cold(cython.address(queue.entries), -1)
            count_resident(cython.address(queue.entries), content.body_len)
            # Ready bytes go by the length that was known; should it have been wrong, they go by the body from here on.
            at_store64(
                cython.address(queue.entries.released_bytes),
                queue.entries.released_bytes + content.body_len - cython.cast(uint64_t, body_len),
            )
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if asked:
        manager_changed(queue)
        manager_available(queue, content, True)
        manager_wake_waiters(queue)


def queue_content_failed(queue, position):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    failed: cython.bint = False
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL and at_load64(cython.address(slot.state)) & ENTRY_NOT_RESIDENT:
        failed = slot_acquire(slot, 0, True)
    if failed and slot_content(slot) == cython.NULL:
        count_taken(cython.address(queue.entries), slot_body_len(slot))
        count_cold(cython.address(queue.entries), -1)
        at_store64(cython.address(queue.entries.failed), queue.entries.failed + 1)
        slot_set(slot, ENTRY_ASIDE | ENTRY_FAILED)
    spin_unlock(cython.address(queue.entries.lock))
    if failed:
        queue_unparked(queue, slot)
    return failed


def queue_acquired_failed(queue, position):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    failed: cython.bint = False
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL and at_load64(cython.address(slot.state)) & (ENTRY_NOT_RESIDENT | ENTRY_ASIDE) == ENTRY_NOT_RESIDENT:
        failed = slot_set(slot, ENTRY_ASIDE | ENTRY_FAILED)
    if failed:
        count_cold(cython.address(queue.entries), -1)
        at_store64(cython.address(queue.entries.failed), queue.entries.failed + 1)
    spin_unlock(cython.address(queue.entries.lock))
    return failed


def queue_next_cold(queue, position, found, message_id):
    at: found_t
    place: place_t
    state: uint64_t
    cold: cython.bint = False
    if at_load64(cython.address(queue.entries.cold_count)) == 0:
        return False
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    while not cold and list_scan(cython.address(queue.entries), cython.address(place), position, cython.address(at)):
        position = at.position
        state = slot_hold(at.slot, False)  # its id may only be read while it can't go
        if state:
            cold = (state & ENTRY_NOT_RESIDENT) != 0
            found[0] = position
            message_id[0] = at.slot.message_id
            slot_unhold(at.slot, state)
            if not cold:
                position += 1
    at_sub32(cython.address(queue.pins), 1)
    return cold


def queue_cold_count(queue):
    return at_load64(cython.address(queue.entries.cold_count))


def queue_resident_bytes(queue):
    return at_load64(cython.address(queue.entries.resident_bytes))


def queue_load_room(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    hot: uint64_t = at_load64(cython.address(queue.port.hot_bytes)) if queue.port != cython.NULL else ~cython.cast(uint64_t, 0)
    resident: uint64_t = at_load64(cython.address(queue.entries.resident_bytes))
    back: uint64_t
    if hot == ~cython.cast(uint64_t, 0):
        return hot
    if resident < hot:
        return hot - resident  # even with what consumers hold
    if resident // HELD_WINDOWS >= hot:
        return 0
    manager_figures(queue, cython.address(acquired), cython.address(bytes_))
    bytes_ += at_load64(cython.address(queue.puller.acquired_bytes)) + at_load64(cython.address(queue.entries.taken_bytes))
    back = at_load64(cython.address(queue.entries.released_bytes)) + at_load64(cython.address(queue.entries.dequeued_bytes))
    if bytes_ > back:  # in hands: not the window's
        resident = resident - (bytes_ - back) if resident > bytes_ - back else 0
    return hot - resident if resident < hot else 0


def queue_failed_count(queue):
    return at_load64(cython.address(queue.entries.failed))


def queue_add_waiter(queue, waiter):
    manager_add_waiter(queue, waiter)


def queue_remove_waiter(queue, waiter):
    manager_remove_waiter(queue, waiter)
