"""Upkeep of entry lists, off the message path: expiry sweeps, giving memory back, the end of a list.

in: housekeeping, the queue's reclaimer. out: expired entries, freed segments.

I1  An entry that the sweep of expired ones takes stands at or below the tail of its level.
I2  A segment whose memory is given back, or kept as spare, holds no entry.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref
from cython.cimports.flintmq.queue.counts import count_taken
from cython.cimports.flintmq.queue.entry_list import directory_free, expiry_free, list_directory_find, list_unlink_locked, segment_free
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len, slot_content
from cython.cimports.flintmq.queue.spans import spans_free
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED,
    ENTRY_DEQUEUED,
    ENTRY_EMPTY,
    ENTRY_STATE_MASK,
    INDEX_MASK,
    LEVEL_SHIFT,
    MESSAGE_SPILLED_BIT,
    level_t,
    list_t,
    log_port_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset


@cfunc
@nogil
@exceptval(check=False)
def _set_expiry_min(entries: pointer[list_t], value: int64_t) -> void:
    at_store64(cast(pointer[uint64_t], address(entries.expiry_min)), cast(uint64_t, value))


# --- expiry -------------------------------------------------------------------------------------------------------------------


def list_take_expired(entries: pointer[list_t], now_ms: int64_t, position: pointer[uint64_t], slot: pointer[pointer[slot_t]]) -> bint:
    level: pointer[level_t]
    segment: pointer[segment_t]
    at: pointer[slot_t]
    level_no: uint32_t
    place: uint32_t
    i: uint64_t
    first: uint64_t
    index: uint64_t
    least: int64_t
    state: uint64_t
    earliest: int64_t = 0
    if at_load64(cast(pointer[uint64_t], address(entries.expiry_min))) == 0:
        return False
    spin_lock(address(entries.lock))
    if entries.expiry_min == 0 or entries.expiry_min > now_ms:
        spin_unlock(address(entries.lock))
        return False
    if entries.expiry_now != now_ms:
        entries.expiry_now = now_ms  # a new sweep, from the start
        entries.expiry_resume = 1
    level_no = cast(uint32_t, entries.expiry_resume >> LEVEL_SHIFT)
    index = entries.expiry_resume & INDEX_MASK
    while level_no < entries.level_count:
        level = entries.levels + level_no
        place = list_directory_find(level, index)
        while place < level.count:
            segment = level.directory[level.start + place]
            place += 1
            if segment.expiry == NULL or segment.expiry_min == 0 or segment.expiry_min > now_ms:
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
                    position[0] = (cast(uint64_t, level_no) << LEVEL_SHIFT) | (segment.base + i)
                    entries.expiry_resume = position[0] + 1
                    check(segment.base + i <= level.tail, b"list_upkeep I1 an expired entry stands below the tail", position[0], level.tail)
                    count_taken(entries, slot_body_len(at))
                    spin_unlock(address(entries.lock))
                    return True
                state = at_load64(address(at.state)) & ENTRY_STATE_MASK
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
    spin_unlock(address(entries.lock))
    return False


# --- memory -------------------------------------------------------------------------------------------------------------------


def list_shrink(entries: pointer[list_t]) -> void:
    level_no: uint32_t
    level: pointer[level_t]
    spare: pointer[segment_t] = NULL
    spin_lock(address(entries.lock))
    if entries.enqueued == entries.enqueued_before:
        spare = entries.spare
        entries.spare = NULL
        for level_no in range(entries.level_count):
            level = entries.levels + level_no
            # Not while an entry is reserved: that counts as live.
            if level.live == 0 and level.last != NULL:
                list_unlink_locked(entries, level, level.last)
                level.grown = False
            if level.count == 0 and level.directory != NULL:
                directory_free(level)
                spans_free(level)  # nothing is there any more
    entries.enqueued_before = entries.enqueued
    spin_unlock(address(entries.lock))
    if spare != NULL:
        segment_free(spare)


def list_take_retired(entries: pointer[list_t]) -> pointer[segment_t]:
    retired: pointer[segment_t]
    spin_lock(address(entries.lock))
    retired = entries.retired
    entries.retired = NULL
    at_store32(address(entries.retired_count), 0)
    spin_unlock(address(entries.lock))
    return retired


def list_put_back_retired(entries: pointer[list_t], retired: pointer[segment_t]) -> void:
    at: pointer[segment_t]
    spin_lock(address(entries.lock))
    while retired != NULL:
        at = retired
        retired = retired.prev
        at.prev = entries.retired
        entries.retired = at
        at_store32(address(entries.retired_count), entries.retired_count + 1)
    spin_unlock(address(entries.lock))


def list_free_retired(entries: pointer[list_t], retired: pointer[segment_t], keep_spare: bint) -> void:
    at: pointer[segment_t]
    spare: pointer[segment_t] = NULL
    while retired != NULL:
        at = retired
        retired = retired.prev
        check(at.live == 0, b"list_upkeep I2 a retired segment is empty", at.live, at.base)
        if keep_spare and at.mapped and spare == NULL:
            spare = at
        else:
            segment_free(at)
    if spare == NULL:
        return
    expiry_free(spare)
    spare.expiry_min = 0
    spare.live = 0
    memset(spare.slots, ENTRY_EMPTY, spare.count * sizeof(slot_t))
    spin_lock(address(entries.lock))
    if entries.spare == NULL:
        entries.spare = spare
        spare = NULL
    spin_unlock(address(entries.lock))
    if spare != NULL:
        segment_free(spare)


def list_destroy(entries: pointer[list_t], port: pointer[log_port_t]) -> void:
    level_no: uint32_t
    i: uint64_t
    segment: pointer[segment_t]
    at: pointer[segment_t]
    if entries.ops.destroy != NULL:
        entries.ops.destroy(entries)
    for level_no in range(entries.level_count):
        segment = entries.levels[level_no].first
        while segment != NULL:
            at = segment
            segment = segment.next
            for i in range(at.count):
                if at.slots[i].content == NULL:
                    continue
                if slot_content(at.slots + i) != NULL:
                    content_decref(at.slots[i].content)
                if at.slots[i].message_id >> MESSAGE_SPILLED_BIT and port != NULL and port.unspill != NULL:
                    port.unspill(port.context, at.slots[i].message_id)
            segment_free(at)
        directory_free(address(entries.levels[level_no]))
        spans_free(address(entries.levels[level_no]))
    segment = entries.retired
    while segment != NULL:
        at = segment
        segment = segment.prev
        segment_free(at)
    if entries.spare != NULL:
        segment_free(entries.spare)
    if entries.levels != address(entries.level0):
        free(entries.levels)
