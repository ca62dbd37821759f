"""Entries that leave memory and come back (see paging.pxd).

in: segments that the pager chooses (pager.py); readers that came to a shell. out: runs in the index log; segments again.

P1  What leaves memory is a large segment, neither at the start nor at the end of its level, whose entries are all available, cold and
    asked for by nobody. Nobody can acquire them from the moment at which they are read until they are back: they are PAGED.
P2  A reader that is inside the old slots meets PAGED entries, and looks at the segment again; the slots are freed when no reader can be
    inside (the queue's reclaimer decides).
P3  A shell has a run as long as it is one; while `run` is 0 its entries are on their way out, and come back from there if they can't go.
P4  A segment that came back rests before it leaves again: two readers far apart don't send the same entries to and fro.
P5  Figures of a shell count what its run has: live entries, bytes, those delivered before.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_cas64, at_load32, at_load64, at_store64, at_store_ptr, at_sub32, at_swap32, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.futex import futex_wake
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_changed, manager_wake_waiters
from cython.cimports.flintmq.queue.counts import count_cold
from cython.cimports.flintmq.queue.due import due_expiry
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS, list_directory_find, list_unlink_locked, slots_free, slots_new
from cython.cimports.flintmq.queue.expiries import expiry_attach, expiry_column, expiry_column_free, expiry_detach, expiry_shell
from cython.cimports.flintmq.queue.slot import LOADING_FIRST, slot_begin_loading, slot_body_len, slot_set_cold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ASIDE, ENTRY_AVAILABLE, ENTRY_BUSY, ENTRY_COUNT_SHIFT, ENTRY_DELETED, ENTRY_EMPTY, ENTRY_FAILED, ENTRY_HELD, ENTRY_LOADING,
    ENTRY_LOGGED, ENTRY_NOT_RESIDENT, ENTRY_PAGED, ENTRY_PARKED, ENTRY_REDELIVERED, ENTRY_STATE_MASK, ENTRY_STUB, ENTRY_UNSTEALABLE,
    INDEX_MASK, LEVEL_SHIFT, MESSAGE_SPILLED_BIT, MESSAGE_STUB_BIT, QUEUE_MIRRORED, REASON_NONE, RESTORED_COUNT_SHIFT, RESTORED_REDELIVERED,
    level_t, list_t, log_port_t, queue_t, restored_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc

# Looks of the pager that a segment rests for after it came back; and one with a message that the message log lists: for ever, since it is
# listed as long as it lives.
RESTS_BACK = declare(uint32_t, 8)
RESTS_LISTED = declare(uint32_t, 0xFFFFFFFF)
# What an entry that leaves is not: somebody is at it.
_TAKEN = declare(
    uint64_t,
    ENTRY_BUSY | ENTRY_LOADING | ENTRY_PARKED | ENTRY_HELD | ENTRY_ASIDE | ENTRY_FAILED | ENTRY_UNSTEALABLE | ENTRY_STUB,
)


def paging_wake(port: pointer[log_port_t]) -> void:
    at_add32(address(port.paging_signal), 1)
    if at_load32(address(port.paging_sleeps)):
        futex_wake(address(port.paging_signal), 1)


def queue_paging_wanted(queue: pointer[queue_t]) -> void:
    port: pointer[log_port_t] = queue.port
    if at_load32(address(queue.paging)) or not queue_pages(queue):
        return
    if at_swap32(address(queue.paging), 1):
        return
    check(at_add32(address(queue.refs), 1) > 0, b"paging P1 a queue that is shown to the pager is alive", queue.id, 0)
    spin_lock(address(port.paging_lock))
    queue.paging_next = port.paging
    port.paging = queue
    spin_unlock(address(port.paging_lock))
    paging_wake(port)


def queue_pages(queue: pointer[queue_t]) -> bint:
    return (
        queue.port != NULL
        and queue.port.page_out != NULL
        and queue.ops == NULL
        and queue.durable != QUEUE_MIRRORED
        and queue.entries.kind == NULL
        and queue.message_groups == NULL
        and queue.once == NULL
        and not at_load32(address(queue.deleted))
    )


# --- out ----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _give_back(slots: pointer[slot_t], count: uint32_t) -> void:
    """Entries that were to leave are available again. List lock held: nobody else changes a PAGED one."""
    i: uint32_t
    state: uint64_t
    for i in range(count):
        state = at_load64(address(slots[i].state))
        if state & ENTRY_STATE_MASK == ENTRY_PAGED:
            at_store64(address(slots[i].state), state & ~cast(uint64_t, ENTRY_STATE_MASK) | ENTRY_AVAILABLE)


@cfunc
@nogil
@exceptval(check=False)
def _take_all(segment: pointer[segment_t], entries: pointer[restored_t]) -> uint32_t:
    """Makes all entries PAGED, and writes them down; 0: one of them can't go, and all are as before. List lock held. O(slots): 10 us."""
    slot: pointer[slot_t]
    entry: pointer[restored_t] = entries
    state: uint64_t
    kind: uint64_t
    i: uint32_t
    for i in range(segment.count):
        slot = segment.slots + i
        state = at_load64(address(slot.state))
        kind = state & ENTRY_STATE_MASK
        if kind == ENTRY_DELETED or kind == ENTRY_EMPTY:
            continue
        if (
            kind != ENTRY_AVAILABLE
            or state & (_TAKEN | ENTRY_NOT_RESIDENT) != ENTRY_NOT_RESIDENT
            or not (state & ENTRY_LOGGED or slot.message_id >> MESSAGE_SPILLED_BIT)
            or not at_cas64(address(slot.state), state, state & ~cast(uint64_t, ENTRY_STATE_MASK) | ENTRY_PAGED)
        ):
            _give_back(segment.slots, i)
            return 0
        entry.position = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | (segment.base + i)
        entry.message_id = slot.message_id
        entry.body_len = slot_body_len(slot)
        entry.expires_at_ms = segment.expiry[i] if segment.expiry != NULL else 0
        entry.flags = cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF) << RESTORED_COUNT_SHIFT
        if state & ENTRY_REDELIVERED:
            entry.flags |= RESTORED_REDELIVERED
        entry += 1
    if cast(uint32_t, entry - entries) != segment.live:  # a place is reserved, and not filled yet
        _give_back(segment.slots, segment.count)
        return 0
    return segment.live


def shell_mark(segment: pointer[segment_t]) -> void:
    segment.stub.message_id = cast(uint64_t, 1) << MESSAGE_STUB_BIT
    slot_set_cold(address(segment.stub), 0)
    at_store64(address(segment.stub.state), ENTRY_AVAILABLE | ENTRY_NOT_RESIDENT | ENTRY_STUB)


@cfunc
@nogil
@exceptval(check=False)
def _end_stub(segment: pointer[segment_t]) -> bint:
    """The entries are there again: whoever has the stub looks again. Whether somebody is parked on it. List lock held."""
    state: uint64_t
    while True:
        state = at_load64(address(segment.stub.state))
        if not state & ENTRY_BUSY and at_cas64(address(segment.stub.state), state, ENTRY_DELETED):
            return state & ENTRY_PARKED != 0


@cfunc
@nogil
@exceptval(check=False)
def _wake(queue: pointer[queue_t]) -> void:
    manager_changed(queue)
    manager_available(queue, 0, NULL, True)
    manager_wake_waiters(queue)


@cfunc
@nogil
@exceptval(check=False)
def _count_shell(segment: pointer[segment_t], entries: pointer[restored_t], count: uint32_t) -> void:
    """Figures of the run (P5)."""
    i: uint32_t
    bytes_: uint64_t = 0
    redelivered: uint32_t = 0
    spilled: uint32_t = 0
    for i in range(count):
        bytes_ += entries[i].body_len
        redelivered += entries[i].flags & RESTORED_REDELIVERED
        spilled += cast(uint32_t, entries[i].message_id >> MESSAGE_SPILLED_BIT)
    segment.bytes = bytes_
    segment.redelivered = redelivered
    segment.spilled = spilled


def queue_page_out(queue: pointer[queue_t], level: uint32_t, place: uint32_t, entries: pointer[restored_t]) -> c_int:
    list_: pointer[list_t] = address(queue.entries)
    sub: pointer[level_t] = list_.levels + level
    segment: pointer[segment_t]
    slots: pointer[slot_t]
    column: pointer[int64_t]
    count: uint32_t
    size: uint32_t
    run: uint64_t
    asked: bint = False
    spin_lock(address(list_.lock))
    if list_.closed or at_load32(address(queue.sweeps)) or place < KEPT_FIRST or place + KEPT_LAST >= sub.count:
        spin_unlock(address(list_.lock))
        return OUT_NOT
    segment = sub.directory[sub.start + place]
    if segment.rested and segment.rested != RESTS_LISTED and segment.slots != NULL:
        segment.rested -= 1
        spin_unlock(address(list_.lock))
        return OUT_LATER
    if segment.slots == NULL or not segment.mapped or segment.live == 0 or segment.rested:
        spin_unlock(address(list_.lock))
        return OUT_NOT
    count = _take_all(segment, entries)
    if count == 0:
        spin_unlock(address(list_.lock))
        return OUT_NOT
    segment.run = 0
    shell_mark(segment)
    slots = segment.slots
    size = segment.count
    column = expiry_detach(segment)
    at_store_ptr(address(segment.slots), NULL)
    _count_shell(segment, entries, count)
    at_store64(address(list_.shells), list_.shells + 1)
    at_store64(address(list_.shell_entries), list_.shell_entries + count)
    spin_unlock(address(list_.lock))
    run = queue.port.page_out(queue.port.context, queue, entries, count)
    spin_lock(address(list_.lock))
    # Nobody else changes a shell without a run (P3): neither a purge nor a page-in.
    if run > PAGE_NOT_NOW:
        segment.run = run
        slots[0].content = cast(pointer[content_t], cast(p_void, list_.retired_slots))
        list_.retired_slots = slots
    else:
        segment.rested = 0 if run == PAGE_NOT_NOW else RESTS_LISTED
        asked = _back(list_, segment, slots, column)
    spin_unlock(address(list_.lock))
    if run > PAGE_NOT_NOW:
        expiry_column_free(column, size)
        return OUT_GONE
    if asked:
        _wake(queue)
    return OUT_REFUSED if run == PAGE_NOT_NOW else OUT_NOT


@cfunc
@nogil
@exceptval(check=False)
def _back(list_: pointer[list_t], segment: pointer[segment_t], slots: pointer[slot_t], column: pointer[int64_t]) -> bint:
    """The shell is a segment again. Whether somebody waits for it. List lock held."""
    at_store64(address(list_.shells), list_.shells - 1)
    at_store64(address(list_.shell_entries), list_.shell_entries - segment.live)
    _give_back(slots, segment.count)
    at_store_ptr(address(segment.slots), slots)
    expiry_attach(list_, segment, column)
    return _end_stub(segment)


# --- in -----------------------------------------------------------------------------------------------------------------------


def shell_locked(queue: pointer[queue_t], position: uint64_t) -> pointer[segment_t]:
    level_no: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
    level: pointer[level_t]
    segment: pointer[segment_t]
    place: uint32_t
    if level_no >= queue.entries.level_count:
        return NULL
    level = queue.entries.levels + level_no
    place = list_directory_find(level, index)
    if place >= level.count:
        return NULL
    segment = level.directory[level.start + place]
    return segment if segment.slots == NULL and index >= segment.base else NULL


@cfunc
@nogil
@exceptval(check=False)
def _fill(slots: pointer[slot_t], base: uint64_t, entries: pointer[restored_t], count: uint32_t, column: pointer[int64_t]) -> void:
    i: uint32_t
    slot: pointer[slot_t]
    flags: uint64_t
    index: uint64_t
    for i in range(count):
        index = (entries[i].position & INDEX_MASK) - base
        slot = slots + index
        slot.message_id = entries[i].message_id
        slot_set_cold(slot, entries[i].body_len)
        flags = ENTRY_AVAILABLE | ENTRY_NOT_RESIDENT
        flags |= cast(uint64_t, entries[i].flags >> RESTORED_COUNT_SHIFT) << ENTRY_COUNT_SHIFT
        if not entries[i].message_id >> MESSAGE_SPILLED_BIT:
            flags |= ENTRY_LOGGED
        if entries[i].flags & RESTORED_REDELIVERED:
            flags |= ENTRY_REDELIVERED
        slot.state = flags
        if column != NULL:
            column[index] = entries[i].expires_at_ms


@cfunc
@nogil
@exceptval(check=False)
def _flag(slots: pointer[slot_t], segment: pointer[segment_t]) -> void:
    """Entries that may have been delivered before a crash."""
    i: uint32_t = 0
    while i < segment.count and segment.base + i <= segment.flagged_upto:
        if slots[i].state:
            slots[i].state |= ENTRY_REDELIVERED
        i += 1


@cfunc
@nogil
@exceptval(check=False)
def _fits(entries: pointer[restored_t], count: uint32_t, segment: pointer[segment_t]) -> bint:
    """Whether the run that was read has this shell's entries: it comes from a disk. List lock held."""
    i: uint32_t
    base: uint64_t = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | segment.base
    if count != segment.live:
        return False
    for i in range(count):
        if entries[i].position - base >= segment.count or (i and entries[i].position <= entries[i - 1].position):
            return False
    return True


def queue_page_in(queue: pointer[queue_t], position: uint64_t) -> c_int:
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t]
    entries: pointer[restored_t]
    slots: pointer[slot_t]
    column: pointer[int64_t] = NULL
    run: uint64_t = 0
    count: uint32_t
    size: uint32_t = 0
    i: uint32_t
    result: c_int = PAGE_THERE
    spin_lock(address(list_.lock))
    segment = shell_locked(queue, position)
    if segment != NULL:
        run = segment.run
        size = segment.count
        result = PAGE_BUSY if run == 0 or segment.burying else PAGE_NO_MEMORY
        position = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | segment.base
    spin_unlock(address(list_.lock))
    if result != PAGE_NO_MEMORY:
        return result
    entries = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
    slots = slots_new()
    if entries != NULL and slots != NULL:
        count = queue.port.page_in(queue.port.context, run, entries, LARGE_SLOTS)
        result = PAGE_FAILED
        for i in range(count):
            if entries[i].expires_at_ms:
                column = expiry_column(size)
                result = PAGE_FAILED if column != NULL else PAGE_NO_MEMORY
                break
        if count and result == PAGE_FAILED:
            result = _install(queue, position, run, slots, entries, count, column)
            if result == PAGE_CAME:
                slots = NULL
                column = NULL
    free(entries)
    expiry_column_free(column, size)
    if slots != NULL:
        slots_free(slots)
    return result


@cfunc
@nogil
@exceptval(check=False)
def _install(
    queue: pointer[queue_t],
    position: uint64_t,
    run: uint64_t,
    slots: pointer[slot_t],
    entries: pointer[restored_t],
    count: uint32_t,
    column: pointer[int64_t],
) -> c_int:
    """The entries that were read are the shell's again, unless another thread was first (PAGE_THERE)."""
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t]
    asked: bint
    spin_lock(address(list_.lock))
    segment = shell_locked(queue, position)
    if segment == NULL or segment.run != run or segment.burying:
        spin_unlock(address(list_.lock))
        return PAGE_THERE
    if not _fits(entries, count, segment):
        spin_unlock(address(list_.lock))
        return PAGE_FAILED
    _fill(slots, segment.base, entries, count, column)
    _flag(slots, segment)
    segment.run = 0
    segment.flagged_upto = 0
    segment.rested = RESTS_BACK
    asked = _back(list_, segment, slots, column)
    spin_unlock(address(list_.lock))
    if asked:
        _wake(queue)
    queue.port.page_end(queue.port.context, run)
    if column != NULL:
        due_expiry(queue)
    queue_paging_wanted(queue)
    return PAGE_CAME


def shell_ask(queue: pointer[queue_t], position: uint64_t) -> void:
    segment: pointer[segment_t]
    asked: c_int = 0
    at_add32(address(queue.pins), 1)
    spin_lock(address(queue.entries.lock))
    segment = shell_locked(queue, position)
    spin_unlock(address(queue.entries.lock))
    if segment != NULL:
        asked = slot_begin_loading(address(segment.stub))
    at_sub32(address(queue.pins), 1)
    if asked == LOADING_FIRST and queue.port != NULL and queue.port.load != NULL:
        queue.port.load(queue.port.context, queue, position, cast(uint64_t, 1) << MESSAGE_STUB_BIT)


def shell_ask_ahead(queue: pointer[queue_t], position: uint64_t) -> void:
    level: pointer[level_t] = queue.entries.levels + (position >> LEVEL_SHIFT)
    segment: pointer[segment_t]
    place: uint32_t
    end: uint32_t
    shell: uint64_t = 0
    spin_lock(address(queue.entries.lock))
    place = list_directory_find(level, position & INDEX_MASK)
    end = min(level.count, place + 1 + KEPT_FIRST)
    while place < end and shell == 0:
        segment = level.directory[level.start + place]
        if segment.slots == NULL:
            shell = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | segment.base
        place += 1
    spin_unlock(address(queue.entries.lock))
    if shell:
        shell_ask(queue, shell)


def shell_refused(queue: pointer[queue_t], position: uint64_t) -> void:
    segment: pointer[segment_t]
    state: uint64_t
    spin_lock(address(queue.entries.lock))
    segment = shell_locked(queue, position)
    if segment != NULL:
        while True:
            state = at_load64(address(segment.stub.state))
            if not state & ENTRY_BUSY and at_cas64(
                address(segment.stub.state), state, state & ~cast(uint64_t, ENTRY_LOADING | ENTRY_PARKED)
            ):
                break
        if queue.entries.due_shell == segment:
            expiry_shell(address(queue.entries), segment, segment.expiry_min)
    spin_unlock(address(queue.entries.lock))


def shell_bury(queue: pointer[queue_t], position: uint64_t, reason: c_int, lsn: pointer[uint64_t]) -> uint64_t:
    list_: pointer[list_t] = address(queue.entries)
    level: pointer[level_t]
    segment: pointer[segment_t]
    run: uint64_t = 0
    first: uint64_t = 0
    last: uint64_t = 0
    ended: uint64_t
    by: uint64_t
    spin_lock(address(list_.lock))
    segment = shell_locked(queue, position)
    if segment != NULL and not segment.burying and segment.run:
        segment.burying = True  # from here on it does not come back
        run = segment.run
        first = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | segment.base
        last = first + segment.count - 1
    spin_unlock(address(list_.lock))
    if run == 0:
        return 0
    by = queue.port.page_bury(queue.port.context, queue, run, first, last, reason == REASON_NONE)
    if by > lsn[0]:
        lsn[0] = by
    spin_lock(address(list_.lock))
    level = list_.levels + segment.level
    ended = segment.live
    at_store64(address(list_.taken), list_.taken + ended)
    at_store64(address(list_.taken_bytes), list_.taken_bytes + segment.bytes)
    at_store64(address(list_.dequeued), list_.dequeued + ended)
    at_store64(address(list_.dequeued_bytes), list_.dequeued_bytes + segment.bytes)
    at_store64(address(list_.ended[reason]), list_.ended[reason] + ended)
    at_store64(address(list_.shells), list_.shells - 1)
    at_store64(address(list_.shell_entries), list_.shell_entries - ended)
    count_cold(list_, -cast(int64_t, ended))
    level.live -= ended
    segment.live = 0
    segment.run = 0
    _end_stub(segment)
    list_unlink_locked(list_, level, segment)
    spin_unlock(address(list_.lock))
    return ended


def shell_redelivered(queue: pointer[queue_t], position: uint64_t) -> c_int:
    segment: pointer[segment_t]
    result: c_int = SHELL_NONE
    spin_lock(address(queue.entries.lock))
    segment = shell_locked(queue, position)
    if segment != NULL and (segment.redelivered or segment.flagged_upto >= segment.base):
        result = SHELL_SOME
        if segment.redelivered == segment.live or segment.flagged_upto >= segment.base + segment.count - 1:
            result = SHELL_ALL
    spin_unlock(address(queue.entries.lock))
    return result
