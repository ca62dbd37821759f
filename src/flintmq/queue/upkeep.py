"""Housekeeping of a queue, its content port, and its figures (see queue_core.pxd for what each promises).

in: the housekeeping timer, the content port, management. out: memory given back, consumers woken, counts.

Figures are sums of counters that single writers keep (consumers, puller, list), so the message path pays no shared counter; they
are exact when nothing runs.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_available,
    manager_changed,
    manager_figures,
    manager_quiet,
    manager_wake_one,
)
from cython.cimports.flintmq.queue.entry_list import list_advance_floor, list_next, list_slot_locked
from cython.cimports.flintmq.queue.list_upkeep import list_free_retired, list_memory, list_put_back_retired, list_shrink, list_take_retired
from cython.cimports.flintmq.queue.pull import delivery_fill, queue_has_available
from cython.cimports.flintmq.queue.slot import slot_borrow, slot_hold, slot_unhold
from cython.cimports.flintmq.queue.types import ENTRY_LOADING, ENTRY_NOT_RESIDENT, found_t, place_t, queue_t, segment_t, slot_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


def queue_reclaim(queue, keep_spare):
    """Frees unlinked segments, unless someone is inside the list: then they wait for the next call."""
    retired: cython.pointer(segment_t) = list_take_retired(cython.address(queue.entries))
    if retired == cython.NULL:
        return
    if manager_quiet(queue):
        list_free_retired(cython.address(queue.entries), retired, keep_spare)
    else:
        list_put_back_retired(cython.address(queue.entries), retired)


def queue_next_expiry(queue):
    return cython.cast(int64_t, at_load64(cython.cast(cython.pointer(uint64_t), cython.address(queue.entries.expiry_min))))


# --- content port -----------------------------------------------------------------------------------------------------------


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
        content = slot.content
        if content != cython.NULL:
            slot.content = cython.NULL
            state |= ENTRY_NOT_RESIDENT
            # Bytes count what is resident.
            at_store64(cython.address(queue.entries.taken_bytes), queue.entries.taken_bytes + content.body_len)
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
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, False)
    if state:
        state &= ~cython.cast(uint64_t, ENTRY_LOADING)
        if content != cython.NULL and state & ENTRY_NOT_RESIDENT:
            content_incref(content)
            slot.content = content
            state &= ~cython.cast(uint64_t, ENTRY_NOT_RESIDENT)
            at_store64(cython.address(queue.entries.released_bytes), queue.entries.released_bytes + content.body_len)
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if state and content != cython.NULL:
        manager_changed(queue)
        manager_available(queue, position, cython.NULL, content, False, True)


# --- housekeeping and figures -----------------------------------------------------------------------------------------------


def queue_housekeeping(queue):
    place: place_t
    level: uint32_t
    if at_load64(cython.address(queue.entries.enqueued)) == 0:
        return
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    for level in range(queue.entries.level_count):
        list_advance_floor(cython.address(queue.entries), cython.address(place), level)
    at_sub32(cython.address(queue.pins), 1)
    list_shrink(cython.address(queue.entries))
    queue_reclaim(queue, False)
    if at_load32(cython.address(queue.entries.wanted)) and queue_has_available(queue):
        manager_wake_one(queue, cython.NULL, True)


def queue_ready_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    given: uint64_t
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    given = at_load64(cython.address(queue.entries.enqueued)) + at_load64(cython.address(queue.entries.released))
    return given - acquired if given > acquired else 0


def queue_unacked_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    back: uint64_t = at_load64(cython.address(queue.entries.released)) + at_load64(cython.address(queue.entries.dequeued))
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    return acquired - back if acquired > back else 0


def queue_ready_bytes(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    given: uint64_t
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    bytes_ += at_load64(cython.address(queue.puller.acquired_bytes)) + at_load64(cython.address(queue.entries.taken_bytes))
    given = at_load64(cython.address(queue.entries.enqueued_bytes)) + at_load64(cython.address(queue.entries.released_bytes))
    return given - bytes_ if given > bytes_ else 0


def queue_consumer_count(queue):
    return at_load32(cython.address(queue.manager.consumer_count))


def queue_priorities(queue):
    return queue.entries.ops.priorities(cython.address(queue.entries))


def queue_enqueued_total(queue):
    return at_load64(cython.address(queue.entries.enqueued))


def queue_delivered_total(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    return delivered + at_load64(cython.address(queue.puller.delivered))


def queue_memory(queue):
    return cython.sizeof(queue_t) + list_memory(cython.address(queue.entries))


def queue_peek(queue, position, out):
    found: found_t
    place: place_t
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    got: cython.bint = False
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    while not got and list_next(cython.address(queue.entries), cython.address(place), position, cython.address(found)):
        position = found.position
        content = slot_borrow(found.slot, True, cython.address(state))
        got = state != 0
    if got:
        delivery_fill(out, cython.NULL, content, found.position, state)
    at_sub32(cython.address(queue.pins), 1)
    return got
