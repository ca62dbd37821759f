"""Upkeep of entry lists, off the message path: giving memory back, the end of a list.

in: housekeeping, the queue's reclaimer. out: freed segments.

I2  A segment whose memory is given back, or kept as spare, holds no entry.
"""

from __future__ import annotations

from cython import NULL, address, bint, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref
from cython.cimports.flintmq.queue.entry_list import directory_free, list_unlink_locked, segment_free
from cython.cimports.flintmq.queue.expiries import expiry_free, expiry_list_free
from cython.cimports.flintmq.queue.slot import slot_content
from cython.cimports.flintmq.queue.spans import spans_free
from cython.cimports.flintmq.queue.types import (
    ENTRY_EMPTY,
    MESSAGE_SPILLED_BIT,
    level_t,
    list_t,
    log_port_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

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
        if entries.due_count == 0 and entries.due != NULL:
            expiry_list_free(entries)
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
    expiry_list_free(entries)
    if entries.levels != address(entries.level0):
        free(entries.levels)
