"""Entries that come back by recovery, and those of transactions (see restoring.pxd).

in: recovery, the tx class, distributed transactions. out: entries at fixed positions, available or held.

A held entry is ACQUIRED by the broker from its birth, so every reader passes it; it has its position from then on, and so keeps its
place in the order when it becomes available. log_lock is taken wherever an entry is added: a producer may have reserved the next
position and be telling the log of it.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import CONTENT_PRIORITY, content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_wake_waiters
from cython.cimports.flintmq.queue.counts import count_arrival, count_cold, count_resident, count_taken
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import list_next, list_scan, list_set_expiry_locked, list_slot_locked
from cython.cimports.flintmq.queue.list_kinds import kind_arrived
from cython.cimports.flintmq.queue.list_restore import list_insert, list_insert_many, list_publish_held, list_set_tail
from cython.cimports.flintmq.queue.pull import queue_release, queue_unparked
from cython.cimports.flintmq.queue.queue_core import queue_settle
from cython.cimports.flintmq.queue.residency import queue_load_room
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len, slot_borrow, slot_clear, slot_pass_on, slot_set, slot_set_cold
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
    REASON_DROP,
    found_t,
    place_t,
    queue_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t


# --- recovery ---------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _came(queue: cython.pointer(queue_t), content: cython.pointer(content_t)) -> cython.void:
    """An entry is available at a place that readers may have passed."""
    due_worked(queue)
    due_expiry(queue)
    manager_available(queue, content, True)
    manager_wake_waiters(queue)


def queue_restore(queue, content, message_id, position, redelivered, expires_at_ms, body_len):
    wanted: uint32_t = 0
    flags: uint64_t = 0
    restored: uint64_t = 0
    level: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
    if level >= queue.entries.level_count or index == 0:
        return 0
    if redelivered:
        flags |= ENTRY_REDELIVERED
    if message_id:
        flags |= ENTRY_LOGGED
    spin_lock(cython.address(queue.log_lock))
    restored = list_insert(
        cython.address(queue.entries),
        cython.cast(uint32_t, level),
        index,
        content,
        message_id,
        body_len,
        flags,
        expires_at_ms,
        cython.address(wanted),
        cython.NULL,
    )
    spin_unlock(cython.address(queue.log_lock))
    if restored:
        _came(queue, content)
    return restored


def queue_restore_many(queue, restored, count):
    done: uint64_t
    spin_lock(cython.address(queue.log_lock))
    done = list_insert_many(cython.address(queue.entries), restored, count)
    spin_unlock(cython.address(queue.log_lock))
    if done:
        _came(queue, cython.NULL)
    return done


def queue_tail(queue, level):
    if level >= queue.entries.level_count:
        return 0
    return at_load64(cython.address(queue.entries.levels[level].tail))


def queue_set_tail(queue, level, index):
    done: cython.bint
    if level >= queue.entries.level_count or index > INDEX_MASK:
        return False
    spin_lock(cython.address(queue.log_lock))
    done = list_set_tail(cython.address(queue.entries), level, index)
    spin_unlock(cython.address(queue.log_lock))
    return done


def queue_next_redelivered(queue, position, first, last):
    at: found_t
    place: place_t
    state: uint64_t
    found: cython.bint = False
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    while list_next(cython.address(queue.entries), cython.address(place), position, cython.address(at)):
        position = at.position + 1
        state = at_load64(cython.address(at.slot.state))
        if not state & ENTRY_LOGGED:
            continue
        if found and (not state & ENTRY_REDELIVERED or (at.position ^ last[0]) >> LEVEL_SHIFT):
            break
        if state & ENTRY_REDELIVERED:
            if not found:
                first[0] = at.position
            last[0] = at.position
            found = True
    at_sub32(cython.address(queue.pins), 1)
    return found


# --- transactions -----------------------------------------------------------------------------------------------------------


def queue_add_held(queue, content, expires_at_ms, position):
    wanted: uint32_t = 0
    slot: cython.pointer(slot_t) = cython.NULL
    level: uint32_t = 0
    if not queue.entries.ops.in_order:
        level = queue.entries.ops.level_of(cython.address(queue.entries), content)
    spin_lock(cython.address(queue.log_lock))
    position[0] = list_insert(
        cython.address(queue.entries),
        level,
        0,
        content,
        0,
        0,
        ENTRY_HELD,
        expires_at_ms,
        cython.address(wanted),
        cython.address(slot),
    )
    spin_unlock(cython.address(queue.log_lock))
    return slot


def queue_publish_held(queue, slot, position, logged):
    wanted: uint32_t = 0
    dropped: cython.pointer(content_t) = cython.NULL
    hot_bytes: uint64_t = ~cython.cast(uint64_t, 0)
    if queue.port != cython.NULL and queue.port.load != cython.NULL:
        hot_bytes = at_load64(cython.address(queue.port.hot_bytes))
        if at_load64(cython.address(queue.entries.cold_count)) == 0 and queue_load_room(queue):
            hot_bytes = ~cython.cast(uint64_t, 0)
    if not list_publish_held(
        cython.address(queue.entries), position, ENTRY_LOGGED if logged else 0, hot_bytes, cython.address(wanted), cython.address(dropped)
    ):
        return queue_release(queue, slot, position, 0, False)
    kind_arrived(queue, position, cython.NULL)
    _came(queue, dropped)
    if dropped != cython.NULL:
        content_decref(dropped)
    return True


def queue_drop_held(queue, slot, position):
    queue_forget_logged(queue, slot, position, 0)
    return queue_settle(queue, slot, position, 0, REASON_DROP, 0)


def queue_forget_logged(queue, slot, position, owner):
    segment: cython.pointer(segment_t) = cython.NULL
    at: cython.pointer(slot_t)
    forgotten: cython.bint
    spin_lock(cython.address(queue.entries.lock))
    at = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    forgotten = at != cython.NULL and slot_clear(at, owner, ENTRY_LOGGED)
    spin_unlock(cython.address(queue.entries.lock))
    return forgotten


def queue_hold_at(queue, position):
    return queue_take_at(queue, position, 0)


def queue_take_at(queue, position, owner):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot == cython.NULL or not slot_acquire(slot, owner, True):
        spin_unlock(cython.address(queue.entries.lock))
        return cython.NULL
    count_taken(cython.address(queue.entries), slot_body_len(slot))
    if at_load64(cython.address(slot.state)) & ENTRY_NOT_RESIDENT:
        count_cold(cython.address(queue.entries), -1)
        slot_set(slot, ENTRY_ASIDE)
    spin_unlock(cython.address(queue.entries.lock))
    queue_unparked(queue, slot)
    return slot


# --- distributed transactions -------------------------------------------------------------------------------------------------


def queue_pass_on(queue, position, owner):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    passed: cython.bint
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    passed = slot != cython.NULL and owner != 0 and slot_pass_on(slot, owner)
    spin_unlock(cython.address(queue.entries.lock))
    return passed


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _held_locked(queue: cython.pointer(queue_t), position: uint64_t, segment: cython.pointer(cython.pointer(segment_t))) -> cython.pointer(
    slot_t
):
    """The slot of a held entry, else NULL."""
    slot: cython.pointer(slot_t) = list_slot_locked(cython.address(queue.entries), position, segment)
    if slot == cython.NULL:
        return cython.NULL
    if at_load64(cython.address(slot.state)) & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED | ENTRY_HELD:
        return cython.NULL
    return slot


def queue_adopt_held(queue, position):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    body_len: uint32_t
    adopted: cython.bint = False
    spin_lock(cython.address(queue.entries.lock))
    slot = _held_locked(queue, position, cython.address(segment))
    # A reserved entry has no record yet, one that recovery held has.
    if slot != cython.NULL and at_load64(cython.address(slot.state)) & ENTRY_LOGGED:
        body_len = slot_body_len(slot)
        count_arrival(cython.address(queue.entries), body_len)
        count_taken(cython.address(queue.entries), body_len)
        # Nobody else may change a held entry: a store will do.
        at_store64(cython.address(slot.state), at_load64(cython.address(slot.state)) & ~cython.cast(uint64_t, ENTRY_HELD))
        adopted = True
    spin_unlock(cython.address(queue.entries.lock))
    return adopted


def queue_reserve(queue, priority):
    wanted: uint32_t = 0
    level: uint32_t = 0
    position: uint64_t
    like: content_t
    if not queue.entries.ops.in_order:
        like.route_len = 0
        like.flags = 0
        like.priority = 0
        if priority >= 0:
            like.flags = CONTENT_PRIORITY
            like.priority = cython.cast(uint8_t, min(priority, 255))
        level = queue.entries.ops.level_of(cython.address(queue.entries), cython.address(like))
    spin_lock(cython.address(queue.log_lock))
    position = list_insert(cython.address(queue.entries), level, 0, cython.NULL, 0, 0, ENTRY_HELD, 0, cython.address(wanted), cython.NULL)
    spin_unlock(cython.address(queue.log_lock))
    return position


def queue_fill_held(queue, position, content, message_id, body_len, expires_at_ms):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t
    spin_lock(cython.address(queue.entries.lock))
    slot = _held_locked(queue, position, cython.address(segment))
    state = at_load64(cython.address(slot.state)) if slot != cython.NULL else 0
    if not state & ENTRY_NOT_RESIDENT or slot.message_id or slot_body_len(slot):
        spin_unlock(cython.address(queue.entries.lock))
        return False
    slot.message_id = message_id
    if content != cython.NULL:
        content_incref(content)
        slot.content = content
        count_resident(cython.address(queue.entries), content.body_len)
        at_store64(cython.address(slot.state), state & ~cython.cast(uint64_t, ENTRY_NOT_RESIDENT | ENTRY_ASIDE))
    else:
        slot_set_cold(slot, body_len)
    if expires_at_ms:
        # Out of memory: the log has it, so it stays, without expiring.
        list_set_expiry_locked(cython.address(queue.entries), segment, position & INDEX_MASK, expires_at_ms)
    spin_unlock(cython.address(queue.entries.lock))
    return True


def queue_facts(queue, position, message_id, expires_at_ms):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t = 0
    message_id[0] = 0
    expires_at_ms[0] = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = at_load64(cython.address(slot.state))
        if state & ENTRY_STATE_MASK != ENTRY_AVAILABLE and state & ENTRY_STATE_MASK != ENTRY_ACQUIRED:
            state = 0
    if state:
        message_id[0] = slot.message_id
        if segment.expiry != cython.NULL:
            expires_at_ms[0] = segment.expiry[(position & INDEX_MASK) - segment.base]
    spin_unlock(cython.address(queue.entries.lock))
    return state


def queue_borrow(queue, position, message_id):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    message_id[0] = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        content = slot_borrow(slot, True, cython.address(state))
        if state:
            message_id[0] = slot.message_id
    spin_unlock(cython.address(queue.entries.lock))
    return content


def queue_next_available(queue, position):
    at: found_t
    place: place_t
    found: cython.bint
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    found = list_scan(cython.address(queue.entries), cython.address(place), position, cython.address(at))
    at_sub32(cython.address(queue.pins), 1)
    return at.position if found else 0
