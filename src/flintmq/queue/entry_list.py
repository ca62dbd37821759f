"""Entry lists: where a queue keeps its entries (see entry_list.pxd; records in types.pxd).

in: enqueues, settlements. out: slots by position, the next available entry after a position.

I1  An entry's position never changes; inside a level indices rise and are never used twice.
I2  Entries up to `tail` are published; a slot between two entries that stays EMPTY is a gap that recovery left.
I3  An available entry of a level that is below its `floor` is in one of its `spans`.
I4  A segment is unlinked when all its entries are deleted and no more can come; it keeps its `next`, and is freed only when no
    reader can be inside (the queue's reclaimer decides).
I5  An entry is deleted once, after it was dequeued; `live` of a segment and of its level counts the entries claimed and not deleted.
I6  `failed` counts the live entries whose content can't be read.

A level's first segments are small, so that 100,000 queues with a message or two stay cheap; later ones fill 32 KiB of pages of their own,
which go back to the system one by one, also from the middle.
"""

from __future__ import annotations

from cython import NULL, Py_ssize_t, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_load32, at_load64, at_load_ptr, at_store32, at_store64, at_store_ptr, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_incref, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.core.sanitizer import FLINTMQ_ASAN
from cython.cimports.flintmq.queue.counts import count_arrival, count_behind, count_cold, count_evicted, count_resident
from cython.cimports.flintmq.queue.expiries import expiry_came_back, expiry_free, expiry_set, expiry_unlinked
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_content, slot_dequeue, slot_release, slot_set_cold
from cython.cimports.flintmq.queue.spans import span_add, span_cut, span_find
from cython.cimports.flintmq.queue.types import (
    BEHIND_RING, ENTRY_ACQUIRED, ENTRY_ASIDE, ENTRY_AVAILABLE, ENTRY_DELETED, ENTRY_DEQUEUED, ENTRY_EMPTY, ENTRY_FAILED, ENTRY_HELD,
    ENTRY_LOGGED, ENTRY_NOT_RESIDENT, ENTRY_PAGED, ENTRY_STATE_MASK, INDEX_MASK, LEVEL_SHIFT, MESSAGE_SPILLED_BIT, REASON_ACK, found_t,
    level_t, list_t, place_t, segment_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove
from cython.cimports.posix.mman import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

# Slots of a level's first segment, and of its second: 48 and 384 bytes serve the many queues that only ever hold a few messages; and of
# the others, eight pages.
first_slots = declare(uint32_t, 2)
small_slots = declare(uint32_t, 16)
large_slots = declare(uint32_t, 1365)
large_mask = declare(uint64_t, 1023)
# Bytes of the slots of a large segment: 8 pages; large enough that unlinking is rare, small enough that one live entry pins little.
LARGE_BYTES = declare(uint64_t, 32768)
# Slots that one section under the lock looks at below the floor: some microseconds.
HOLES_MAX = declare(uint64_t, 2048)
# Slots before the start of a scan that it looks at, too, to take them out of a span whose start is used up.
TRIM = declare(uint64_t, 32)


def list_set_segments(small: uint32_t, large: uint32_t) -> void:
    global first_slots, small_slots, large_slots, large_mask
    large = max(1, min(large, LARGE_SLOTS))  # what an operator asks for; slots_new has room for no more
    small = max(1, min(small, large))
    first_slots = min(2, small)
    small_slots = small
    large_slots = large
    large_mask = 0
    while large_mask * 2 + 2 <= large:
        large_mask = large_mask * 2 + 1


# --- segments (all locked) --------------------------------------------------------------------------------------------------


def directory_free(level: pointer[level_t]) -> void:
    if level.directory != address(level.first):
        memory_add(MEMORY_ENTRIES, -cast(int64_t, level.capacity * sizeof(p_void)))
        free(level.directory)
    level.directory = NULL
    level.capacity = 0


def slots_new() -> pointer[slot_t]:
    slots: p_void
    if FLINTMQ_ASAN:
        slots = calloc(1, LARGE_BYTES)
        if slots == NULL:
            return NULL
    else:
        slots = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if cast(Py_ssize_t, slots) == -1:
            return NULL
    memory_add(MEMORY_ENTRIES, LARGE_BYTES)
    return cast(pointer[slot_t], slots)


def slots_free(slots: pointer[slot_t]) -> void:
    memory_add(MEMORY_ENTRIES, -cast(int64_t, LARGE_BYTES))
    if FLINTMQ_ASAN:
        free(slots)
    else:
        munmap(slots, LARGE_BYTES)


def segment_free(segment: pointer[segment_t]) -> void:
    memory_add(MEMORY_ENTRIES, -cast(int64_t, sizeof(segment_t) + (0 if segment.mapped else segment.count * sizeof(slot_t))))
    expiry_free(segment)
    if segment.mapped and segment.slots != NULL:
        slots_free(segment.slots)
    free(segment)


@cfunc
@nogil
@exceptval(check=False)
def _segment_new(entries: pointer[list_t], before: uint32_t) -> pointer[segment_t]:
    """A zeroed segment; NULL when memory is exhausted. before: level_t.grown."""
    segment: pointer[segment_t]
    large: bint = before > 1
    count: uint32_t = large_slots
    own: uint64_t = 0
    if not large:
        count = small_slots if before else first_slots
        own = count * sizeof(slot_t)
    if large and entries.spare != NULL:
        segment = entries.spare
        entries.spare = NULL
        return segment
    segment = cast(pointer[segment_t], calloc(1, sizeof(segment_t) + own))
    if segment == NULL:
        return NULL
    segment.count = count
    if large:
        # Apart from the segment: they leave memory when it becomes a shell.
        segment.slots = slots_new()
        if segment.slots == NULL:
            free(segment)
            return NULL
        segment.mapped = cast(uint32_t, LARGE_BYTES)
    else:
        segment.slots = cast(pointer[slot_t], segment + 1)
    memory_add(MEMORY_ENTRIES, cast(int64_t, sizeof(segment_t) + own))
    return segment


@cfunc
@nogil
@exceptval(check=False)
def _directory_room(level: pointer[level_t]) -> bint:
    """Room for one more segment at the end of the directory. That of one segment is `first` itself: most queues have no second one."""
    capacity: uint32_t
    grown: pointer[pointer[segment_t]]
    inside: bint = level.directory == address(level.first)
    if level.start + level.count < level.capacity:
        return True
    if level.capacity == 0:
        level.directory = address(level.first)
        level.capacity = 1
        return True
    if level.start > level.capacity // 2:
        memmove(level.directory, level.directory + level.start, level.count * sizeof(p_void))
        level.start = 0
        return True
    capacity = level.capacity * 2
    grown = cast(pointer[pointer[segment_t]], realloc(NULL if inside else level.directory, cast(uint64_t, capacity) * sizeof(p_void)))
    if grown == NULL:
        return False
    if inside:
        grown[0] = level.first
    memory_add(MEMORY_ENTRIES, (capacity - (0 if inside else level.capacity)) * sizeof(p_void))
    level.directory = grown
    level.capacity = capacity
    return True


def list_directory_find(level: pointer[level_t], index: uint64_t) -> uint32_t:
    """Place in the directory of the first segment that ends after `index`; level.count when there is none."""
    low: uint32_t = 0
    high: uint32_t = level.count
    middle: uint32_t
    segment: pointer[segment_t]
    while low < high:
        middle = (low + high) >> 1
        segment = level.directory[level.start + middle]
        if segment.base + segment.count > index:
            high = middle
        else:
            low = middle + 1
    return low


@cfunc
@inline
@nogil
@exceptval(check=False)
def _find_segment(level: pointer[level_t], index: uint64_t) -> pointer[segment_t]:
    """The first segment that ends after `index` (it may begin after it); NULL when there is none."""
    segment: pointer[segment_t] = level.hint
    directory_index: uint32_t
    if segment != NULL and segment.base <= index and index < segment.base + segment.count:
        return segment
    segment = level.first
    if segment == NULL:
        return NULL
    if index < segment.base + segment.count:
        level.hint = segment
        return segment
    segment = level.last
    if index >= segment.base + segment.count:
        return NULL
    if index < segment.base:
        directory_index = list_directory_find(level, index)
        segment = level.directory[level.start + directory_index]
    level.hint = segment
    return segment


def list_unlink_locked(entries: pointer[list_t], level: pointer[level_t], segment: pointer[segment_t]) -> void:
    """Takes a segment out of the level and puts it on the retired list; its `next` stays for readers inside."""
    directory_index: uint32_t = list_directory_find(level, segment.base)
    directory: pointer[pointer[segment_t]] = level.directory + level.start
    check(segment.live == 0, b"entry_list I4 an unlinked segment has no entry", segment.live, segment.base)
    check(
        directory_index < level.count and directory[directory_index] == segment,
        b"entry_list I4 the directory knows an unlinked segment",
        directory_index,
        level.count,
    )
    if directory_index < level.count // 2:
        memmove(directory + 1, directory, directory_index * sizeof(p_void))
        level.start += 1
    else:
        memmove(directory + directory_index, directory + directory_index + 1, (level.count - directory_index - 1) * sizeof(p_void))
    level.count -= 1
    if level.count == 0:
        level.start = 0
    if segment.prev != NULL:
        at_store_ptr(address(segment.prev.next), segment.next)
    else:
        level.first = segment.next
    if segment.next != NULL:
        segment.next.prev = segment.prev
    else:
        level.last = segment.prev
    level.hint = NULL
    expiry_unlinked(entries, segment)
    segment.prev = entries.retired
    entries.retired = segment
    at_store32(address(entries.retired_count), entries.retired_count + 1)
    # Pairs with the at_load64 in _scan_from: whoever sees the old number was inside before, and keeps the segment from being freed.
    at_store64(address(entries.generation), entries.generation + 1)


@cfunc
@nogil
@exceptval(check=False)
def _append_segment(entries: pointer[list_t], level_no: uint32_t, index: uint64_t) -> pointer[segment_t]:
    """A new last segment that begins at `index`."""
    level: pointer[level_t] = entries.levels + level_no
    segment: pointer[segment_t]
    if not _directory_room(level):
        return NULL
    segment = _segment_new(entries, level.grown)
    if segment == NULL:
        return NULL
    check(segment.live == 0 and segment.expiry == NULL, b"entry_list I5 a new segment is empty", segment.live, index)
    _link(entries, level_no, segment, index)
    return segment


@cfunc
@nogil
@exceptval(check=False)
def _link(entries: pointer[list_t], level_no: uint32_t, segment: pointer[segment_t], index: uint64_t) -> void:
    """The level's last segment from now on; there is room for it in the directory."""
    level: pointer[level_t] = entries.levels + level_no
    last: pointer[segment_t] = level.last
    check(last == NULL or index >= last.base + last.count, b"entry_list I1 a new segment stands behind the last one", index, level.tail)
    if level.grown < 2:
        level.grown += 1
    segment.base = index
    segment.level = level_no
    segment.next = NULL
    segment.prev = last
    check(level.start + level.count < level.capacity, b"entry_list I4 the directory has room", level.count, level.capacity)
    level.directory[level.start + level.count] = segment
    level.count += 1
    level.last = segment
    if last == NULL:
        level.first = segment
        return
    at_store_ptr(address(last.next), segment)
    if last.live == 0:
        list_unlink_locked(entries, level, last)  # it only stayed because it was the last


def list_append_shell(entries: pointer[list_t], level: uint32_t, base: uint64_t, count: uint32_t) -> pointer[segment_t]:
    sub: pointer[level_t] = entries.levels + level
    segment: pointer[segment_t]
    if not _directory_room(sub):
        return NULL
    segment = cast(pointer[segment_t], calloc(1, sizeof(segment_t)))
    if segment == NULL:
        return NULL
    memory_add(MEMORY_ENTRIES, sizeof(segment_t))
    segment.count = count
    segment.mapped = cast(uint32_t, LARGE_BYTES)
    _link(entries, level, segment, base)
    sub.grown = 2
    return segment


def list_append_bounded(entries: pointer[list_t], level: uint32_t, base: uint64_t, count: uint32_t) -> bint:
    sub: pointer[level_t] = entries.levels + level
    segment: pointer[segment_t]
    if not _directory_room(sub):
        return False
    sub.grown = 2
    segment = _segment_new(entries, sub.grown)
    if segment == NULL:
        return False
    segment.count = min(segment.count, count)
    _link(entries, level, segment, base)
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _claim_slot(entries: pointer[list_t], level_no: uint32_t, index: uint64_t) -> pointer[slot_t]:
    """The slot for a new entry at `index`, which is above the level's tail; counted as live. NULL when memory is exhausted."""
    level: pointer[level_t] = entries.levels + level_no
    segment: pointer[segment_t] = level.last
    slot: pointer[slot_t]
    if segment == NULL or index >= segment.base + segment.count:
        segment = _append_segment(entries, level_no, index)
        if segment == NULL:
            return NULL
    slot = segment.slots + (index - segment.base)
    check(slot.state == ENTRY_EMPTY, b"entry_list I1 a place is used once", index, segment.base)
    segment.live += 1
    level.live += 1
    return slot


# --- adding -----------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _show(level: pointer[level_t], slot: pointer[slot_t], index: uint64_t, state: uint64_t) -> void:
    """Release stores: whoever reads this state, or this tail, sees the slot's content."""
    at_store64(address(slot.state), state)
    at_store64(address(level.tail), index)


def list_claim_locked(entries: pointer[list_t], level: uint32_t, index: uint64_t, expires_at_ms: int64_t) -> pointer[slot_t]:
    sub: pointer[level_t] = entries.levels + level
    slot: pointer[slot_t] = NULL
    if not entries.closed and index > sub.tail:
        slot = _claim_slot(entries, level, index)
    if slot != NULL and expires_at_ms and not expiry_set(entries, sub.last, index, expires_at_ms):
        sub.last.live -= 1
        sub.live -= 1
        slot = NULL
    return slot


def list_add(
    entries: pointer[list_t],
    level: uint32_t,
    content: pointer[content_t],
    message_id: uint64_t,
    expires_at_ms: int64_t,
    wanted: pointer[uint32_t],
) -> uint64_t:
    sub: pointer[level_t] = entries.levels + level
    slot: pointer[slot_t] = NULL
    index: uint64_t
    spin_lock(address(entries.lock))
    index = sub.tail + 1
    if expires_at_ms:
        slot = list_claim_locked(entries, level, index, expires_at_ms)
    elif not entries.closed:
        slot = _claim_slot(entries, level, index)
    if slot == NULL:
        spin_unlock(address(entries.lock))
        return 0
    content_incref(content)
    slot.content = content
    slot.message_id = message_id
    count_arrival(entries, content.body_len)
    count_resident(entries, content.body_len)
    _show(sub, slot, index, ENTRY_AVAILABLE)
    if level + 1 < entries.level_count:
        count_behind(entries, (cast(uint64_t, level) << LEVEL_SHIFT) | index)
    # A consumer that goes idle counts itself here first, then passes through this lock, then looks again: either it sees the entry
    # or this reads its count. No fence is needed beyond the lock.
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    return (cast(uint64_t, level) << LEVEL_SHIFT) | index


def list_reserve(
    entries: pointer[list_t], level: uint32_t, content: pointer[content_t], message_id: uint64_t, position: pointer[uint64_t]
) -> pointer[slot_t]:
    sub: pointer[level_t] = entries.levels + level
    slot: pointer[slot_t] = NULL
    index: uint64_t
    spin_lock(address(entries.lock))
    index = sub.tail + 1
    if not entries.closed:
        slot = _claim_slot(entries, level, index)
    if slot != NULL:
        content_incref(content)
        slot.content = content
        slot.message_id = message_id
        position[0] = (cast(uint64_t, level) << LEVEL_SHIFT) | index
    spin_unlock(address(entries.lock))
    return slot


def list_past_window(entries: pointer[list_t], body_len: uint32_t, hot_bytes: uint64_t) -> bint:
    resident: uint64_t = at_load64(address(entries.resident_bytes))
    if hot_bytes == ALL_HOT:
        return False
    # Residency is [hot head][cold tail]: what arrives behind a cold entry is cold, else a load would have to make room for it.
    if at_load64(address(entries.cold_count)):
        return True
    # A message larger than the window itself: a consumer that waits would ask for it at once.
    if resident == 0 and at_load32(address(entries.wanted)):
        return False
    return resident + body_len > hot_bytes


def list_publish(
    entries: pointer[list_t],
    slot: pointer[slot_t],
    position: uint64_t,
    flags: uint64_t,
    expires_at_ms: int64_t,
    hot_bytes: uint64_t,
    wanted: pointer[uint32_t],
    dropped: pointer[pointer[content_t]],
) -> void:
    sub: pointer[level_t] = entries.levels + (position >> LEVEL_SHIFT)
    index: uint64_t = position & INDEX_MASK
    body_len: uint32_t = slot.content.body_len
    dropped[0] = NULL
    spin_lock(address(entries.lock))
    if expires_at_ms:
        # Out of memory: it is logged already, so it stays, without expiring.
        expiry_set(entries, sub.last, index, expires_at_ms)
    count_arrival(entries, body_len)
    if (
        slot.message_id
        and (entries.cold_count or entries.resident_bytes + body_len > hot_bytes)
        and list_past_window(entries, body_len, hot_bytes)
    ):
        dropped[0] = slot.content
        slot_set_cold(slot, body_len)
        flags |= ENTRY_NOT_RESIDENT
        count_cold(entries, 1)
    else:
        count_resident(entries, body_len)
    _show(sub, slot, index, flags | ENTRY_AVAILABLE)
    if (position >> LEVEL_SHIFT) + 1 < entries.level_count:
        count_behind(entries, position)
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))


# --- reading ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _relocate(entries: pointer[list_t], level_no: uint32_t, index: uint64_t) -> pointer[segment_t]:
    segment: pointer[segment_t]
    spin_lock(address(entries.lock))
    segment = _find_segment(entries.levels + level_no, index)
    spin_unlock(address(entries.lock))
    return segment


@cfunc
@nogil
@exceptval(check=False)
def _walk(
    level: pointer[level_t],
    index: uint64_t,
    last: uint64_t,
    budget: pointer[uint64_t],
    available: pointer[bint],
) -> uint64_t:
    """The first index from `index` to `last` that is available, or where the budget ended; else last + 1. Locked."""
    segment: pointer[segment_t]
    end: uint64_t
    available[0] = False
    while index <= last and budget[0]:
        segment = _find_segment(level, index)
        if segment == NULL:
            return last + 1
        if segment.base > index:
            index = segment.base
        end = min(segment.base + segment.count, last + 1)
        if segment.slots == NULL:  # what a shell has below the floor is asked for
            available[0] = index < end
            return index
        while index < end and budget[0]:
            if at_load64(address(segment.slots[index - segment.base].state)) & ENTRY_STATE_MASK == ENTRY_AVAILABLE:
                available[0] = True
                return index
            index += 1
            budget[0] -= 1
    return min(index, last + 1)


@cfunc
@nogil
@exceptval(check=False)
def _next_below_floor(entries: pointer[list_t], level: pointer[level_t], index: uint64_t) -> uint64_t:
    """The first available index of the level at or after `index`, or its floor: nothing else is available below that (I3).

    What it meets that is not available leaves its span, so nobody walks over it again.
    """
    span_index: uint32_t
    first: uint64_t
    end: uint64_t
    last: uint64_t
    budget: uint64_t
    available: bint = False
    while not available:
        budget = HOLES_MAX
        spin_lock(address(entries.lock))
        while budget and not available:
            span_index = span_find(level, index)
            if index >= level.floor or span_index >= level.span_count:
                index = max(index, level.floor)
                available = True  # at the floor scans find what is there
                break
            first = level.spans[level.span_start + span_index].first
            last = level.spans[level.span_start + span_index].last
            if first < index:
                # Readers go on behind what they took: that is at the start of the span, as a rule.
                end = min(TRIM, budget)
                budget -= end
                end = _walk(level, first, index - 1, address(end), address(available))
                if end > first:
                    span_cut(level, span_index, first, end - 1)
                available = False
                if end == index:
                    continue  # the span begins here now, or is gone
                first = index
            end = _walk(level, first, last, address(budget), address(available))
            if end > first:
                at_store64(address(entries.passed), at_load64(address(entries.passed)) + (end - first))
                span_cut(level, span_find(level, first), first, end - 1)
            index = end
        spin_unlock(address(entries.lock))
    return index


@cfunc
@nogil
@exceptval(check=False)
def _stub_reached(
    entries: pointer[list_t], segment: pointer[segment_t], index: uint64_t, skipped: uint32_t, entry: pointer[found_t]
) -> bint:
    """A scan came to a shell: its stub is what the scan finds, at the index at which the entries are to be looked at."""
    entry.slot = address(segment.stub)
    entry.position = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | index
    entry.end = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | (segment.base + segment.count - 1)
    entry.skipped = skipped
    if skipped:
        at_store64(address(entries.passed), at_load64(address(entries.passed)) + skipped)
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _scan_from(
    entries: pointer[list_t],
    place: pointer[place_t],
    start: uint64_t,
    entry: pointer[found_t],
    held: bint,
) -> bint:
    level_no: uint32_t = cast(uint32_t, start >> 56)
    index: uint64_t = (start << 8) >> 8
    level: pointer[level_t]
    segment: pointer[segment_t]
    slot: pointer[slot_t]
    slots: pointer[slot_t]
    tail: uint64_t = 0
    floor: uint64_t
    end: uint64_t
    limit: uint64_t
    state: uint64_t
    skipped: uint32_t = 0
    # Read before any segment pointer: a pointer found under this number is good while the number stays.
    generation: uint64_t = at_load64(address(entries.generation))
    if place.generation != generation:
        place.segment = NULL
        place.generation = generation
    while level_no < entries.level_count:
        level = entries.levels + level_no
        tail = at_load64(address(level.tail))
        if index == 0:
            index = 1
        while index <= tail:
            limit = tail + 1
            if not held:
                floor = at_load64(address(level.floor))
                if index < floor:
                    if at_load32(address(level.span_count)):
                        index = _next_below_floor(entries, level, index)
                        if index < floor:
                            limit = index + 1  # one slot, then the next place below the floor
                    else:
                        index = floor
                    if index > tail:
                        break
            segment = place.segment
            if segment == NULL or segment.level != level_no or index < segment.base:
                segment = _relocate(entries, level_no, index)
            elif index >= segment.base + segment.count:
                segment = cast(pointer[segment_t], at_load_ptr(address(segment.next)))
                if segment == NULL or index >= segment.base + segment.count or index < segment.base:
                    segment = _relocate(entries, level_no, index)
            while segment != NULL:
                if index < segment.base:
                    index = segment.base
                end = segment.base + segment.count
                if end > limit:
                    end = limit
                if index >= end:
                    break
                slots = cast(pointer[slot_t], at_load_ptr(address(segment.slots)))
                if slots == NULL:
                    place.segment = segment
                    return _stub_reached(entries, segment, index, skipped, entry)
                slot = slots + (index - segment.base)
                while index < end:
                    state = at_load64(address(slot.state))
                    if state & ENTRY_STATE_MASK == ENTRY_PAGED:
                        # Its segment is becoming a shell, under the list's lock: the next look finds a stub, or it is available again.
                        if at_load_ptr(address(segment.slots)) == NULL:
                            place.segment = segment
                            return _stub_reached(entries, segment, index, skipped, entry)
                        continue
                    if state & ENTRY_STATE_MASK == ENTRY_AVAILABLE or (held and state & (ENTRY_STATE_MASK | ENTRY_HELD) == ENTRY_ACQUIRED):
                        place.segment = segment
                        entry.slot = slot
                        entry.position = (cast(uint64_t, level_no) << 56) | index
                        entry.skipped = skipped
                        if skipped:
                            at_store64(address(entries.passed), at_load64(address(entries.passed)) + skipped)
                        return True
                    slot += 1
                    index += 1
                    skipped += 1
                if index >= limit:
                    break
                segment = cast(pointer[segment_t], at_load_ptr(address(segment.next)))
                if segment == NULL:
                    segment = _relocate(entries, level_no, index)
            if segment == NULL or limit > tail:
                break
        level_no += 1
        index = 1
    entry.skipped = skipped
    if skipped:
        at_store64(address(entries.passed), at_load64(address(entries.passed)) + skipped)
    entry.end = (cast(uint64_t, entries.level_count - 1) << 56) | tail
    return False


def list_scan(entries: pointer[list_t], place: pointer[place_t], start: uint64_t, entry: pointer[found_t]) -> bint:
    segment: pointer[segment_t] = place.segment
    index: uint64_t = start & INDEX_MASK
    level: pointer[level_t]
    slots: pointer[slot_t]
    slot: pointer[slot_t]
    # What readers ask most: is the entry right behind the last one available, in the segment they are in?
    if (
        segment != NULL
        and place.generation == at_load64(address(entries.generation))
        and segment.level == start >> LEVEL_SHIFT
        and index - segment.base < segment.count
    ):
        level = entries.levels + segment.level
        slots = cast(pointer[slot_t], at_load_ptr(address(segment.slots)))
        slot = slots + (index - segment.base)
        if (
            slots != NULL
            and index <= at_load64(address(level.tail))
            and index >= at_load64(address(level.floor))
            and at_load64(address(slot.state)) & ENTRY_STATE_MASK == ENTRY_AVAILABLE
        ):
            entry.slot = slot
            entry.position = start
            entry.skipped = 0
            return True
    return _scan_from(entries, place, start, entry, False)


def list_next(entries: pointer[list_t], place: pointer[place_t], start: uint64_t, entry: pointer[found_t]) -> bint:
    return _scan_from(entries, place, start, entry, True)


def list_find_floor(entries: pointer[list_t], place: pointer[place_t], level: uint32_t, released: pointer[uint64_t]) -> uint64_t:
    sub: pointer[level_t] = entries.levels + level
    entry: found_t
    index: uint64_t
    released[0] = at_load64(address(entries.released))
    index = at_load64(address(sub.tail)) + 1
    # From the floor on: what came back below it stays in the spans.
    start: uint64_t = (cast(uint64_t, level) << LEVEL_SHIFT) | at_load64(address(sub.floor))
    if _scan_from(entries, place, start, address(entry), False) and entry.position >> LEVEL_SHIFT == level:
        index = entry.position & INDEX_MASK
    return index


def list_raise_floor(entries: pointer[list_t], level: uint32_t, index: uint64_t, released: uint64_t) -> void:
    sub: pointer[level_t] = entries.levels + level
    spin_lock(address(entries.lock))
    # An entry that came back meanwhile may be available behind the scan, above the floor, so in no span. It counts itself under this lock.
    if entries.released == released and index > sub.floor:
        check(index <= sub.tail + 1, b"entry_list I3 a floor is not above the tail", index, sub.tail)
        at_store64(address(sub.floor), index)
    spin_unlock(address(entries.lock))


def list_advance_floor(entries: pointer[list_t], place: pointer[place_t], level: uint32_t) -> void:
    released: uint64_t = 0
    index: uint64_t = list_find_floor(entries, place, level, address(released))
    list_raise_floor(entries, level, index, released)


# --- settlement ---------------------------------------------------------------------------------------------------------------


def list_slot_locked(entries: pointer[list_t], position: uint64_t, segment: pointer[pointer[segment_t]]) -> pointer[slot_t]:
    level_no: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
    holding: pointer[segment_t]
    if level_no >= entries.level_count or index > entries.levels[level_no].tail:
        return NULL
    holding = _find_segment(entries.levels + level_no, index)
    if holding == NULL or index < holding.base or holding.slots == NULL:
        return NULL
    segment[0] = holding
    return holding.slots + (index - holding.base)


def list_delete_locked(entries: pointer[list_t], slot: pointer[slot_t], segment: pointer[segment_t], reason: c_int) -> void:
    level: pointer[level_t] = entries.levels + segment.level
    state: uint64_t = at_load64(address(slot.state))
    body_len: uint64_t = slot_body_len(slot)
    if not state & ENTRY_NOT_RESIDENT:
        count_evicted(entries, body_len)
    elif not state & ENTRY_ASIDE:
        count_cold(entries, -1)
    elif state & ENTRY_FAILED:
        check(entries.failed > 0, b"entry_list I6 a failed entry that goes was counted", entries.failed, state)
        at_store64(address(entries.failed), entries.failed - 1)
    slot.content = NULL
    at_store64(address(slot.state), ENTRY_DELETED)
    if not state & ENTRY_HELD:
        at_store64(address(entries.dequeued), entries.dequeued + 1)
        at_store64(address(entries.dequeued_bytes), entries.dequeued_bytes + body_len)
        if reason != REASON_ACK:  # here, since no entry ends elsewhere: tests/session/test_features_together.py
            at_store64(address(entries.ended[reason]), entries.ended[reason] + 1)
    level.live -= 1
    segment.live -= 1
    if segment.live == 0 and (segment != level.last or level.tail + 1 >= segment.base + segment.count):
        list_unlink_locked(entries, level, segment)


def list_dequeue(
    entries: pointer[list_t],
    position: uint64_t,
    owner: uint32_t,
    reason: c_int,
    slot: pointer[pointer[slot_t]],
    content: pointer[pointer[content_t]],
    spilled: pointer[uint64_t],
) -> c_int:
    segment: pointer[segment_t] = NULL
    ended: pointer[slot_t]
    spin_lock(address(entries.lock))
    ended = list_slot_locked(entries, position, address(segment))
    if ended == NULL or not slot_dequeue(ended, owner):
        spin_unlock(address(entries.lock))
        return 0
    content[0] = slot_content(ended)
    slot[0] = ended
    spilled[0] = ended.message_id if ended.message_id >> MESSAGE_SPILLED_BIT else 0
    if at_load64(address(ended.state)) & ENTRY_LOGGED:
        spin_unlock(address(entries.lock))
        return 2
    list_delete_locked(entries, ended, segment, reason)
    spin_unlock(address(entries.lock))
    return 1


def list_finish(entries: pointer[list_t], position: uint64_t, reason: c_int) -> void:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    spin_lock(address(entries.lock))
    slot = list_slot_locked(entries, position, address(segment))
    if slot != NULL and at_load64(address(slot.state)) & ENTRY_STATE_MASK == ENTRY_DEQUEUED:
        list_delete_locked(entries, slot, segment, reason)
    spin_unlock(address(entries.lock))


def list_came_back_locked(entries: pointer[list_t], segment: pointer[segment_t], index: uint64_t, body_len: uint64_t) -> void:
    level: pointer[level_t] = entries.levels + segment.level
    # Here and for each of them: who raises a floor knows by it whether one came back behind its scan.
    check(index <= level.tail, b"entry_list I2 what came back stands at or below the tail", index, level.tail)
    at_store64(address(entries.released_bytes), entries.released_bytes + body_len)
    at_store64(address(entries.released), entries.released + 1)
    if index < level.floor:
        span_add(level, index)
    if segment.expiry != NULL:
        expiry_came_back(entries, segment, index)


def list_lowest_behind(entries: pointer[list_t], seen: pointer[uint64_t], released: uint64_t) -> uint64_t:
    now: uint64_t = at_load64(address(entries.behind))
    event: uint64_t = seen[0]
    lowest: uint64_t = released
    position: uint64_t
    if now - event >= BEHIND_RING:
        lowest = 1  # too many to know each: from the start, which costs a scan no more than the places it has to jump over
    else:
        while event != now:
            position = at_load64(address(entries.behind_ring[event % BEHIND_RING]))
            if lowest == 0 or position < lowest:
                lowest = position
            event += 1
        # Whoever overwrites what was just read has counted the event before it already.
        if at_load64(address(entries.behind)) - seen[0] >= BEHIND_RING:
            lowest = 1
    seen[0] = now
    return lowest


def list_release(entries: pointer[list_t], position: uint64_t, owner: uint32_t, delivered: bint, wanted: pointer[uint32_t]) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    index: uint64_t = position & INDEX_MASK
    bytes_: uint64_t = 0
    state: uint64_t = 0
    spin_lock(address(entries.lock))
    slot = list_slot_locked(entries, position, address(segment))
    if slot != NULL:
        state = at_load64(address(slot.state))
        if state & ENTRY_STATE_MASK == ENTRY_ACQUIRED:
            bytes_ = slot_body_len(slot)  # before the CAS: it is still the caller's
    if slot == NULL or state & ENTRY_HELD or not slot_release(slot, owner, delivered):
        spin_unlock(address(entries.lock))
        return False
    list_came_back_locked(entries, segment, index, bytes_)
    if state & ENTRY_ASIDE:
        count_cold(entries, 1)
        if state & ENTRY_FAILED:
            check(entries.failed > 0, b"entry_list I6 a failed entry that came back was counted", entries.failed, state)
            at_store64(address(entries.failed), entries.failed - 1)
    count_behind(entries, position)
    wanted[0] = at_load32(address(entries.wanted))
    spin_unlock(address(entries.lock))
    return True
