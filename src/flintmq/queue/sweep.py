"""Bodies that need not be in memory leave it; those that must are moved out of thin chunks.

in: queues, from the memory keeper's thread. out: entries that are not resident, contents in fresh chunks.

S1  A body that is delivered and not settled, or came back, is evicted as one that waits: it is in the log (or the page log), so its entry
    becomes not resident. Delivered ones are ENTRY_ASIDE: they don't count for the queue's window until they come back.
S2  Without need nothing is evicted that is in the queue's window, nor what consumers hold up to HELD_WINDOWS of it (residency.py). When
    memory is short, everything that consumers hold is.
S3  A content that a thin chunk (content_is_thin) is kept for is copied, when memory is short or there are many such chunks, and the entry's
    pointer swapped: under the list lock and ENTRY_BUSY, and never between an acquire and entry_sent, when the session reads the content
    without either.
S4  A content that several entries share has one copy for all of them in one round.
S5  A queue with more than its window (queue_window) goes back to it when it rests, and the largest one when all take more than the budget.
    Once begun it goes on to the end: cold entries must not stand before others for long.
S6  Of the queues that rest each keeps log_port_t.rest_bytes: `together` over their number, as a half, a quarter and so on of the window, so
    that one queue more seldom changes it for all.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store32, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    arena_free, arena_new, content_bytes_mapped, content_copy, content_decref, content_incref, content_is_thin, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_next, map64_put
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.counts import count_cold, count_evicted
from cython.cimports.flintmq.queue.entry_list import ALL_HOT, list_next, list_slot_locked
from cython.cimports.flintmq.queue.housekeeping import queue_ready_count
from cython.cimports.flintmq.queue.limits import queue_taken
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.paging import queue_paging_wanted
from cython.cimports.flintmq.queue.queue_core import queue_decref
from cython.cimports.flintmq.queue.residency import HELD_WINDOWS
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_content, slot_hold, slot_set_cold, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_ASIDE, ENTRY_HELD, ENTRY_NOT_RESIDENT, ENTRY_STATE_MASK, ENTRY_STUB, ENTRY_UNSTEALABLE, PRESSURE_NONE, found_t,
    log_port_t, place_t, queue_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t

# entries between two returns to Python, and bytes that leave memory meanwhile (more by one body)
SLICE = declare(uint32_t, 2048)
SLICE_BYTES = declare(uint64_t, 1 << 20)
# looks of the memory keeper: a queue that would be turned over within as many, at the pace since the last one, is in motion, and one that
# is not in so many of them rests. At memory_sweep_ms (250) 5 s and 2.5 s
TURNED_OVER = declare(uint64_t, 20)
RESTS = declare(uint32_t, 10)
# entries that one look takes out of memory at most
NARROW_ENTRIES = declare(uint32_t, 262_144)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _may_touch(state: uint64_t) -> bint:
    """Whether the content of an entry in this state may move: the caller has ENTRY_BUSY, and no reader reads it without a hold."""
    if state & ENTRY_NOT_RESIDENT:
        return False
    return state & ENTRY_STATE_MASK != ENTRY_ACQUIRED or not state & (ENTRY_UNSTEALABLE | ENTRY_HELD)


@cfunc
@nogil
@exceptval(check=False)
def _hold_locked(queue: pointer[queue_t], position: uint64_t, state: pointer[uint64_t]) -> pointer[slot_t]:
    """The entry, held by ENTRY_BUSY, when its content may be touched; else NULL. The list lock is held by the caller."""
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t] = list_slot_locked(address(queue.entries), position, address(segment))
    if slot == NULL:
        return NULL
    state[0] = slot_hold(slot, True)
    if state[0] == 0:
        return NULL
    if not _may_touch(state[0]) or slot_content(slot) == NULL:
        slot_unhold(slot, state[0])
        return NULL
    return slot


@cfunc
@nogil
@exceptval(check=False)
def _evict(queue: pointer[queue_t], sweep: pointer[sweep_t], position: uint64_t) -> bint:
    """S1. False: it is not to be read back from anywhere, or just now somebody has it."""
    content: pointer[content_t] = NULL
    state: uint64_t = 0
    slot: pointer[slot_t]
    spin_lock(address(queue.entries.lock))
    slot = _hold_locked(queue, position, address(state))
    if slot != NULL:
        if slot.message_id:
            content = slot.content
            slot_set_cold(slot, content.body_len)
            count_evicted(address(queue.entries), content.body_len)
            if state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
                state |= ENTRY_NOT_RESIDENT | ENTRY_ASIDE
            else:
                state |= ENTRY_NOT_RESIDENT
                count_cold(address(queue.entries), 1)
        slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    if content == NULL:
        return False
    sweep.evicted += 1
    sweep.evicted_bytes += content.body_len
    content_decref(content)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _copy_of(sweep: pointer[sweep_t], content: pointer[content_t]) -> pointer[content_t]:
    """A counted copy, the same one for all who share the content (S4); NULL: no memory."""
    lsn: uint64_t = 0
    copy: pointer[content_t]
    shared: bint = at_load32(address(content.refs)) > 2  # the entry's, and the caller's
    if shared and map64_get(address(sweep.moved), cast(uint64_t, content), address(lsn)):
        copy = cast(pointer[content_t], lsn)
        content_incref(copy)
        return copy
    copy = content_copy(sweep.arena, content)
    if copy != NULL and shared and map64_put(address(sweep.moved), cast(uint64_t, content), cast(uint64_t, copy)):
        content_incref(content)
        content_incref(copy)
    return copy


@cfunc
@nogil
@exceptval(check=False)
def _move(queue: pointer[queue_t], sweep: pointer[sweep_t], position: uint64_t) -> void:
    """S3. The copy is made between two looks: nobody waits for it."""
    content: pointer[content_t] = NULL
    copy: pointer[content_t]
    state: uint64_t = 0
    slot: pointer[slot_t]
    spin_lock(address(queue.entries.lock))
    slot = _hold_locked(queue, position, address(state))
    if slot != NULL:
        if content_is_thin(slot.content):
            content = slot.content
            content_incref(content)
        slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    if content == NULL:
        return
    copy = _copy_of(sweep, content)
    if copy != NULL:
        spin_lock(address(queue.entries.lock))
        slot = _hold_locked(queue, position, address(state))
        if slot != NULL:
            if slot.content == content:
                slot.content = copy
                copy = content  # whose reference of the entry is dropped instead
                sweep.copied += 1
                sweep.copied_bytes += content.body_len
            slot_unhold(slot, state)
        spin_unlock(address(queue.entries.lock))
        content_decref(copy)
    content_decref(content)


def queue_sweep(queue: pointer[queue_t], sweep: pointer[sweep_t], position: uint64_t, most: uint32_t, low: bint) -> uint64_t:
    place: place_t
    entry: found_t
    state: uint64_t
    window: uint64_t = ALL_HOT
    readable: bint = queue.port != NULL and queue.port.load != NULL
    resident: uint64_t = at_load64(address(queue.entries.resident_bytes))
    held: bint
    evict: bint
    if readable:
        window = at_load64(address(queue.port.hot_bytes))
    if queue.ops != NULL or resident == 0:
        return 0
    if not low and (window == ALL_HOT or resident // HELD_WINDOWS < window):
        return 0
    if not low and at_load32(address(queue.wide)) and content_bytes_mapped() < at_load64(address(queue.port.content_bytes)):
        return 0  # S5
    if position <= 1:
        position = 1
        sweep.kept = 0
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while most:
        if not list_next(address(queue.entries), address(place), position, address(entry)):
            position = 0
            break
        most -= 1
        if at_load64(address(entry.slot.state)) & ENTRY_STUB:
            position = entry.end + 1  # all of a shell is cold
            continue
        position = entry.position + 1
        state = at_load64(address(entry.slot.state))
        if not _may_touch(state):
            continue
        held = state & ENTRY_STATE_MASK == ENTRY_ACQUIRED
        evict = readable and (held or sweep.kept > window)
        if evict and _evict(queue, sweep, entry.position):
            continue
        if low:
            _move(queue, sweep, entry.position)
        if not held:
            state = slot_hold(entry.slot, False)
            if state:
                sweep.kept += slot_body_len(entry.slot)
                slot_unhold(entry.slot, state)
    at_sub32(address(queue.pins), 1)
    return position


@cfunc
@nogil
@exceptval(check=False)
def _spill(queue: pointer[queue_t], position: uint64_t) -> bint:
    """The page log gets a transient body, so that the body can leave memory. Written between two looks: nobody waits for it."""
    content: pointer[content_t] = NULL
    state: uint64_t = 0
    spilled: uint64_t
    slot: pointer[slot_t]
    spin_lock(address(queue.entries.lock))
    slot = _hold_locked(queue, position, address(state))
    if slot != NULL:
        content = slot.content
        content_incref(content)
        slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    if content == NULL:
        return True
    spilled = queue.port.spill(queue.port.context, content)
    if spilled == 0:
        content_decref(content)
        return False
    spin_lock(address(queue.entries.lock))
    slot = _hold_locked(queue, position, address(state))
    if slot != NULL:
        if slot.content == content and slot.message_id == 0:
            slot.message_id = spilled
            spilled = 0
        slot_unhold(slot, state)
    spin_unlock(address(queue.entries.lock))
    if spilled:
        queue.port.unspill(queue.port.context, spilled)
    content_decref(content)
    return True


def queue_narrow(queue: pointer[queue_t], sweep: pointer[sweep_t], window: uint64_t, position: uint64_t, most: uint32_t) -> uint64_t:
    place: place_t
    entry: found_t
    state: uint64_t
    message_id: uint64_t
    body_len: uint32_t
    looks: uint32_t = SLICE
    bytes_before: uint64_t = sweep.evicted_bytes
    if position <= 1:
        position = 1
        sweep.kept = 0
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while most and looks and sweep.evicted_bytes - bytes_before < SLICE_BYTES:
        if not list_next(address(queue.entries), address(place), position, address(entry)):
            position = 0
            break
        looks -= 1
        if at_load64(address(entry.slot.state)) & ENTRY_STUB:
            position = entry.end + 1
            continue
        position = entry.position + 1
        state = slot_hold(entry.slot, False)
        if state == 0:
            continue  # a consumer's
        message_id = entry.slot.message_id
        body_len = slot_body_len(entry.slot)
        slot_unhold(entry.slot, state)
        if state & ENTRY_NOT_RESIDENT:
            continue
        if sweep.kept + body_len <= window:
            sweep.kept += body_len
            continue
        if message_id == 0 and (queue.port.spill == NULL or not _spill(queue, entry.position)):
            position = 0
            break
        if _evict(queue, sweep, entry.position):
            most -= 1
    at_sub32(address(queue.pins), 1)
    return position


def queue_thicken(queue: pointer[queue_t], sweep: pointer[sweep_t], position: uint64_t, most: uint32_t) -> uint64_t:
    place: place_t
    entry: found_t
    state: uint64_t
    thin: bint
    if queue.ops != NULL or at_load64(address(queue.entries.resident_bytes)) == 0:
        return 0
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while most:
        if not list_next(address(queue.entries), address(place), position, address(entry)):
            position = 0
            break
        most -= 1
        if at_load64(address(entry.slot.state)) & ENTRY_STUB:
            position = entry.end + 1  # all of a shell is cold
            continue
        position = entry.position + 1
        if not _may_touch(at_load64(address(entry.slot.state))):
            continue
        state = slot_hold(entry.slot, False)
        if state == 0:
            continue
        thin = _may_touch(state) and slot_content(entry.slot) != NULL and content_is_thin(entry.slot.content)
        slot_unhold(entry.slot, state)
        if thin:
            _move(queue, sweep, entry.position)
    at_sub32(address(queue.pins), 1)
    return position


def sweep_end(sweep: pointer[sweep_t]) -> void:
    cursor: uint64_t = 0
    key: uint64_t = 0
    value: uint64_t = 0
    while map64_next(address(sweep.moved), address(cursor), address(key), address(value)):
        content_decref(cast(pointer[content_t], key))
        content_decref(cast(pointer[content_t], value))
    map64_free(address(sweep.moved))


# --- queues that keep much --------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _rests(queue: pointer[queue_t]) -> bint:
    """Notes what came and went since the last look. Whether the queue rests, by now or already."""
    moved: uint64_t = queue_taken(queue) + at_load64(address(queue.entries.enqueued))
    if queue.wide_rests < RESTS:
        if (moved - queue.wide_moved) * TURNED_OVER >= queue_ready_count(queue):
            queue.wide_rests = 0
        else:
            queue.wide_rests += 1
    queue.wide_moved = moved
    return queue.wide_rests >= RESTS


@cfunc
@nogil
@exceptval(check=False)
def _survey(port: pointer[log_port_t], first: pointer[queue_t], together: uint64_t) -> void:
    """Settles what each keeps that rests (S6), and which one goes back to that although it does not rest (S5)."""
    queue: pointer[queue_t] = first
    largest: pointer[queue_t] = NULL
    window: uint64_t = at_load64(address(port.hot_bytes))
    least: uint64_t = at_load64(address(port.rest_least))
    resident: uint64_t
    most: uint64_t = 0
    count: uint64_t = 0
    while queue != NULL:
        resident = at_load64(address(queue.entries.resident_bytes))
        count += 1 if resident > least else 0
        if resident > most:
            most = resident
            largest = queue
        queue = queue.wide_next
    while window > least and count * window > together:
        window //= 2
    at_store64(address(port.rest_bytes), max(window, least))
    if largest != NULL and content_bytes_mapped() >= at_load64(address(port.content_bytes)):
        largest.wide_rests = RESTS


@cfunc
@nogil
@exceptval(check=False)
def _stay(queue: pointer[queue_t], stays: bint) -> void:
    """The queue goes back to the list, or is none of those any more."""
    port: pointer[log_port_t] = queue.port
    if not stays:
        queue.wide_rests = 0
        at_store32(address(queue.wide), 0)
        queue_decref(queue)
        return
    spin_lock(address(port.wide_lock))
    queue.wide_next = port.wide
    port.wide = queue
    spin_unlock(address(port.wide_lock))


@cfunc
@nogil
@exceptval(check=False)
def _next_due(port: pointer[log_port_t], first: pointer[pointer[queue_t]]) -> pointer[queue_t]:
    """The next of these that rests and keeps more than its share; those before it are seen to. NULL: there is none."""
    queue: pointer[queue_t]
    resident: uint64_t
    while first[0] != NULL:
        queue = first[0]
        first[0] = queue.wide_next
        resident = at_load64(address(queue.entries.resident_bytes))
        if at_load32(address(queue.deleted)) or resident <= at_load64(address(port.rest_least)):
            _stay(queue, False)
            continue
        if resident <= at_load64(address(port.rest_bytes)):
            queue.wide_rests = 0  # once it has more it must rest anew: what comes then may be in motion
        elif _rests(queue):
            return queue
        _stay(queue, True)
    return NULL


@cclass
class Sweeper:
    """One thread's sweeps. Figures: bodies evicted and copied since it was made, and their bytes."""

    def __cinit__(self):
        self.sweep.arena = arena_new()
        if self.sweep.arena == NULL:
            raise MemoryError

    def __dealloc__(self):
        sweep_end(address(self.sweep))
        arena_free(self.sweep.arena)

    def queue(self, handle: QueueHandle, low: bool) -> None:
        """Sweeps one queue, in slices without the GIL. `low`: memory is short. O(entries) when there is something to do, else O(1)."""
        queue: pointer[queue_t] = handle.queue
        position: uint64_t = 1
        short: bint = low
        before: uint64_t = self.sweep.evicted
        while position:
            with nogil:
                position = queue_sweep(queue, address(self.sweep), position, SLICE, short)
        if self.sweep.evicted != before:
            queue_paging_wanted(queue)

    def thicken(self, handle: QueueHandle, position: int) -> int:
        """Moves what thin chunks are kept for from `position` (1: the first) on, one slice. Returns where to go on; 0: the end."""
        queue: pointer[queue_t] = handle.queue
        begin: uint64_t = position
        end: uint64_t
        with nogil:
            end = queue_thicken(queue, address(self.sweep), begin, SLICE)
        return end

    def _narrow(self, queue: pointer[queue_t], most: pointer[uint32_t]) -> bint:
        """S5. True: the queue keeps no more than its window, or nothing that can leave memory. False: the next look goes on."""
        position: uint64_t = 1
        before: uint64_t
        while position:
            if most[0] == 0 or queue.port.pressure(queue.port.context) != PRESSURE_NONE:
                return False
            before = self.sweep.evicted
            with nogil:
                position = queue_narrow(queue, address(self.sweep), at_load64(address(queue.port.rest_bytes)), position, most[0])
            most[0] -= cast(uint32_t, self.sweep.evicted - before)
            if self.sweep.evicted != before:
                queue_paging_wanted(queue)
        return True

    def narrow(self, log: LogPort, together: int) -> None:
        """Looks at the queues that keep more than queues may that rest. together: bytes of bodies that all of these may keep then. O(their
        number), and O(entries) of one that rests and has more than its share."""
        port: pointer[log_port_t] = address(log.port)
        first: pointer[queue_t]
        queue: pointer[queue_t]
        share: uint64_t = together
        most: uint32_t = NARROW_ENTRIES
        is_done: bint
        with nogil:
            spin_lock(address(port.wide_lock))
            first = port.wide
            port.wide = NULL
            spin_unlock(address(port.wide_lock))
            _survey(port, first, share)
        while True:
            with nogil:
                queue = _next_due(port, address(first))
            if queue == NULL:
                return
            is_done = self._narrow(queue, address(most))
            if is_done:
                queue.wide_rests = 0
            # Bodies that can't leave memory are looked at again when more have come.
            _stay(queue, not is_done or at_load64(address(queue.entries.resident_bytes)) <= at_load64(address(port.rest_bytes)))

    def forget(self, log: LogPort) -> None:
        """Lets the queues go that keep more than their windows: nobody looks at them any more."""
        port: pointer[log_port_t] = address(log.port)
        queue: pointer[queue_t]
        following: pointer[queue_t]
        port.content_bytes = 0
        at_store64(address(port.rest_least), 0)
        spin_lock(address(port.wide_lock))
        queue = port.wide
        port.wide = NULL
        spin_unlock(address(port.wide_lock))
        while queue != NULL:
            following = queue.wide_next
            at_store32(address(queue.wide), 0)
            queue_decref(queue)
            queue = following

    def end(self) -> None:
        """A round over all queues is done."""
        sweep_end(address(self.sweep))

    @property
    def evicted(self) -> int:
        return self.sweep.evicted

    @property
    def evicted_bytes(self) -> int:
        return self.sweep.evicted_bytes

    @property
    def copied(self) -> int:
        return self.sweep.copied

    @property
    def copied_bytes(self) -> int:
        return self.sweep.copied_bytes
