"""Upkeep of entry lists, off the message path: expiry sweeps, giving memory back, the end of a list.

in: housekeeping, the queue's reclaimer. out: expired entries, freed segments.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref
from cython.cimports.flintmq.queue.counts import count_taken
from cython.cimports.flintmq.queue.entry_list import directory_free, expiry_free, list_directory_find, list_unlink_locked, segment_free
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len, slot_content
from cython.cimports.flintmq.queue.spans import spans_free
from cython.cimports.flintmq.queue.types import (
    INDEX_MASK,
    LEVEL_SHIFT,
    ENTRY_ACQUIRED,
    ENTRY_DEQUEUED,
    ENTRY_EMPTY,
    ENTRY_STATE_MASK,
    MESSAGE_SPILLED_BIT,
    level_t,
    segment_t,
    slot_t,
    span_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _set_expiry_min(entries: cython.pointer(list_t), value: int64_t) -> cython.void:
    at_store64(cython.cast(cython.pointer(uint64_t), cython.address(entries.expiry_min)), cython.cast(uint64_t, value))


# --- expiry -------------------------------------------------------------------------------------------------------------------


def list_take_expired(entries, now_ms, position, slot):
    level: cython.pointer(level_t)
    segment: cython.pointer(segment_t)
    at: cython.pointer(slot_t)
    level_no: uint32_t
    place: uint32_t
    i: uint64_t
    first: uint64_t
    index: uint64_t
    least: int64_t
    state: uint64_t
    earliest: int64_t = 0
    if at_load64(cython.cast(cython.pointer(uint64_t), cython.address(entries.expiry_min))) == 0:
        return False
    spin_lock(cython.address(entries.lock))
    if entries.expiry_min == 0 or entries.expiry_min > now_ms:
        spin_unlock(cython.address(entries.lock))
        return False
    if entries.expiry_now != now_ms:
        entries.expiry_now = now_ms  # a new sweep, from the start
        entries.expiry_resume = 1
    level_no = cython.cast(uint32_t, entries.expiry_resume >> LEVEL_SHIFT)
    index = entries.expiry_resume & INDEX_MASK
    while level_no < entries.level_count:
        level = entries.levels + level_no
        place = list_directory_find(level, index)
        while place < level.count:
            segment = level.directory[level.start + place]
            place += 1
            if segment.expiry == cython.NULL or segment.expiry_min == 0 or segment.expiry_min > now_ms:
                continue
            first = index - segment.base if index > segment.base else 0
            least = 0
            for i in range(first, segment.count):
                if segment.expiry[i] == 0:
                    continue
                at = segment.slots + i
                if segment.expiry[i] <= now_ms and slot_acquire(at, 0, True):
                    segment.expiry[i] = 0
                    slot[0] = at
                    position[0] = (cython.cast(uint64_t, level_no) << LEVEL_SHIFT) | (segment.base + i)
                    entries.expiry_resume = position[0] + 1
                    count_taken(entries, slot_body_len(at))
                    spin_unlock(cython.address(entries.lock))
                    return True
                state = at_load64(cython.address(at.state)) & ENTRY_STATE_MASK
                if state >= ENTRY_DEQUEUED:
                    segment.expiry[i] = 0
                elif state == ENTRY_ACQUIRED and segment.expiry[i] <= now_ms:
                    continue  # in somebody's hands: list_came_back_locked brings it into the account again
                elif least == 0 or segment.expiry[i] < least:
                    least = segment.expiry[i]  # not due yet
            if first == 0:
                segment.expiry_min = least
        level_no += 1
        index = 1
    entries.expiry_now = 0
    for level_no in range(entries.level_count):
        level = entries.levels + level_no
        for place in range(level.count):
            least = level.directory[level.start + place].expiry_min
            if least and (earliest == 0 or least < earliest):
                earliest = least
    _set_expiry_min(entries, earliest)
    spin_unlock(cython.address(entries.lock))
    return False


# --- memory -------------------------------------------------------------------------------------------------------------------


def list_shrink(entries):
    level_no: uint32_t
    level: cython.pointer(level_t)
    spare: cython.pointer(segment_t) = cython.NULL
    spin_lock(cython.address(entries.lock))
    if entries.enqueued == entries.enqueued_before:
        spare = entries.spare
        entries.spare = cython.NULL
        for level_no in range(entries.level_count):
            level = entries.levels + level_no
            # Not while an entry is reserved: that counts as live.
            if level.live == 0 and level.last != cython.NULL:
                list_unlink_locked(entries, level, level.last)
                level.grown = False
            if level.count == 0 and level.directory != cython.NULL:
                directory_free(level)
                spans_free(level)  # nothing is there any more
    entries.enqueued_before = entries.enqueued
    spin_unlock(cython.address(entries.lock))
    if spare != cython.NULL:
        segment_free(spare)


def list_take_retired(entries):
    retired: cython.pointer(segment_t)
    spin_lock(cython.address(entries.lock))
    retired = entries.retired
    entries.retired = cython.NULL
    at_store32(cython.address(entries.retired_count), 0)
    spin_unlock(cython.address(entries.lock))
    return retired


def list_put_back_retired(entries, retired):
    at: cython.pointer(segment_t)
    spin_lock(cython.address(entries.lock))
    while retired != cython.NULL:
        at = retired
        retired = retired.prev
        at.prev = entries.retired
        entries.retired = at
        at_store32(cython.address(entries.retired_count), entries.retired_count + 1)
    spin_unlock(cython.address(entries.lock))


def list_free_retired(entries, retired, keep_spare):
    at: cython.pointer(segment_t)
    spare: cython.pointer(segment_t) = cython.NULL
    while retired != cython.NULL:
        at = retired
        retired = retired.prev
        if keep_spare and at.mapped and spare == cython.NULL:
            spare = at
        else:
            segment_free(at)
    if spare == cython.NULL:
        return
    expiry_free(spare)
    spare.expiry_min = 0
    spare.live = 0
    memset(spare.slots, ENTRY_EMPTY, spare.count * cython.sizeof(slot_t))
    spin_lock(cython.address(entries.lock))
    if entries.spare == cython.NULL:
        entries.spare = spare
        spare = cython.NULL
    spin_unlock(cython.address(entries.lock))
    if spare != cython.NULL:
        segment_free(spare)


def list_destroy(entries, port):
    level_no: uint32_t
    i: uint64_t
    segment: cython.pointer(segment_t)
    at: cython.pointer(segment_t)
    if entries.ops.destroy != cython.NULL:
        entries.ops.destroy(entries)
    for level_no in range(entries.level_count):
        segment = entries.levels[level_no].first
        while segment != cython.NULL:
            at = segment
            segment = segment.next
            for i in range(at.count):
                if at.slots[i].content == cython.NULL:
                    continue
                if slot_content(at.slots + i) != cython.NULL:
                    content_decref(at.slots[i].content)
                if at.slots[i].message_id >> MESSAGE_SPILLED_BIT and port != cython.NULL and port.unspill != cython.NULL:
                    port.unspill(port.context, at.slots[i].message_id)
            segment_free(at)
        directory_free(cython.address(entries.levels[level_no]))
        spans_free(cython.address(entries.levels[level_no]))
    segment = entries.retired
    while segment != cython.NULL:
        at = segment
        segment = segment.prev
        segment_free(at)
    if entries.spare != cython.NULL:
        segment_free(entries.spare)
    if entries.levels != cython.address(entries.level0):
        free(entries.levels)


def list_memory(entries):
    total: uint64_t = 0
    level_no: uint32_t
    level: cython.pointer(level_t)
    segment: cython.pointer(segment_t)
    spin_lock(cython.address(entries.lock))
    if entries.level_count > 1:
        total += entries.level_count * cython.sizeof(level_t)
    for level_no in range(entries.level_count):
        level = entries.levels + level_no
        total += level.capacity * cython.sizeof(cython.p_void) + level.span_room * cython.sizeof(span_t)
        segment = level.first
        while segment != cython.NULL:
            total += segment.mapped if segment.mapped else cython.sizeof(segment_t) + segment.count * cython.sizeof(slot_t)
            if segment.expiry != cython.NULL:
                total += segment.count * cython.sizeof(int64_t)
            segment = segment.next
    segment = entries.retired
    while segment != cython.NULL:
        total += segment.mapped if segment.mapped else cython.sizeof(segment_t) + segment.count * cython.sizeof(slot_t)
        segment = segment.prev
    if entries.spare != cython.NULL:
        total += entries.spare.mapped
    spin_unlock(cython.address(entries.lock))
    return total
