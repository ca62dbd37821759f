"""Ends the entries of a queue, in slices: a purge, or the end of a deleted queue (see purge.pxd).

in: queue.purge, deletions. out: entries that are gone; the log told once for a run of positions, not once for a message.

I1  A sweep ends no entry that came after it began: it knows the last position of each level from then.
I2  The log has the record of a purge before its entries are deleted, as for any dequeue. An entry that a slice has ended stays ended.
I4  A shell (paging.pxd) ends as a whole, by a record that names its positions; its messages are counted out of the log later.
I3  A sweep of a deleted queue leaves no entry behind that the log counts as living: entries in consumers' hands, and held ones, stay for
    their holders, but the log is not told again when they are settled. No producer can be inside when it begins (log_lock).

Why slices and not one record for the whole queue: entries in consumers' hands stay, and their positions lie between the others. A slice's
record names runs of positions, so it is as long as the slice is torn, and never longer than the dequeues that it stands for.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_cas64, at_load32, at_load64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_changed, manager_wake_waiters
from cython.cimports.flintmq.queue.counts import count_taken
from cython.cimports.flintmq.queue.entry_list import list_delete_locked, list_directory_find
from cython.cimports.flintmq.queue.housekeeping import queue_reclaim
from cython.cimports.flintmq.queue.paging import shell_bury
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len, slot_content, slot_dequeue
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_AVAILABLE, ENTRY_BUSY, ENTRY_HELD, ENTRY_LOGGED, ENTRY_NOT_RESIDENT, ENTRY_STATE_MASK, INDEX_MASK, LEVEL_SHIFT,
    MESSAGE_SPILLED_BIT, REASON_NONE, REASON_PURGE, SWEPT_MAX, level_t, list_t, queue_t, segment_t, slot_t, swept_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import queue_wake_if_available
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset

# places looked at under the list's lock in one go: producers and consumers wait for it
LOCKED_MOST = declare(uint64_t, 256)
# retired segments after which memory is given back
RETIRED_MOST = declare(uint32_t, 64)
# places of entries that the end of a shell costs as much as
SHELL_STEPS = declare(uint64_t, 32)
# places of one step where nobody waits
IN_ONE_GO = declare(uint64_t, 65536)


def sweep_begin(sweep: pointer[sweep_t], queue: pointer[queue_t], ending: bint) -> bint:
    level: uint32_t
    memset(sweep, 0, sizeof(sweep_t))
    sweep.tails = sweep.first_tail
    if queue.entries.level_count > 1:
        sweep.tails = cast(pointer[uint64_t], malloc(queue.entries.level_count * sizeof(uint64_t)))
        if sweep.tails == NULL:
            return False
    # No segment leaves memory from here on, so each shell lies below these tails: it ends as a whole.
    at_add32(address(queue.sweeps), 1)
    # I3: a producer that reserved a place before the queue was closed has filled it when it lets this lock go.
    spin_lock(address(queue.log_lock))
    for level in range(queue.entries.level_count):
        sweep.tails[level] = at_load64(address(queue.entries.levels[level].tail))
    spin_unlock(address(queue.log_lock))
    queue_incref(queue)
    sweep.queue = queue
    sweep.next = 1
    sweep.ending = ending
    return True


def sweep_free(sweep: pointer[sweep_t]) -> void:
    if sweep.queue == NULL:
        return
    if sweep.tails != sweep.first_tail:
        free(sweep.tails)
    at_sub32(address(sweep.queue.sweeps), 1)
    queue_decref(sweep.queue)
    sweep.queue = NULL


@cfunc
@inline
@nogil
@exceptval(check=False)
def _forget(slot: pointer[slot_t]) -> uint64_t:
    """An entry that somebody holds: the log is not told again of it. Its message, 0: the log never had it, or nobody holds it any more."""
    state: uint64_t
    message_id: uint64_t
    while True:
        state = at_load64(address(slot.state))
        if state & ENTRY_STATE_MASK != ENTRY_ACQUIRED or not state & (ENTRY_LOGGED | ENTRY_HELD):
            return 0
        if state & ENTRY_BUSY:
            continue
        message_id = slot.message_id
        if at_cas64(address(slot.state), state, state & ~cast(uint64_t, ENTRY_LOGGED)):
            return 0 if message_id >> MESSAGE_SPILLED_BIT else message_id


@cfunc
@nogil
@exceptval(check=False)
def _tell(sweep: pointer[sweep_t], swept: pointer[swept_t], count: uint32_t) -> void:
    """Tells the log of the entries that end."""
    queue: pointer[queue_t] = sweep.queue
    lsn: uint64_t
    if count == 0 or queue.port == NULL or queue.port.sweep == NULL:
        return
    lsn = queue.port.sweep(queue.port.context, queue, swept, count, sweep.ending)
    if lsn > sweep.lsn:
        sweep.lsn = lsn


@cfunc
@nogil
@exceptval(check=False)
def _take(
    sweep: pointer[sweep_t],
    level_no: uint32_t,
    looked: pointer[uint64_t],
    gone: pointer[pointer[slot_t]],
    gone_count: pointer[uint32_t],
    swept: pointer[swept_t],
    swept_count: pointer[uint32_t],
    parked: pointer[bint],
) -> pointer[segment_t]:
    """Acquires and dequeues the entries that are to go, inside one segment and from `sweep.next` on, which moves. NULL: the level has no
    more. List lock held."""
    entries: pointer[list_t] = address(sweep.queue.entries)
    level: pointer[level_t] = entries.levels + level_no
    index: uint64_t = sweep.next & INDEX_MASK
    last: uint64_t = sweep.tails[level_no]
    end: uint64_t
    directory_index: uint32_t = list_directory_find(level, index)
    segment: pointer[segment_t]
    slot: pointer[slot_t]
    state: uint64_t
    message_id: uint64_t
    is_logged: bint
    if index > last or directory_index >= level.count:
        return NULL
    segment = level.directory[level.start + directory_index]
    if index < segment.base:
        index = segment.base
    if segment.slots == NULL:
        return segment
    end = segment.base + segment.count
    if end > last + 1:
        end = last + 1
    if index >= end:
        return NULL
    while index < end and looked[0] < LOCKED_MOST and gone_count[0] < SWEPT_MAX and swept_count[0] < SWEPT_MAX:
        slot = segment.slots + (index - segment.base)
        looked[0] += 1
        is_logged = False
        message_id = 0
        state = at_load64(address(slot.state))
        if state & ENTRY_STATE_MASK == ENTRY_AVAILABLE and slot_acquire(slot, 0, True):
            state = at_load64(address(slot.state))
            parked[0] = parked[0] or state & ENTRY_NOT_RESIDENT != 0
            count_taken(entries, slot_body_len(slot))
            slot_dequeue(slot, 0)
            is_logged = state & ENTRY_LOGGED != 0
            message_id = slot.message_id
            gone[gone_count[0]] = slot
            gone_count[0] += 1
        elif sweep.ending and state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
            message_id = _forget(slot)
            is_logged = message_id != 0
        if is_logged:
            swept[swept_count[0]].position = (cast(uint64_t, level_no) << LEVEL_SHIFT) | index
            swept[swept_count[0]].message_id = message_id
            swept[swept_count[0]].body_len = slot_body_len(slot)
            swept_count[0] += 1
        index += 1
    sweep.next = (cast(uint64_t, level_no) << LEVEL_SHIFT) | index
    return segment


@cfunc
@nogil
@exceptval(check=False)
def _finish(sweep: pointer[sweep_t], segment: pointer[segment_t], gone: pointer[pointer[slot_t]], count: uint32_t) -> void:
    """Deletes the entries that were dequeued, and gives their contents back."""
    queue: pointer[queue_t] = sweep.queue
    contents: pointer[content_t][SWEPT_MAX]
    spilled: uint64_t[SWEPT_MAX]
    i: uint32_t
    spin_lock(address(queue.entries.lock))
    for i in range(count):
        contents[i] = slot_content(gone[i])
        spilled[i] = gone[i].message_id if gone[i].message_id >> MESSAGE_SPILLED_BIT else 0
        list_delete_locked(address(queue.entries), gone[i], segment, REASON_NONE if sweep.ending else REASON_PURGE)
    spin_unlock(address(queue.entries.lock))
    for i in range(count):
        if contents[i] != NULL:
            content_decref(contents[i])
        if spilled[i] and queue.port != NULL and queue.port.unspill != NULL:
            queue.port.unspill(queue.port.context, spilled[i])
    sweep.removed += count


def sweep_step(sweep: pointer[sweep_t], most: uint64_t) -> bint:
    queue: pointer[queue_t] = sweep.queue
    gone: pointer[slot_t][SWEPT_MAX]
    swept: swept_t[SWEPT_MAX]
    gone_count: uint32_t
    swept_count: uint32_t
    looked: uint64_t
    passed: uint64_t = 0
    level_no: uint32_t
    segment: pointer[segment_t]
    parked: bint = False
    is_shell: bint
    shell: uint64_t = 0
    last: uint64_t = 0
    ended: uint64_t
    while passed < most and not sweep.done:
        level_no = cast(uint32_t, sweep.next >> LEVEL_SHIFT)
        gone_count = swept_count = 0
        looked = 0
        spin_lock(address(queue.entries.lock))
        segment = _take(
            sweep,
            level_no,
            address(looked),
            gone,
            address(gone_count),
            swept,
            address(swept_count),
            address(parked),
        )
        is_shell = segment != NULL and segment.slots == NULL
        if is_shell:
            shell = (cast(uint64_t, level_no) << LEVEL_SHIFT) | segment.base
            last = shell + segment.count - 1
        spin_unlock(address(queue.entries.lock))
        if is_shell:
            passed += SHELL_STEPS
            ended = shell_bury(queue, shell, REASON_NONE if sweep.ending else REASON_PURGE, address(sweep.lsn))
            if ended:  # else it is on its way out of memory, for some microseconds: it is looked at again
                sweep.removed += ended
                sweep.next = last + 1
                parked = True
            continue
        passed += looked + 1
        _tell(sweep, swept, swept_count)
        if gone_count:
            _finish(sweep, segment, gone, gone_count)
        if segment == NULL:
            level_no += 1
            sweep.next = (cast(uint64_t, level_no) << LEVEL_SHIFT) | 1
            sweep.done = level_no >= queue.entries.level_count
    if parked:  # were consumers parked on one of them, the entries behind it are theirs now
        manager_changed(queue)
        queue_wake_if_available(queue)
        manager_wake_waiters(queue)
    if sweep.done or at_load32(address(queue.entries.retired_count)) > RETIRED_MOST:
        queue_reclaim(queue, True)
    return sweep.done


def queue_purge(queue: pointer[queue_t]) -> uint64_t:
    sweep: sweep_t
    if not sweep_begin(address(sweep), queue, False):
        return 0
    while not sweep_step(address(sweep), IN_ONE_GO):
        pass
    sweep_free(address(sweep))
    return sweep.removed
