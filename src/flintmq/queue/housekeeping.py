"""Housekeeping of a queue and its figures (see queue_core.pxd for what each promises).

in: the housekeeping timer, management. out: memory given back, consumers woken, counts.

Figures are sums of counters that single writers keep (consumers, puller, list), so the message path pays no shared counter; they
are exact when nothing runs.

I1  A segment of an entry list whose memory is given back, or kept as spare, holds no entry.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_load32, at_load64, at_load_ptr, at_store32, at_store64, at_sub32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_delivered, manager_figures, manager_flows, manager_quiet, manager_wake_one, manager_wake_waiters,
)  # fmt: skip
from cython.cimports.flintmq.queue.counts import count_cold, count_taken
from cython.cimports.flintmq.queue.deduplication import once_upkeep
from cython.cimports.flintmq.queue.delivered import delivered_rest
from cython.cimports.flintmq.queue.due import due_worked
from cython.cimports.flintmq.queue.entry_list import (
    directory_free, list_advance_floor, list_next, list_slot_locked, list_unlink_locked, segment_free, slots_free,
)  # fmt: skip
from cython.cimports.flintmq.queue.expiries import expiry_free, expiry_list_free
from cython.cimports.flintmq.queue.grouped import grouped_ended
from cython.cimports.flintmq.queue.message_groups import groups_sweep
from cython.cimports.flintmq.queue.slot import delivery_fill, slot_acquire, slot_body_len, slot_content, slot_hold, slot_set, slot_unhold
from cython.cimports.flintmq.queue.spans import spans_free
from cython.cimports.flintmq.queue.types import (
    ENTRY_ASIDE, ENTRY_EMPTY, ENTRY_FAILED, ENTRY_NOT_RESIDENT, FIGURE_ENQUEUED, FIGURE_READY, FIGURE_READY_BYTES, FIGURE_UNACKED,
    MESSAGE_SPILLED_BIT, REASONS, delivery_t, flows_t, found_t, level_t, list_t, log_port_t, place_t, queue_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import queue_has_available, queue_unparked
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

# places of message groups, or of maps of values, that one section of a housekeeping passes over, and sections of one
GROUP_SLICE = declare(uint32_t, 256)
GROUP_SLICES = declare(uint32_t, 256)


def queue_reclaim(queue: pointer[queue_t], keep_spare: bint) -> void:
    """Frees unlinked segments, and the slots of shells, unless someone is inside the list: then they wait for the next call."""
    slots: pointer[slot_t] = NULL
    retired: pointer[segment_t] = list_take_retired(address(queue.entries), address(slots))
    if retired == NULL and slots == NULL:
        return
    if manager_quiet(queue):
        list_free_retired(address(queue.entries), retired, keep_spare)
        _free_slots(slots)
        at_store32(address(queue.entries.reclaim_after), 0)
    else:
        list_put_back_retired(address(queue.entries), retired, slots)
        # Putting back walks all of them: not for every entry while a reader stays inside.
        at_store32(address(queue.entries.reclaim_after), at_load32(address(queue.entries.retired_count)) * 2 + 8)


def queue_next_expiry(queue: pointer[queue_t]) -> int64_t:
    return cast(int64_t, at_load64(cast(pointer[uint64_t], address(queue.entries.expiry_min))))


# --- housekeeping and figures -----------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _sweep_groups(queue: pointer[queue_t]) -> bint:
    """Forgets places of entries that ended without a consumer: purged, expired, dropped. True: there is more of it."""
    slices: uint32_t = GROUP_SLICES
    while slices and queue.message_groups.positions > queue_ready_count(queue):
        slices -= 1
        groups_sweep(queue, GROUP_SLICE)
    return slices == 0


@cfunc
@nogil
@exceptval(check=False)
def _sweep_values(queue: pointer[queue_t]) -> bint:
    """The same for the values of last value queues, deduplication, and kinds that ask for it."""
    entries: uint64_t = queue_ready_count(queue) + queue_unacked_count(queue)
    slices: uint32_t = GROUP_SLICES
    waits: bint = True
    while slices and waits:
        slices -= 1
        waits = False
        if queue.entries.ops.upkeep != NULL:
            waits = queue.entries.ops.upkeep(queue, entries, GROUP_SLICE)
        if queue.once != NULL:
            waits = once_upkeep(queue, entries, GROUP_SLICE) or waits
    return waits


def queue_housekeeping(queue: pointer[queue_t]) -> void:
    place: place_t
    level: uint32_t
    done: uint64_t
    waits: bint = False
    if queue.ops != NULL:
        queue.ops.housekeeping(queue)
        return
    if at_load64(address(queue.entries.enqueued)) == 0:
        return
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    for level in range(queue.entries.level_count):
        list_advance_floor(address(queue.entries), address(place), level)
    at_sub32(address(queue.pins), 1)
    list_shrink(address(queue.entries))
    queue_reclaim(queue, False)
    waits = delivered_rest(queue, False)
    if queue.message_groups != NULL:
        waits = _sweep_groups(queue) or waits
    if queue.entries.ops.upkeep != NULL or queue.once != NULL:
        waits = _sweep_values(queue) or waits
    if at_load32(address(queue.entries.wanted)) and queue_has_available(queue):
        manager_wake_one(queue, NULL, True)
        waits = True
    manager_wake_waiters(queue)
    done = (
        at_load64(address(queue.entries.enqueued)) + at_load64(address(queue.entries.released)) + at_load64(address(queue.entries.dequeued))
    )
    # Once more after the last work, to give back the memory of an empty queue; and as long as a consumer waits for an entry that is there.
    if (
        waits
        or done != queue.worked_before
        or at_load32(address(queue.entries.retired_count))
        or at_load_ptr(address(queue.waiters)) != NULL
    ):
        queue.worked_before = done
        due_worked(queue)


def queue_ready_count(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    given: uint64_t
    if queue.ops != NULL:
        return queue.ops.figure(queue, FIGURE_READY)
    manager_figures(queue, address(acquired), address(bytes_))
    acquired += at_load64(address(queue.puller.acquired)) + at_load64(address(queue.entries.taken))
    given = at_load64(address(queue.entries.enqueued)) + at_load64(address(queue.entries.released))
    return given - acquired if given > acquired else 0


def queue_unacked_count(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    back: uint64_t = at_load64(address(queue.entries.released)) + at_load64(address(queue.entries.dequeued))
    if queue.ops != NULL:
        return queue.ops.figure(queue, FIGURE_UNACKED)
    manager_figures(queue, address(acquired), address(bytes_))
    acquired += at_load64(address(queue.puller.acquired)) + at_load64(address(queue.entries.taken))
    return acquired - back if acquired > back else 0


def queue_ready_bytes(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    given: uint64_t
    if queue.ops != NULL:
        return queue.ops.figure(queue, FIGURE_READY_BYTES)
    manager_figures(queue, address(acquired), address(bytes_))
    bytes_ += at_load64(address(queue.puller.acquired_bytes)) + at_load64(address(queue.entries.taken_bytes))
    given = at_load64(address(queue.entries.enqueued_bytes)) + at_load64(address(queue.entries.released_bytes))
    return given - bytes_ if given > bytes_ else 0


def queue_consumer_count(queue: pointer[queue_t]) -> uint32_t:
    return at_load32(address(queue.manager.consumer_count))


def queue_priorities(queue: pointer[queue_t]) -> c_int:
    return queue.entries.ops.priorities(address(queue.entries))


def queue_enqueued_total(queue: pointer[queue_t]) -> uint64_t:
    if queue.ops != NULL:
        return queue.ops.figure(queue, FIGURE_ENQUEUED)
    return at_load64(address(queue.entries.enqueued))


def queue_delivered_total(queue: pointer[queue_t]) -> uint64_t:
    return manager_delivered(queue) + at_load64(address(queue.puller.delivered))


def queue_flows(queue: pointer[queue_t], flows: pointer[flows_t]) -> void:
    i: c_int
    memset(flows, 0, sizeof(flows_t))
    manager_flows(queue, flows)
    flows.got = at_load64(address(queue.puller.delivered))
    flows.got_auto = at_load64(address(queue.puller.auto_acked))
    flows.redelivered += at_load64(address(queue.puller.redelivered))
    flows.dequeued = at_load64(address(queue.entries.dequeued))
    for i in range(REASONS):
        flows.ended[i] = at_load64(address(queue.entries.ended[i]))


def queue_unacked_bytes(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    back: uint64_t = at_load64(address(queue.entries.released_bytes)) + at_load64(address(queue.entries.dequeued_bytes))
    if queue.ops != NULL:
        return 0  # what a stream's consumers hold stays in the stream
    manager_figures(queue, address(acquired), address(bytes_))
    bytes_ += at_load64(address(queue.puller.acquired_bytes)) + at_load64(address(queue.entries.taken_bytes))
    return bytes_ - back if bytes_ > back else 0


def queue_peek(queue: pointer[queue_t], position: uint64_t, out: pointer[delivery_t]) -> bint:
    entry: found_t
    place: place_t
    content: pointer[content_t] = NULL
    state: uint64_t = 0
    got: bint = False
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while not got and list_next(address(queue.entries), address(place), position, address(entry)):
        position = entry.position
        state = slot_hold(entry.slot, True)
        if state == 0:
            continue
        got = True
        content = slot_content(entry.slot)
        if content != NULL:
            content_incref(content)
        delivery_fill(out, entry.slot, content, position, state)
        out.slot = NULL  # no slot for the caller: after slot_unhold the entry may be dequeued at any moment
        slot_unhold(entry.slot, state)
    at_sub32(address(queue.pins), 1)
    return got


# --- contents that cannot be read -------------------------------------------------------------------------------------------


def queue_content_failed(queue: pointer[queue_t], position: uint64_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    failed: bint = False
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL and at_load64(address(slot.state)) & ENTRY_NOT_RESIDENT:
        failed = slot_acquire(slot, 0, True)
    if failed and slot_content(slot) == NULL:
        count_taken(address(queue.entries), slot_body_len(slot))
        count_cold(address(queue.entries), -1)
        at_store64(address(queue.entries.failed), queue.entries.failed + 1)
        slot_set(slot, ENTRY_ASIDE | ENTRY_FAILED)
    spin_unlock(address(queue.entries.lock))
    if failed:
        queue_unparked(queue, slot)
    return failed


def queue_acquired_failed(queue: pointer[queue_t], position: uint64_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    failed: bint = False
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL and at_load64(address(slot.state)) & (ENTRY_NOT_RESIDENT | ENTRY_ASIDE) == ENTRY_NOT_RESIDENT:
        failed = slot_set(slot, ENTRY_ASIDE | ENTRY_FAILED)
    if failed:
        count_cold(address(queue.entries), -1)
        at_store64(address(queue.entries.failed), queue.entries.failed + 1)
    spin_unlock(address(queue.entries.lock))
    if failed and queue.message_groups != NULL:
        grouped_ended(queue, position)  # those behind it don't wait for it
    return failed


def queue_failed_count(queue: pointer[queue_t]) -> uint64_t:
    return at_load64(address(queue.entries.failed))


# --- entry lists: giving memory back, the end of a list ---------------------------------------------------------------------------

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


@cfunc
@nogil
@exceptval(check=False)
def _free_slots(slots: pointer[slot_t]) -> void:
    following: pointer[slot_t]
    while slots != NULL:
        following = cast(pointer[slot_t], cast(p_void, slots[0].content))
        slots_free(slots)
        slots = following


def list_take_retired(entries: pointer[list_t], slots: pointer[pointer[slot_t]]) -> pointer[segment_t]:
    retired: pointer[segment_t]
    spin_lock(address(entries.lock))
    retired = entries.retired
    entries.retired = NULL
    slots[0] = entries.retired_slots
    entries.retired_slots = NULL
    at_store32(address(entries.retired_count), 0)
    spin_unlock(address(entries.lock))
    return retired


def list_put_back_retired(entries: pointer[list_t], retired: pointer[segment_t], slots: pointer[slot_t]) -> void:
    segment: pointer[segment_t]
    following: pointer[slot_t]
    spin_lock(address(entries.lock))
    while slots != NULL:
        following = cast(pointer[slot_t], cast(p_void, slots[0].content))
        slots[0].content = cast(pointer[content_t], cast(p_void, entries.retired_slots))
        entries.retired_slots = slots
        slots = following
    while retired != NULL:
        segment = retired
        retired = retired.prev
        segment.prev = entries.retired
        entries.retired = segment
        at_store32(address(entries.retired_count), entries.retired_count + 1)
    spin_unlock(address(entries.lock))


def list_free_retired(entries: pointer[list_t], retired: pointer[segment_t], keep_spare: bint) -> void:
    segment: pointer[segment_t]
    spare: pointer[segment_t] = NULL
    while retired != NULL:
        segment = retired
        retired = retired.prev
        check(segment.live == 0, b"housekeeping I1 a retired segment is empty", segment.live, segment.base)
        if keep_spare and segment.mapped and segment.slots != NULL and spare == NULL:
            spare = segment
        else:
            segment_free(segment)
    if spare == NULL:
        return
    expiry_free(spare)
    spare.live = 0
    spare.run = 0
    spare.rested = 0
    spare.burying = False
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
    retired_segment: pointer[segment_t]
    if entries.ops.destroy != NULL:
        entries.ops.destroy(entries)
    for level_no in range(entries.level_count):
        segment = entries.levels[level_no].first
        while segment != NULL:
            retired_segment = segment
            segment = segment.next
            for i in range(retired_segment.count if retired_segment.slots != NULL else 0):
                if retired_segment.slots[i].content == NULL:
                    continue
                if slot_content(retired_segment.slots + i) != NULL:
                    content_decref(retired_segment.slots[i].content)
                if retired_segment.slots[i].message_id >> MESSAGE_SPILLED_BIT and port != NULL and port.unspill != NULL:
                    port.unspill(port.context, retired_segment.slots[i].message_id)
            segment_free(retired_segment)
        directory_free(address(entries.levels[level_no]))
        spans_free(address(entries.levels[level_no]))
    segment = entries.retired
    while segment != NULL:
        retired_segment = segment
        segment = segment.prev
        segment_free(retired_segment)
    if entries.spare != NULL:
        segment_free(entries.spare)
    _free_slots(entries.retired_slots)
    expiry_list_free(entries)
    if entries.levels != address(entries.level0):
        free(entries.levels)
