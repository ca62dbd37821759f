"""Entries that come to a list otherwise than by arriving at its end: recovered ones, spilled ones, and those of open transactions.

in: recovery, transactions, producers whose message was spilled. out: entries at given positions.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, pointer
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_incref, content_t
from cython.cimports.flintmq.queue.counts import count_arrival, count_behind, count_cold, count_evicted, count_resident, count_taken
from cython.cimports.flintmq.queue.entry_list import ALL_HOT, list_came_back_locked, list_claim_locked, list_slot_locked
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_set_cold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED,
    ENTRY_ASIDE,
    ENTRY_AVAILABLE,
    ENTRY_HELD,
    ENTRY_LOGGED,
    ENTRY_NOT_RESIDENT,
    ENTRY_REDELIVERED,
    ENTRY_STATE_MASK,
    ENTRY_UNSTEALABLE,
    INDEX_MASK,
    LEVEL_SHIFT,
    RESTORED_HELD,
    RESTORED_REDELIVERED,
    level_t,
    list_t,
    restored_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


@cfunc
@inline
@nogil
@exceptval(check=False)
def _insert_locked(
    entries: pointer[list_t],
    level: uint32_t,
    index: uint64_t,
    content: pointer[content_t],
    message_id: uint64_t,
    body_len: uint32_t,
    flags: uint64_t,
    expires_at_ms: int64_t,
) -> pointer[slot_t]:
    """list_insert without the lock. NULL when refused."""
    sub: pointer[level_t] = entries.levels + level
    slot: pointer[slot_t]
    slot = list_claim_locked(entries, level, index, expires_at_ms)
    if slot == NULL:
        return NULL
    slot.message_id = message_id
    if content != NULL:
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
    at_store64(address(slot.state), flags)
    at_store64(address(sub.tail), index)
    if not flags & ENTRY_HELD and level + 1 < entries.level_count:
        count_behind(entries, (cast(uint64_t, level) << LEVEL_SHIFT) | index)
    return slot


def list_insert(
    entries: pointer[list_t],
    level: uint32_t,
    index: uint64_t,
    content: pointer[content_t],
    message_id: uint64_t,
    body_len: uint32_t,
    flags: uint64_t,
    expires_at_ms: int64_t,
    wanted: pointer[uint32_t],
    slot: pointer[pointer[slot_t]],
) -> uint64_t:
    at: pointer[slot_t]
    spin_lock(address(entries.lock))
    if index == 0:
        index = entries.levels[level].tail + 1
    at = _insert_locked(entries, level, index, content, message_id, body_len, flags, expires_at_ms)
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    if slot != NULL:
        slot[0] = at
    return 0 if at == NULL else (cast(uint64_t, level) << LEVEL_SHIFT) | index


def list_insert_many(entries: pointer[list_t], restored: pointer[restored_t], count: uint64_t) -> uint64_t:
    i: uint64_t
    at: pointer[restored_t]
    flags: uint64_t
    level: uint64_t
    spin_lock(address(entries.lock))
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
                cast(uint32_t, level),
                at.position & INDEX_MASK,
                NULL,
                at.message_id,
                at.body_len,
                flags,
                at.expires_at_ms,
            )
            == NULL
        ):
            spin_unlock(address(entries.lock))
            return i
    spin_unlock(address(entries.lock))
    return count


def list_set_tail(entries: pointer[list_t], level: uint32_t, index: uint64_t) -> bint:
    closed: bint
    spin_lock(address(entries.lock))
    closed = entries.closed != 0
    if not closed and index > entries.levels[level].tail:
        at_store64(address(entries.levels[level].tail), index)
    spin_unlock(address(entries.lock))
    return not closed


def list_publish_held(
    entries: pointer[list_t],
    position: uint64_t,
    flags: uint64_t,
    hot_bytes: uint64_t,
    wanted: pointer[uint32_t],
    dropped: pointer[pointer[content_t]],
) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t
    body_len: uint32_t
    index: uint64_t = position & INDEX_MASK
    dropped[0] = NULL
    spin_lock(address(entries.lock))
    slot = list_slot_locked(entries, position, address(segment))
    state = at_load64(address(slot.state)) if slot != NULL else 0
    if state & ENTRY_STATE_MASK != ENTRY_ACQUIRED or not state & ENTRY_HELD:
        spin_unlock(address(entries.lock))
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
        count_evicted(entries, body_len)
    if state & ENTRY_ASIDE:
        count_cold(entries, 1)
    # Nobody else may change a held entry: a store will do.
    state &= ~cast(uint64_t, ENTRY_HELD | ENTRY_ASIDE | ENTRY_UNSTEALABLE | ENTRY_STATE_MASK)
    at_store64(address(slot.state), state | flags | ENTRY_AVAILABLE)
    list_came_back_locked(entries, segment, index, body_len)
    count_behind(entries, position)
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    return True
