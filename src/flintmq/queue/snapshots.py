"""A queue's segments for a checkpoint, and back (see snapshots.pxd).

in: checkpoints, a start. out: entries and facts of segments; shells.

S1  A snapshot of the last segment has all entries up to the tail that it tells: no producer is between its place and its record (log_lock).
    An entry that ends has its place in it until it is deleted: a purge tells the log of positions, and the message of one that is in no run
    would live for ever.
S2  What is in no record of the log is in no snapshot. What a transaction's block put into the log is held until that is durable, and is in
    snapshots meanwhile; what another transaction holds is, too, and who writes them down leaves it to the message list.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.counts import count_cold
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS, list_append_bounded, list_append_shell, list_directory_find
from cython.cimports.flintmq.queue.expiries import expiry_shell
from cython.cimports.flintmq.queue.paging import shell_mark
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_hold, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_AVAILABLE, ENTRY_COUNT_SHIFT, ENTRY_DEQUEUED, ENTRY_HELD, ENTRY_LOGGED, ENTRY_REDELIVERED, ENTRY_STATE_MASK, LEVEL_SHIFT,
    MESSAGE_SPILLED_BIT, RESTORED_COUNT_SHIFT, RESTORED_REDELIVERED, level_t, list_t, queue_t, restored_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset

# slots by which contents, of which the length of the body is wanted, are asked of the memory ahead
AHEAD = declare(uint32_t, 16)


@cfunc
@nogil
@exceptval(check=False)
def _write_down(segment: pointer[segment_t], entries: pointer[restored_t], facts: pointer[shell_t]) -> void:
    """The logged entries of a segment (S2). List lock held."""
    slot: pointer[slot_t]
    entry: pointer[restored_t] = entries
    state: uint64_t
    ends: bint
    i: uint32_t
    for i in range(segment.count):
        slot = segment.slots + i
        if i + AHEAD < segment.count:
            prefetch(slot[AHEAD].content)
        state = slot_hold(slot, True)
        ends = state == 0 and at_load64(address(slot.state)) & ENTRY_STATE_MASK == ENTRY_DEQUEUED
        if ends:
            state = at_load64(address(slot.state))
        if state == 0:
            continue
        if (state & ENTRY_LOGGED or (state & ENTRY_HELD and slot.message_id)) and not slot.message_id >> MESSAGE_SPILLED_BIT:
            entry.position = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | (segment.base + i)
            entry.message_id = slot.message_id
            entry.body_len = slot_body_len(slot)
            entry.expires_at_ms = segment.expiry[i] if segment.expiry != NULL else 0
            entry.flags = cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF) << RESTORED_COUNT_SHIFT
            if state & ENTRY_REDELIVERED or (state & ENTRY_STATE_MASK != ENTRY_AVAILABLE and not state & ENTRY_HELD):
                entry.flags |= RESTORED_REDELIVERED
                facts.redelivered += 1
            facts.bytes += entry.body_len
            if entry.expires_at_ms and (facts.expiry_min == 0 or entry.expires_at_ms < facts.expiry_min):
                facts.expiry_min = entry.expires_at_ms
            facts.live += 1
            entry += 1
        if not ends:
            slot_unhold(slot, state)


def queue_snapshot(
    queue: pointer[queue_t],
    level: uint32_t,
    index: uint64_t,
    entries: pointer[restored_t],
    facts: pointer[shell_t],
    tail: pointer[uint64_t],
) -> bint:
    list_: pointer[list_t] = address(queue.entries)
    sub: pointer[level_t] = list_.levels + level
    segment: pointer[segment_t] = NULL
    place: uint32_t
    memset(facts, 0, sizeof(shell_t))
    spin_lock(address(queue.log_lock))
    spin_lock(address(list_.lock))
    place = list_directory_find(sub, index)
    if place < sub.count:
        segment = sub.directory[sub.start + place]
    tail[0] = sub.tail if place + 1 >= sub.count else 0
    if segment != NULL:
        facts.base = segment.base
        facts.count = segment.count
        if segment.slots == NULL:
            facts.live = segment.live
            facts.bytes = segment.bytes
            facts.redelivered = segment.redelivered
            facts.spilled = segment.spilled
            facts.flagged_upto = segment.flagged_upto
            facts.expiry_min = segment.expiry_min
            facts.run = segment.run
            facts.leaves = segment.run == 0 or segment.burying
        else:
            _write_down(segment, entries, facts)
    spin_unlock(address(list_.lock))
    spin_unlock(address(queue.log_lock))
    return segment != NULL


def queue_adopt_shell(queue: pointer[queue_t], level: uint32_t, facts: pointer[cython.const[shell_t]]) -> bint:
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    sub: pointer[level_t]
    if level >= list_.level_count or facts.live == 0:
        return False
    spin_lock(address(list_.lock))
    sub = list_.levels + level
    if facts.base > sub.tail and not list_.closed:
        segment = list_append_shell(list_, level, facts.base, facts.count)
    if segment != NULL:
        segment.live = facts.live
        segment.run = facts.run
        segment.bytes = facts.bytes
        segment.redelivered = facts.redelivered
        segment.spilled = facts.spilled
        segment.flagged_upto = facts.flagged_upto
        shell_mark(segment)
        expiry_shell(list_, segment, facts.expiry_min)
        sub.live += facts.live
        at_store64(address(list_.shells), list_.shells + 1)
        at_store64(address(list_.shell_entries), list_.shell_entries + facts.live)
        at_store64(address(list_.enqueued), list_.enqueued + facts.live)
        at_store64(address(list_.enqueued_bytes), list_.enqueued_bytes + facts.bytes)
        count_cold(list_, facts.live)
        at_store64(address(sub.tail), facts.base + facts.count - 1)
    spin_unlock(address(list_.lock))
    return segment != NULL


def queue_open_segment(queue: pointer[queue_t], level: uint32_t, base: uint64_t, count: uint64_t) -> bint:
    list_: pointer[list_t] = address(queue.entries)
    last: pointer[segment_t]
    done: bint = True
    if level >= list_.level_count:
        return False
    spin_lock(address(list_.lock))
    last = list_.levels[level].last
    if last == NULL or last.base + last.count <= base:
        done = list_append_bounded(list_, level, base, cast(uint32_t, min(count, LARGE_SLOTS)))
    spin_unlock(address(list_.lock))
    return done
