"""Entries that come back by recovery, and those of transactions (see restoring.pxd).

in: recovery, the tx class, distributed transactions. out: entries at fixed positions, available or held.

A held entry is ACQUIRED by the broker from its birth, so every reader passes it; it has its position from then on, and so keeps its
place in the order when it becomes available. log_lock is taken wherever an entry is added: a producer may have reserved the next
position and be telling the log of it.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_behind, manager_wake_waiters
from cython.cimports.flintmq.queue.counts import count_arrival, count_behind, count_cold, count_evicted, count_resident, count_taken
from cython.cimports.flintmq.queue.delivered import delivered_ahead
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import (
    ALL_HOT, list_came_back_locked, list_claim_locked, list_next, list_scan, list_slot_locked,
)  # fmt: skip
from cython.cimports.flintmq.queue.list_kinds import kind_arrived
from cython.cimports.flintmq.queue.paging import (
    PAGE_CAME, SHELL_NONE, SHELL_SOME, queue_page_in, queue_paging_wanted, shell_locked, shell_redelivered,
)  # fmt: skip
from cython.cimports.flintmq.queue.pull import queue_release
from cython.cimports.flintmq.queue.residency import queue_window
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len, slot_borrow, slot_clear, slot_set, slot_set_cold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_ASIDE, ENTRY_AVAILABLE, ENTRY_COUNT_SHIFT, ENTRY_HELD, ENTRY_LOGGED, ENTRY_NOT_RESIDENT, ENTRY_REDELIVERED,
    ENTRY_STATE_MASK, ENTRY_STUB, ENTRY_UNSTEALABLE, INDEX_MASK, LEVEL_SHIFT, QUEUE_MIRRORED, RESTORED_COUNT_SHIFT, RESTORED_HELD,
    RESTORED_REDELIVERED, found_t, level_t, list_t, original_t, place_t, queue_t, restored_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import queue_unparked
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import qsort
from cython.cimports.libc.string import memset

# --- recovery ---------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _by_position(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[restored_t] = cast(pointer[restored_t], cast(p_void, left))
    b: pointer[restored_t] = cast(pointer[restored_t], cast(p_void, right))
    if a.position != b.position:
        return -1 if a.position < b.position else 1
    return -1 if a.message_id < b.message_id else cast(c_int, a.message_id > b.message_id)


def restored_sort(entries: pointer[restored_t], count: uint64_t) -> uint64_t:
    """Brings a queue's entries into position order; returns how many there are of positions that are taken twice (they come last)."""
    i: uint64_t
    kept: uint64_t = 1
    sorted_: bint = True
    spare: restored_t
    for i in range(1, count):
        if entries[i - 1].position >= entries[i].position:
            sorted_ = False
            break
    if sorted_:
        return 0
    qsort(entries, count, sizeof(restored_t), _by_position)
    for i in range(1, count):
        if entries[i].position != entries[kept - 1].position:
            if i != kept:
                spare = entries[kept]
                entries[kept] = entries[i]
                entries[i] = spare
            kept += 1
    return count - kept


def restored_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, length: uint64_t, start: pointer[uint64_t]) -> uint64_t:
    low: uint64_t = 0
    high: uint64_t = count
    middle: uint64_t
    while low < high:
        middle = (low + high) // 2
        if entries[middle].position < first:
            low = middle + 1
        else:
            high = middle
    start[0] = low
    while low < count and entries[low].position - first < length:
        low += 1
    return low - start[0]


def restored_first(entries: pointer[restored_t], count: uint64_t, level: uint32_t) -> uint64_t:
    start: uint64_t = 0
    restored_range(entries, count, cast(uint64_t, level) << LEVEL_SHIFT, 0, address(start))
    return entries[start].position & INDEX_MASK if start < count and entries[start].position >> LEVEL_SHIFT == level else 0


def restored_flagged(entries: pointer[restored_t], count: uint64_t, level: uint32_t) -> uint64_t:
    number: uint64_t = 0
    restored_range(entries, count, (cast(uint64_t, level) << LEVEL_SHIFT) | INDEX_MASK, 0, address(number))
    while number and entries[number - 1].position >> LEVEL_SHIFT == level:
        number -= 1
        if entries[number].flags & (RESTORED_REDELIVERED | RESTORED_HELD):
            return entries[number].position & INDEX_MASK
    return 0


def restored_hold_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, length: uint64_t) -> void:
    number: uint64_t = 0
    last: uint64_t = restored_range(entries, count, first, length, address(number))
    last += number
    while number < last:
        # It is still in the delivery that it was in when the broker stopped.
        entries[number].flags = entries[number].flags & ~cast(uint32_t, RESTORED_REDELIVERED) | RESTORED_HELD
        number += 1


def restored_mark_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, last: uint64_t) -> void:
    """Flags the entries with positions first..last as delivered before."""
    index: uint64_t = 0
    number: uint64_t = restored_range(entries, count, first, last - first + 1, address(index))
    number += index
    while index < number:
        entries[index].flags |= RESTORED_REDELIVERED
        index += 1


@cfunc
@nogil
@exceptval(check=False)
def _came(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> void:
    """An entry is available at a place that readers may have passed."""
    due_worked(queue)
    due_expiry(queue)
    manager_available(queue, position, content, True)
    manager_wake_waiters(queue)


def queue_restore_many(queue: pointer[queue_t], restored: pointer[restored_t], count: uint64_t) -> uint64_t:
    done: uint64_t
    spin_lock(address(queue.log_lock))
    done = list_insert_many(address(queue.entries), restored, count)
    spin_unlock(address(queue.log_lock))
    if done:
        queue_restored(queue)
    return done


def queue_restored(queue: pointer[queue_t]) -> void:
    manager_behind(queue, 1)
    _came(queue, 0, NULL)
    queue_paging_wanted(queue)


def queue_tail(queue: pointer[queue_t], level: uint32_t) -> uint64_t:
    if level >= queue.entries.level_count:
        return 0
    return at_load64(address(queue.entries.levels[level].tail))


def queue_set_tail(queue: pointer[queue_t], level: uint32_t, index: uint64_t) -> bint:
    done: bint
    if level >= queue.entries.level_count or index > INDEX_MASK:
        return False
    spin_lock(address(queue.log_lock))
    done = list_set_tail(address(queue.entries), level, index)
    spin_unlock(address(queue.log_lock))
    return done


def queue_next_redelivered(queue: pointer[queue_t], position: uint64_t, first: pointer[uint64_t], last: pointer[uint64_t]) -> bint:
    entry: found_t
    place: place_t
    state: uint64_t
    shell: c_int
    is_found: bint = False
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while list_next(address(queue.entries), address(place), position, address(entry)):
        state = at_load64(address(entry.slot.state))
        if state & ENTRY_STUB:
            shell = shell_redelivered(queue, entry.position)
            if shell == SHELL_SOME and queue_page_in(queue, entry.position) == PAGE_CAME:
                position = entry.position
                continue
            position = entry.end + 1
            if is_found and (shell == SHELL_NONE or (entry.position ^ last[0]) >> LEVEL_SHIFT):
                break
            if shell != SHELL_NONE:
                if not is_found:
                    first[0] = entry.position
                last[0] = entry.end
                is_found = True
            continue
        position = entry.position + 1
        if not state & ENTRY_LOGGED:
            continue
        if is_found and (not state & ENTRY_REDELIVERED or (entry.position ^ last[0]) >> LEVEL_SHIFT):
            break
        if state & ENTRY_REDELIVERED:
            if not is_found:
                first[0] = entry.position
            last[0] = entry.position
            is_found = True
    at_sub32(address(queue.pins), 1)
    return is_found


# --- transactions -----------------------------------------------------------------------------------------------------------


def queue_add_held(
    queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t, position: pointer[uint64_t]
) -> pointer[slot_t]:
    wanted: uint32_t = 0
    slot: pointer[slot_t] = NULL
    level: uint32_t = 0
    if not queue.entries.ops.in_order:
        level = queue.entries.ops.level_of(address(queue.entries), content)
    spin_lock(address(queue.log_lock))
    position[0] = list_insert(
        address(queue.entries),
        level,
        0,
        content,
        0,
        0,
        ENTRY_HELD,
        expires_at_ms,
        address(wanted),
        address(slot),
    )
    if position[0] > at_load64(address(queue.entries.level0.ahead)):
        delivered_ahead(queue, position[0])  # its record is still to come
    spin_unlock(address(queue.log_lock))
    return slot


def queue_held_bytes(queue: pointer[queue_t], position: uint64_t) -> uint32_t:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    size: uint32_t
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    size = 0 if slot == NULL else slot_body_len(slot)
    spin_unlock(address(queue.entries.lock))
    return size


def queue_publish_held(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, logged: bint) -> bint:
    wanted: uint32_t = 0
    dropped: pointer[content_t] = NULL
    shown: slot_t
    hot_bytes: uint64_t = ~cast(uint64_t, 0)
    if queue.port != NULL and queue.port.load != NULL:
        hot_bytes = at_load64(address(queue.port.hot_bytes))
        if at_load64(address(queue.entries.cold_count)) == 0:
            hot_bytes = queue_window(queue, 1, hot_bytes)
    if queue.durable == QUEUE_MIRRORED:
        logged = True
        slot_set_cold(address(shown), queue_held_bytes(queue, position))
    if not list_publish_held(address(queue.entries), position, ENTRY_LOGGED if logged else 0, hot_bytes, address(wanted), address(dropped)):
        return queue_release(queue, slot, position, 0, False)
    if queue.durable == QUEUE_MIRRORED:
        # Behind the publish, or whoever hears of it finds it held; by then the entry may be gone, so its length was read before.
        queue.port.enqueue(queue.port.context, queue, position, address(shown), 0)
    kind_arrived(queue, position, NULL)
    _came(queue, position, dropped)
    if dropped != NULL:
        content_decref(dropped)
    return True


def original_of(
    queue: pointer[queue_t],
    position: uint64_t,
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
    out: pointer[original_t],
) -> bint:
    expires_at_ms: int64_t = 0
    state: uint64_t
    memset(out, 0, sizeof(original_t))
    if queue.port == NULL or queue.port.letter == NULL:
        return False
    state = queue_facts(queue, position, address(out.message_id), address(expires_at_ms))
    if not state & ENTRY_LOGGED:
        return False
    out.queue = queue
    out.position = position
    out.owner = owner
    out.delivery_count = cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF)
    out.reason = reason
    out.delivered_us = delivered_us
    return True


def queue_forget_logged(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t) -> bint:
    segment: pointer[segment_t] = NULL
    logged: pointer[slot_t]
    forgotten: bint
    spin_lock(address(queue.entries.lock))
    logged = list_slot_locked(address(queue.entries), position, address(segment))
    forgotten = logged != NULL and slot_clear(logged, owner, ENTRY_LOGGED)
    spin_unlock(address(queue.entries.lock))
    return forgotten


def queue_hold_at(queue: pointer[queue_t], position: uint64_t) -> pointer[slot_t]:
    return queue_take_at(queue, position, 0)


def queue_take_at(queue: pointer[queue_t], position: uint64_t, owner: uint32_t) -> pointer[slot_t]:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot == NULL or not slot_acquire(slot, owner, True):
        spin_unlock(address(queue.entries.lock))
        return NULL
    count_taken(address(queue.entries), slot_body_len(slot))
    if at_load64(address(slot.state)) & ENTRY_NOT_RESIDENT:
        count_cold(address(queue.entries), -1)
        slot_set(slot, ENTRY_ASIDE)
    spin_unlock(address(queue.entries.lock))
    queue_unparked(queue, slot)
    return slot


def queue_facts(queue: pointer[queue_t], position: uint64_t, message_id: pointer[uint64_t], expires_at_ms: pointer[int64_t]) -> uint64_t:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t = 0
    message_id[0] = 0
    expires_at_ms[0] = 0
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot == NULL and shell_locked(queue, position) != NULL:
        state = ENTRY_AVAILABLE | ENTRY_NOT_RESIDENT
    elif slot != NULL:
        state = at_load64(address(slot.state))
        if state & ENTRY_STATE_MASK != ENTRY_AVAILABLE and state & ENTRY_STATE_MASK != ENTRY_ACQUIRED:
            state = 0
    if state and slot != NULL:
        message_id[0] = slot.message_id
        if segment.expiry != NULL:
            expires_at_ms[0] = segment.expiry[(position & INDEX_MASK) - segment.base]
    spin_unlock(address(queue.entries.lock))
    return state


def queue_borrow(queue: pointer[queue_t], position: uint64_t, message_id: pointer[uint64_t]) -> pointer[content_t]:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    content: pointer[content_t] = NULL
    state: uint64_t = 0
    message_id[0] = 0
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL:
        content = slot_borrow(slot, True, address(state))
        if state:
            message_id[0] = slot.message_id
    spin_unlock(address(queue.entries.lock))
    return content


def queue_next_available(queue: pointer[queue_t], position: uint64_t) -> uint64_t:
    entry: found_t
    place: place_t
    is_there: bint
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    is_there = list_scan(address(queue.entries), address(place), position, address(entry))
    at_sub32(address(queue.pins), 1)
    return entry.position if is_there else 0


# --- at given positions of the entry list: recovered entries, spilled ones, and those of open transactions ---------------------------


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
    inserted: pointer[slot_t]
    spin_lock(address(entries.lock))
    if index == 0:
        index = entries.levels[level].tail + 1
    inserted = _insert_locked(entries, level, index, content, message_id, body_len, flags, expires_at_ms)
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    if slot != NULL:
        slot[0] = inserted
    return 0 if inserted == NULL else (cast(uint64_t, level) << LEVEL_SHIFT) | index


def list_insert_closed(
    entries: pointer[list_t],
    content: pointer[content_t],
    message_id: uint64_t,
    flags: uint64_t,
    expires_at_ms: int64_t,
    wanted: pointer[uint32_t],
) -> uint64_t:
    index: uint64_t
    slot: pointer[slot_t]
    closed: uint32_t
    spin_lock(address(entries.lock))
    closed = entries.closed
    entries.closed = 0
    index = entries.levels[0].tail + 1
    slot = _insert_locked(entries, 0, index, content, message_id, 0, flags, expires_at_ms)
    entries.closed = closed
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    return 0 if slot == NULL else index


def list_insert_many(entries: pointer[list_t], restored: pointer[restored_t], count: uint64_t) -> uint64_t:
    i: uint64_t
    item: pointer[restored_t]
    flags: uint64_t
    level: uint64_t
    spin_lock(address(entries.lock))
    for i in range(count):
        item = restored + i
        level = item.position >> LEVEL_SHIFT
        flags = ENTRY_LOGGED if item.message_id else 0
        flags |= cast(uint64_t, item.flags >> RESTORED_COUNT_SHIFT) << ENTRY_COUNT_SHIFT
        if item.flags & RESTORED_REDELIVERED:
            flags |= ENTRY_REDELIVERED
        if item.flags & RESTORED_HELD:
            flags |= ENTRY_HELD
        if (
            level >= entries.level_count
            or _insert_locked(
                entries,
                cast(uint32_t, level),
                item.position & INDEX_MASK,
                NULL,
                item.message_id,
                item.body_len,
                flags,
                item.expires_at_ms,
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
