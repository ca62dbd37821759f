"""Many entries of a queue at once, for transactions (see held_runs.pxd).

in: distributed transactions of the data plane. out: held, settled, released, reserved and published entries.

R1  An entry that a run holds is as queue_hold_at leaves it: acquired by the broker, counted as unacked, out of the window's account when
    cold.
R2  The list's lock is held for at most CHUNK entries at a time. Consumers are woken once for each chunk, after it is there: they wake
    each other while there is more.
R3  A run has room for the entry that is noted in it.
"""

from __future__ import annotations

import threading

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, longlong, nogil, pointer, sizeof, ulong, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import wall_us
from cython.cimports.flintmq.core.content import CONTENT_PRIORITY, content_decref, content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_behind, manager_changed, manager_wake_waiters
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.counts import count_arrival, count_behind, count_cold, count_taken
from cython.cimports.flintmq.queue.delivered import delivered_show
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import (
    list_came_back_locked, list_claim_locked, list_delete_locked, list_directory_find, list_slot_locked,
)  # fmt: skip
from cython.cimports.flintmq.queue.expiries import expiry_set
from cython.cimports.flintmq.queue.grouped import grouped_ended
from cython.cimports.flintmq.queue.housekeeping import queue_reclaim
from cython.cimports.flintmq.queue.list_kinds import kind_arrived, kind_returned
from cython.cimports.flintmq.queue.paging import queue_paging_wanted
from cython.cimports.flintmq.queue.slot import (
    slot_body_len, slot_content, slot_dequeue, slot_hold, slot_release, slot_set_cold, slot_unhold,
)  # fmt: skip
from cython.cimports.flintmq.queue.spans import span_find
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_ASIDE, ENTRY_AVAILABLE, ENTRY_COUNT_SHIFT, ENTRY_FAILED, ENTRY_HELD, ENTRY_LOGGED, ENTRY_NOT_RESIDENT,
    ENTRY_OWNER_SHIFT, ENTRY_REDELIVERED, ENTRY_STATE_MASK, ENTRY_UNSTEALABLE, INDEX_MASK, LEVEL_SHIFT, MESSAGE_SPILLED_BIT, REASON_ACK,
    level_t, list_t, queue_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import queue_wake_if_available
from cython.cimports.libc.stdint import int32_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memset

# entries in one section under the list's lock (about 10 us), and slots passed there
CHUNK = declare(uint32_t, 256)
PASSED_MAX = declare(uint32_t, 2048)


# --- holding ------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _room(run: pointer[run_t], count: uint64_t) -> bint:
    entries: pointer[run_entry_t]
    room: uint64_t
    if run.count + count <= run.room:
        return True
    room = max(run.room * 2, run.count + count)
    entries = cast(pointer[run_entry_t], realloc(run.entries, room * sizeof(run_entry_t)))
    if entries == NULL:
        return False
    run.entries = entries
    run.room = room
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _note(run: pointer[run_t], slot: pointer[slot_t], position: uint64_t, state: uint64_t, body_len: uint32_t) -> void:
    """Appends an entry; there is room."""
    entry: pointer[run_entry_t] = run.entries + run.count
    check(run.count < run.room, b"held_runs R3 there is room for an entry", run.count, run.room)
    if run.count == 0 or (entry - 1).position + 1 != position:
        run.ranges += 1
    entry.position = position
    entry.message_id = slot.message_id
    entry.body_len = body_len
    entry.deliveries = cast(uint16_t, state >> ENTRY_COUNT_SHIFT)
    entry.flags = cast(uint8_t, (RUN_REDELIVERED if state & ENTRY_REDELIVERED else 0) | (RUN_LOGGED if state & ENTRY_LOGGED else 0))
    entry.zero = 0
    run.count += 1
    run.bytes += body_len


@cfunc
@inline
@nogil
@exceptval(check=False)
def _goes_on(section: pointer[holding_t]) -> bint:
    return section.outcome == HOLD_MORE and section.taken < CHUNK and section.passed < PASSED_MAX


@cfunc
@inline
@nogil
@exceptval(check=False)
def _hold_one(section: pointer[holding_t], slot: pointer[slot_t], position: uint64_t) -> void:
    """Holds an available entry, unless it is beyond a limit, or was taken meanwhile."""
    run: pointer[run_t] = section.run
    state: uint64_t
    body_len: uint32_t
    if section.upto and position > section.upto:
        section.outcome = HOLD_END
        return
    if section.messages[0] == 0:
        section.outcome = HOLD_FULL
        return
    state = slot_hold(slot, False)
    if not state:
        return
    body_len = slot_body_len(slot)
    if (body_len > section.bytes_left[0] and not (section.alone and section.taken == 0)) or (
        run.ranges >= section.ranges_max and (run.entries + run.count - 1).position + 1 != position
    ):
        slot_unhold(slot, state)
        section.outcome = HOLD_FULL
        return
    _note(run, slot, position, state, body_len)
    if state & ENTRY_NOT_RESIDENT:
        section.cold += 1
        state |= ENTRY_ASIDE
    slot_unhold(slot, (state & ~cast(uint64_t, ENTRY_STATE_MASK)) | ENTRY_ACQUIRED | ENTRY_UNSTEALABLE)
    section.messages[0] -= 1
    section.bytes_left[0] -= min(cast(uint64_t, body_len), section.bytes_left[0])
    section.bytes += body_len
    section.taken += 1


@cfunc
@nogil
@exceptval(check=False)
def _hold_level(section: pointer[holding_t], level: pointer[level_t], level_no: uint32_t, index: uint64_t, tail: uint64_t) -> uint64_t:
    """Holds entries of one level, from `index` on. Returns behind the last one looked at; above `tail`: the level has no more."""
    segment: pointer[segment_t]
    slot: pointer[slot_t]
    place: uint32_t
    end: uint64_t
    last: uint64_t
    while index <= tail and _goes_on(section):
        last = tail
        if index < level.floor:  # an available entry there is in a span
            place = span_find(level, index)
            if place < level.span_count:
                index = max(index, level.spans[level.span_start + place].first)
                last = min(level.spans[level.span_start + place].last, tail)
            else:
                index = level.floor
            if index > tail:
                break
        place = list_directory_find(level, index)
        if place >= level.count:
            return tail + 1
        segment = level.directory[level.start + place]
        index = max(index, segment.base)
        end = min(segment.base + segment.count, last + 1)
        if segment.slots == NULL:
            section.outcome = HOLD_PAGED
            break
        slot = segment.slots + (index - segment.base)
        while index < end and section.taken < CHUNK and section.passed < PASSED_MAX:
            if at_load64(address(slot.state)) & ENTRY_STATE_MASK == ENTRY_AVAILABLE:
                _hold_one(section, slot, (cast(uint64_t, level_no) << LEVEL_SHIFT) | index)
                if section.outcome != HOLD_MORE:
                    break
            slot += 1
            index += 1
            section.passed += 1
    return index


def run_hold(
    queue: pointer[queue_t],
    run: pointer[run_t],
    cursor: pointer[uint64_t],
    upto: uint64_t,
    messages: pointer[uint64_t],
    bytes_left: pointer[uint64_t],
    alone: bint,
    ranges_max: uint32_t,
) -> c_int:
    entries: pointer[list_t] = address(queue.entries)
    level_no: uint32_t = cast(uint32_t, cursor[0] >> LEVEL_SHIFT)
    index: uint64_t = cursor[0] & INDEX_MASK
    level: pointer[level_t]
    tail: uint64_t
    section: holding_t
    floored: bint
    if not _room(run, CHUNK):
        return HOLD_NO_MEMORY
    memset(address(section), 0, sizeof(holding_t))
    section.run, section.upto, section.messages, section.bytes_left = run, upto, messages, bytes_left
    section.alone, section.ranges_max = alone, ranges_max
    spin_lock(address(entries.lock))
    while _goes_on(address(section)):
        if level_no >= entries.level_count:
            section.outcome = HOLD_END
            break
        level = entries.levels + level_no
        tail = level.tail
        floored = index <= max(level.floor, cast(uint64_t, 1))
        index = _hold_level(address(section), level, level_no, max(index, cast(uint64_t, 1)), tail)
        # Everything from the floor to here is taken: a returned entry goes to a span, under this lock.
        if floored and index > level.floor:
            check(index <= tail + 1, b"held_runs R1 a floor is not above the tail", index, tail)
            at_store64(address(level.floor), index)
        if section.outcome == HOLD_MORE and index > tail:
            level_no += 1
            index = 0
    if section.taken:
        at_store64(address(entries.taken), entries.taken + section.taken)
        at_store64(address(entries.taken_bytes), entries.taken_bytes + section.bytes)
        if section.cold:
            count_cold(entries, -cast(longlong, section.cold))
    spin_unlock(address(entries.lock))
    cursor[0] = (cast(uint64_t, level_no) << LEVEL_SHIFT) | index
    if section.cold:  # were consumers parked on them, those behind are theirs now
        manager_changed(queue)
        queue_wake_if_available(queue)
        manager_wake_waiters(queue)
    return section.outcome


@cfunc
@nogil
@exceptval(check=False)
def _show(queue: pointer[queue_t], run: pointer[run_t], first: uint64_t) -> void:
    """Entries of the run from number `first` on will be shown to who reads the set: once its Prepare is durable, so that nobody waits for
    their mark, which is in the message log before (store/log/writer.py I1)."""
    number: uint64_t
    for number in range(first, run.count):
        if number + 1 == run.count or (run.entries[number].position ^ run.entries[number + 1].position) >> LEVEL_SHIFT:
            delivered_show(queue, run.entries[number].position)


def run_adopt(queue: pointer[queue_t], run: pointer[run_t], first: uint64_t, count: uint64_t) -> bint:
    entries: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t
    body_len: uint32_t
    last: uint64_t = first + count
    position: uint64_t
    until: uint64_t
    if not _room(run, min(count, cast(uint64_t, CHUNK))):
        return False
    while first < last:
        if not _room(run, min(last - first, cast(uint64_t, CHUNK))):
            return False
        spin_lock(address(entries.lock))
        until = min(last, first + CHUNK)
        for position in range(first, until):
            slot = list_slot_locked(entries, position, address(segment))
            state = at_load64(address(slot.state)) if slot != NULL else 0
            if state & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED | ENTRY_HELD or not state & ENTRY_LOGGED:
                continue
            body_len = slot_body_len(slot)
            count_arrival(entries, body_len)
            count_taken(entries, body_len)
            # Nobody else may change a held entry: a store will do.
            at_store64(address(slot.state), state & ~cast(uint64_t, ENTRY_HELD))
            _note(run, slot, position, state, body_len)
        spin_unlock(address(entries.lock))
        first += CHUNK
    return True


def run_look(queue: pointer[queue_t], run: pointer[run_t], positions: pointer[cython.const[uint64_t]], count: uint64_t) -> bint:
    entries: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t
    end: uint64_t
    number: uint64_t = 0
    while number < count:
        end = min(number + CHUNK, count)
        if not _room(run, CHUNK):
            return False
        spin_lock(address(entries.lock))
        while number < end:
            slot = list_slot_locked(entries, positions[number], address(segment))
            if slot != NULL:
                state = slot_hold(slot, True)
                if state:
                    _note(run, slot, positions[number], state, slot_body_len(slot))
                    slot_unhold(slot, state)
            number += 1
        spin_unlock(address(entries.lock))
    return True


# --- outcome --------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _came(queue: pointer[queue_t], lowest: uint64_t) -> void:
    """Entries from `lowest` on are available at places that readers may have passed."""
    due_worked(queue)
    due_expiry(queue)
    manager_behind(queue, lowest)
    manager_available(queue, 0, NULL, True)
    manager_wake_waiters(queue)


def run_release(queue: pointer[queue_t], entries: pointer[run_entry_t], count: uint64_t) -> void:
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t
    body_len: uint32_t
    position: uint64_t
    lowest: uint64_t
    number: uint64_t = 0
    until: uint64_t
    first: uint64_t
    while number < count:
        until = min(count, number + CHUNK)
        first = number
        lowest = 0
        spin_lock(address(list_.lock))
        while number < until:
            position = entries[number].position
            number += 1
            slot = list_slot_locked(list_, position, address(segment))
            state = at_load64(address(slot.state)) if slot != NULL else 0
            if state & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED or state >> ENTRY_OWNER_SHIFT:
                continue
            body_len = slot_body_len(slot)  # before the CAS: it is still ours
            if not slot_release(slot, 0, True):
                continue
            list_came_back_locked(list_, segment, position & INDEX_MASK, body_len)
            if state & ENTRY_ASIDE:
                count_cold(list_, 1)
                if state & ENTRY_FAILED:
                    check(list_.failed > 0, b"held_runs R1 a failed entry that came back was counted", list_.failed, position)
                    at_store64(address(list_.failed), list_.failed - 1)
            if lowest == 0 or position < lowest:
                lowest = position
        if lowest:
            count_behind(list_, lowest)
        spin_unlock(address(list_.lock))
        while first < until:
            kind_returned(queue, entries[first].position)
            first += 1
        if lowest:
            _came(queue, lowest)


def run_settle(queue: pointer[queue_t], entries: pointer[run_entry_t], count: uint64_t) -> void:
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    content: pointer[content_t]
    contents: pointer[content_t][256]
    spilled: uint64_t[256]
    content_count: uint32_t
    spilled_count: uint32_t
    i: uint32_t
    number: uint64_t = 0
    until: uint64_t
    first: uint64_t
    retired: uint32_t
    while number < count:
        until = min(count, number + CHUNK)
        first = number
        content_count = 0
        spilled_count = 0
        spin_lock(address(list_.lock))
        while number < until:
            slot = list_slot_locked(list_, entries[number].position, address(segment))
            number += 1
            if slot == NULL or at_load64(address(slot.state)) & ENTRY_HELD or not slot_dequeue(slot, 0):
                continue
            content = slot_content(slot)
            if content != NULL:
                contents[content_count] = content
                content_count += 1
            if slot.message_id >> MESSAGE_SPILLED_BIT:
                spilled[spilled_count] = slot.message_id
                spilled_count += 1
            list_delete_locked(list_, slot, segment, REASON_ACK)
        spin_unlock(address(list_.lock))
        due_worked(queue)
        for i in range(content_count):
            content_decref(contents[i])
        if queue.port != NULL and queue.port.unspill != NULL:
            for i in range(spilled_count):
                queue.port.unspill(queue.port.context, spilled[i])
        while queue.message_groups != NULL and first < until:
            grouped_ended(queue, entries[first].position)
            first += 1
        retired = at_load32(address(list_.retired_count))
        if retired > at_load32(address(queue.manager.consumer_count)) >> 6 and retired > at_load32(address(list_.reclaim_after)):
            queue_reclaim(queue, True)


# --- messages that enter ----------------------------------------------------------------------------------------------------------


def run_level(queue: pointer[queue_t], priority: int32_t) -> uint32_t:
    like: content_t
    if queue.entries.ops.in_order:
        return 0
    memset(address(like), 0, sizeof(content_t))
    if priority >= 0:
        like.flags = CONTENT_PRIORITY
        like.priority = cast(uint8_t, min(priority, 255))
    return queue.entries.ops.level_of(address(queue.entries), address(like))


def run_reserve(queue: pointer[queue_t], placed: pointer[placed_t], count: uint64_t) -> uint64_t:
    list_: pointer[list_t] = address(queue.entries)
    slot: pointer[slot_t]
    number: uint64_t = 0
    until: uint64_t
    index: uint64_t
    level: uint32_t
    while number < count:
        until = min(count, number + CHUNK)
        # A producer may have reserved the next position and be telling the log of it.
        spin_lock(address(queue.log_lock))
        spin_lock(address(list_.lock))
        while number < until:
            level = run_level(queue, placed[number].priority)
            index = list_.levels[level].tail + 1
            slot = list_claim_locked(list_, level, index, 0)
            if slot == NULL:
                spin_unlock(address(list_.lock))
                spin_unlock(address(queue.log_lock))
                return number
            slot.message_id = 0
            slot_set_cold(slot, 0)
            at_store64(address(slot.state), ENTRY_HELD | ENTRY_ACQUIRED | ENTRY_UNSTEALABLE | ENTRY_NOT_RESIDENT | ENTRY_ASIDE)
            at_store64(address(list_.levels[level].tail), index)
            placed[number].position = (cast(uint64_t, level) << LEVEL_SHIFT) | index
            number += 1
        spin_unlock(address(list_.lock))
        spin_unlock(address(queue.log_lock))
    return count


def run_publish(queue: pointer[queue_t], placed: pointer[placed_t], count: uint64_t) -> void:
    list_: pointer[list_t] = address(queue.entries)
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    one: pointer[placed_t]
    state: uint64_t
    index: uint64_t
    lowest: uint64_t
    number: uint64_t = 0
    until: uint64_t
    first: uint64_t
    while number < count:
        until = min(count, number + CHUNK)
        first = number
        lowest = 0
        spin_lock(address(list_.lock))
        while number < until:
            one = placed + number
            number += 1
            slot = list_slot_locked(list_, one.position, address(segment))
            state = at_load64(address(slot.state)) if slot != NULL else 0
            if state & (ENTRY_STATE_MASK | ENTRY_HELD) != ENTRY_ACQUIRED | ENTRY_HELD or slot.message_id or one.message_id == 0:
                continue
            slot.message_id = one.message_id
            slot_set_cold(slot, one.body_len)
            index = one.position & INDEX_MASK
            if one.expires_at_ms:
                expiry_set(list_, segment, index, one.expires_at_ms)
            count_arrival(list_, one.body_len)
            count_taken(list_, one.body_len)  # the broker has had it from its birth
            count_cold(list_, 1)
            if lowest == 0 or one.position < lowest:
                lowest = one.position
            at_store64(address(slot.state), ENTRY_AVAILABLE | ENTRY_LOGGED | ENTRY_NOT_RESIDENT)
            list_came_back_locked(list_, segment, index, one.body_len)
        if lowest:
            count_behind(list_, lowest)
        spin_unlock(address(list_.lock))
        while first < until:
            kind_arrived(queue, (placed + first).position, NULL)
            first += 1
        if lowest:
            _came(queue, lowest)
            queue_paging_wanted(queue)


# --- the Python face ----------------------------------------------------------------------------------------------------------------


@cclass
class Run:
    """Entries of one queue that a transaction holds. Args: handle: the queue. Threading: `hold` and `adopt` in one thread at a time."""

    def __cinit__(self, handle: QueueHandle):
        self.handle = handle
        self.lock = threading.Lock()

    def __dealloc__(self):
        free(self.run.entries)

    @property
    def queue_id(self) -> int:
        return self.handle.queue.id

    @property
    def count(self) -> int:
        return self.run.count

    @property
    def bytes(self) -> int:
        """Of bodies."""
        return self.run.bytes

    def hold(self, cursor: int, messages_max: int, bytes_max: int, upto: int, alone: bool, ranges_max: int, pieces: int) -> tuple:
        """Takes available entries from position `cursor` on, at most `pieces` times some hundreds.

        Returns: (how many, bytes of bodies, whether there may be more within these limits, where to go on). Reads entries that left memory
        from the disk. Raises: MemoryError; StoreError.
        """
        position: uint64_t = cursor
        messages: uint64_t = messages_max
        bytes_left: uint64_t = bytes_max
        last: uint64_t = upto
        first_alone: bint = alone
        most: uint32_t = ranges_max
        pieces_open: uint32_t = pieces
        outcome: c_int = HOLD_MORE
        count: uint64_t = self.run.count
        bytes_: uint64_t = self.run.bytes
        while outcome == HOLD_MORE and pieces_open:
            with self.lock, nogil:
                if self.acquired_us == 0:
                    self.acquired_us = wall_us()
                while outcome == HOLD_MORE and pieces_open:
                    outcome = run_hold(
                        self.handle.queue,
                        address(self.run),
                        address(position),
                        last,
                        address(messages),
                        address(bytes_left),
                        first_alone and self.run.count == count,
                        most,
                    )
                    pieces_open -= 1
            if outcome == HOLD_PAGED:
                self.handle._page_in(position)  # without the lock: it waits for the disk
                outcome = HOLD_MORE
        if self.run.count != count:
            with self.lock, nogil:
                _show(self.handle.queue, address(self.run), count)
        if outcome == HOLD_NO_MEMORY:
            raise MemoryError("no memory for a run")
        return (self.run.count - count, self.run.bytes - bytes_, outcome == HOLD_MORE, position)

    def adopt(self, ranges: object, acquired_us: int) -> None:
        """Takes over the entries that recovery put back held. Args: ranges: (first position, count), in order. Raises: MemoryError."""
        first: uint64_t
        count: uint64_t
        done: bint = True
        self.acquired_us = acquired_us
        with self.lock:
            for one in ranges:
                first, count = one
                with nogil:
                    done = done and run_adopt(self.handle.queue, address(self.run), first, count)
        if not done:
            raise MemoryError("no memory for a run")

    def look(self, positions: object) -> None:
        """Takes down those of the entries that are there, and leaves them as they are. Args: positions: array("Q"). Raises: MemoryError."""
        given: cython.const[ulong][::1] = positions
        number: uint64_t = given.shape[0]
        done: bint = True
        if number:
            with self.lock, nogil:
                done = run_look(
                    self.handle.queue,
                    address(self.run),
                    cast(pointer[cython.const[uint64_t]], address(given[0])),
                    number,
                )
        if not done:
            raise MemoryError("no memory for a run")

    def release(self, first: int = 0, count: int = -1) -> None:
        """Entries at..at+count-1 of the run (-1: all) are available again, flagged redelivered; those that are not held are left alone."""
        start: uint64_t = min(cast(uint64_t, first), self.run.count)
        number: uint64_t = self.run.count - start if count < 0 else min(cast(uint64_t, count), self.run.count - start)
        with nogil:
            run_release(self.handle.queue, self.run.entries + start, number)

    def settle(self) -> None:
        """All its entries go; the log is told nothing."""
        with nogil:
            run_settle(self.handle.queue, self.run.entries, self.run.count)

    def position(self, number: int) -> int:
        """Of its entry `number` (from 0; negative: from the end)."""
        index: int = number if number >= 0 else self.run.count + number
        if not 0 <= index < self.run.count:
            raise IndexError(number)
        return self.run.entries[cast(uint64_t, index)].position

    @property
    def range_count(self) -> int:
        """How many `ranges` there are."""
        return self.run.ranges

    def ranges(self) -> list:
        """(first position, count) of its runs of neighbouring positions, in order."""
        runs: list = []
        i: uint64_t
        first: uint64_t = 0
        count: uint64_t = 0
        position: uint64_t
        for i in range(self.run.count):
            position = self.run.entries[i].position
            if count and position == first + count:
                count += 1
                continue
            if count:
                runs.append((first, count))
            first = position
            count = 1
        if count:
            runs.append((first, count))
        return runs
