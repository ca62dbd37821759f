"""What tests do to the inside of a queue: they make an entry's content cold, and count the queue's bytes."""

from __future__ import annotations

from cython import NULL, address, bint, cfunc, exceptval, nogil, p_void, pointer, sizeof
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.counts import count_cold, count_evicted
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.slot import slot_hold, slot_set_cold, slot_unhold
from cython.cimports.flintmq.queue.types import ENTRY_NOT_RESIDENT, level_t, queue_t, segment_t, slot_t, span_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


def evict_content(queue: pointer[queue_t], position: uint64_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    content: pointer[content_t] = NULL
    state: uint64_t = 0
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL:
        state = slot_hold(slot, False)
    if state:
        if slot.message_id and not state & ENTRY_NOT_RESIDENT:
            content = slot.content
            slot_set_cold(slot, content.body_len)
            state |= ENTRY_NOT_RESIDENT
            count_cold(address(queue.entries), 1)
            count_evicted(address(queue.entries), content.body_len)
        slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    if content == NULL:
        return False
    content_decref(content)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _segment_memory(segment: pointer[segment_t]) -> uint64_t:
    slots: uint64_t = segment.mapped if segment.mapped else segment.count * sizeof(slot_t)
    return sizeof(segment_t) + (slots if segment.slots != NULL else 0)


def queue_memory(queue: pointer[queue_t]) -> uint64_t:
    total: uint64_t = sizeof(queue_t)
    level_no: uint32_t
    level: pointer[level_t]
    segment: pointer[segment_t]
    spin_lock(address(queue.entries.lock))
    if queue.entries.level_count > 1:
        total += queue.entries.level_count * sizeof(level_t)
    for level_no in range(queue.entries.level_count):
        level = queue.entries.levels + level_no
        total += level.capacity * sizeof(p_void) + level.span_room * sizeof(span_t)
        segment = level.first
        while segment != NULL:
            total += _segment_memory(segment)
            if segment.expiry != NULL:
                total += segment.count * sizeof(int64_t)
            segment = segment.next
    segment = queue.entries.retired
    while segment != NULL:
        total += _segment_memory(segment)
        segment = segment.prev
    if queue.entries.spare != NULL:
        total += _segment_memory(queue.entries.spare)
    spin_unlock(address(queue.entries.lock))
    return total
