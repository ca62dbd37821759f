"""Entries that come to a list otherwise than by arriving at its end: recovered ones, spilled ones, and those of open transactions.

in: recovery, transactions, producers whose message was spilled. out: entries at given positions.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_incref, content_t
from cython.cimports.flintmq.queue.counts import count_arrival, count_behind, count_cold, count_resident, count_taken
from cython.cimports.flintmq.queue.entry_list import list_came_back_locked, list_claim_locked, list_slot_locked
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_set_cold
from cython.cimports.flintmq.queue.types import (
    INDEX_MASK,
    LEVEL_SHIFT,
    ENTRY_ACQUIRED,
    ENTRY_ASIDE,
    ENTRY_AVAILABLE,
    ENTRY_HELD,
    ENTRY_LOGGED,
    ENTRY_NOT_RESIDENT,
    ENTRY_REDELIVERED,
    ENTRY_STATE_MASK,
    ENTRY_UNSTEALABLE,
    RESTORED_HELD,
    RESTORED_REDELIVERED,
    level_t,
    list_t,
    restored_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t

ALL_HOT = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _insert_locked(
    entries: cython.pointer(list_t),
    level: uint32_t,
    index: uint64_t,
    content: cython.pointer(content_t),
    message_id: uint64_t,
    body_len: uint32_t,
    flags: uint64_t,
    expires_at_ms: int64_t,
) -> cython.pointer(slot_t):
    """list_insert without the lock. NULL when refused."""
    sub: cython.pointer(level_t) = entries.levels + level
    slot: cython.pointer(slot_t)
    slot = list_claim_locked(entries, level, index, expires_at_ms)
    if slot == cython.NULL:
        return cython.NULL
    slot.message_id = message_id
    if content != cython.NULL:
        content_incref(content)
        slot.content = content
        body_len = content.body_len
        count_resident(entries, body_len)
    else:
        slot_set_cold(slot, body_len)
        flags |= ENTRY_NOT_RESIDENT
        if flags & ENTRY_HELD:
            flags |= ENTRY_ASIDE
        else:
            count_cold(entries, 1)
    if flags & ENTRY_HELD:
        flags |= ENTRY_ACQUIRED | ENTRY_UNSTEALABLE
    else:
        count_arrival(entries, body_len)
        flags |= ENTRY_AVAILABLE
    # Release stores: whoever reads this state, or this tail, sees the slot's content.
    at_store64(cython.address(slot.state), flags)
    at_store64(cython.address(sub.tail), index)
    if not flags & ENTRY_HELD and level + 1 < entries.level_count:
        count_behind(entries, (cython.cast(uint64_t, level) << LEVEL_SHIFT) | index)
    return slot


def list_insert(entries, level, index, content, message_id, body_len, flags, expires_at_ms, wanted, slot):
    at: cython.pointer(slot_t)
    spin_lock(cython.address(entries.lock))
    if index == 0:
        index = entries.levels[level].tail + 1
    at = _insert_locked(entries, level, index, content, message_id, body_len, flags, expires_at_ms)
    wanted[0] = at_load32(cython.address(entries.wanted))
    spin_unlock(cython.address(entries.lock))
    if slot != cython.NULL:
        slot[0] = at
    return 0 if at == cython.NULL else (cython.cast(uint64_t, level) << LEVEL_SHIFT) | index


def list_insert_many(entries, restored, count):
    i: uint64_t
    at: cython.pointer(restored_t)
    flags: uint64_t
    level: uint64_t
    spin_lock(cython.address(entries.lock))
    for i in range(count):
        at = restored + i
        level = at.position >> LEVEL_SHIFT
        flags = ENTRY_LOGGED if at.message_id else 0
        if at.flags & RESTORED_REDELIVERED:
            flags |= ENTRY_REDELIVERED
        if at.flags & RESTORED_HELD:
            flags |= ENTRY_HELD
        if (
            level >= entries.level_count
            or _insert_locked(
                entries,
                cython.cast(uint32_t, level),
                at.position & INDEX_MASK,
                cython.NULL,
                at.message_id,
                at.body_len,
                flags,
                at.expires_at_ms,
            )
            == cython.NULL
        ):
            spin_unlock(cython.address(entries.lock))
            return i
    spin_unlock(cython.address(entries.lock))
    return count


def list_set_tail(entries, level, index):
    closed: cython.bint
    spin_lock(cython.address(entries.lock))
    closed = entries.closed != 0
    if not closed and index > entries.levels[level].tail:
        at_store64(cython.address(entries.levels[level].tail), index)
    spin_unlock(cython.address(entries.lock))
    return not closed


def list_publish_held(entries, position, flags, hot_bytes, wanted, dropped):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t
    body_len: uint32_t
    index: uint64_t = position & INDEX_MASK
    dropped[0] = cython.NULL
    spin_lock(cython.address(entries.lock))
    slot = list_slot_locked(entries, position, cython.address(segment))
    state = at_load64(cython.address(slot.state)) if slot != cython.NULL else 0
    if state & ENTRY_STATE_MASK != ENTRY_ACQUIRED or not state & ENTRY_HELD:
        spin_unlock(cython.address(entries.lock))
        return False
    body_len = slot_body_len(slot)
    count_arrival(entries, body_len)
    count_taken(entries, body_len)  # the broker has had it from its birth
    if (
        not state & ENTRY_NOT_RESIDENT
        and slot.message_id
        # Without itself: held content is resident.
        and hot_bytes != ALL_HOT
        and (entries.cold_count or entries.resident_bytes > hot_bytes)
    ):
        dropped[0] = slot.content
        slot_set_cold(slot, body_len)
        flags |= ENTRY_NOT_RESIDENT
        count_cold(entries, 1)
        count_resident(entries, -cython.cast(uint64_t, body_len))
    if state & ENTRY_ASIDE:
        count_cold(entries, 1)
    # Nobody else may change a held entry: a store will do.
    state &= ~cython.cast(uint64_t, ENTRY_HELD | ENTRY_ASIDE | ENTRY_UNSTEALABLE | ENTRY_STATE_MASK)
    at_store64(cython.address(slot.state), state | flags | ENTRY_AVAILABLE)
    list_came_back_locked(entries, segment, index, body_len)
    count_behind(entries, position)
    wanted[0] = at_load32(cython.address(entries.wanted))
    spin_unlock(cython.address(entries.lock))
    return True
