"""When the entries of a list expire (see expiries.pxd).

in: times of entries that come or come back, segments that go. out: list_t.expiry_min, and expired entries, earliest first.

X1  An available entry that expires is among the due slots of its segment, and its segment is in the heap of the list; so a take finds it
    at its time, wherever it stands and whatever stands before it.
X2  Due slots may be no longer anyone's (their entry was settled): the take that meets one drops it. One may be there twice; there are
    never more than the segment has slots, for they are then collected anew from the column.
X3  What a take meets in somebody's hands is due no more, and `expiry_now` says up to which time that happened: an entry that comes back
    is put in again when its time is not above it.
X4  `expiry_min` of a segment is the time of its first due slot, that of the list the one of its first segment; 0: none.
X5  While `due_first` is not DUE_HEAP the due slots rise by time, then by index.

Random times cost one step of the segment's heap on average to put in, and log(1,365) + log(segments) to take out; a queue with one time
to live for all puts each entry at the end of a line, and takes it out at the front, with one comparison each.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.counts import count_taken
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_body_len
from cython.cimports.flintmq.queue.types import ENTRY_DEQUEUED, ENTRY_STATE_MASK, LEVEL_SHIFT, list_t, segment_t, slot_t
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove

# --- the heap of segments -------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _segment_before(left: pointer[segment_t], right: pointer[segment_t]) -> bint:
    if left.expiry_min != right.expiry_min:
        return left.expiry_min < right.expiry_min
    return left.level < right.level or (left.level == right.level and left.base < right.base)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_segment(entries: pointer[list_t], place: uint32_t, segment: pointer[segment_t]) -> void:
    entries.due[place] = segment
    segment.due_place = place + 1


@cfunc
@nogil
@exceptval(check=False)
def _segment_up(entries: pointer[list_t], place: uint32_t) -> void:
    segment: pointer[segment_t] = entries.due[place]
    above: uint32_t
    while place:
        above = (place - 1) >> 1
        if not _segment_before(segment, entries.due[above]):
            break
        _put_segment(entries, place, entries.due[above])
        place = above
    _put_segment(entries, place, segment)


@cfunc
@nogil
@exceptval(check=False)
def _segment_down(entries: pointer[list_t], place: uint32_t) -> void:
    segment: pointer[segment_t] = entries.due[place]
    below: uint32_t = 2 * place + 1
    while below < entries.due_count:
        if below + 1 < entries.due_count and _segment_before(entries.due[below + 1], entries.due[below]):
            below += 1
        if not _segment_before(entries.due[below], segment):
            break
        _put_segment(entries, place, entries.due[below])
        place = below
        below = 2 * place + 1
    _put_segment(entries, place, segment)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _tell(entries: pointer[list_t]) -> void:
    earliest: int64_t = entries.due[0].expiry_min if entries.due_count else 0
    if entries.due_shell != NULL and entries.due_count and entries.due[0].slots == NULL:
        earliest = 0  # one shell at a time comes back: who expires is told by it
    if earliest != entries.expiry_min:
        at_store64(cast(pointer[uint64_t], address(entries.expiry_min)), cast(uint64_t, earliest))


@cfunc
@nogil
@exceptval(check=False)
def _room(entries: pointer[list_t]) -> bint:
    """Room for one more segment in the list's heap."""
    size: uint32_t
    grown: pointer[pointer[segment_t]]
    if entries.due_count < entries.due_size:
        return True
    size = entries.due_size * 2 if entries.due_size else 4
    grown = cast(pointer[pointer[segment_t]], realloc(entries.due, size * sizeof(p_void)))
    if grown == NULL:
        return False
    memory_add(MEMORY_ENTRIES, (size - entries.due_size) * sizeof(p_void))
    entries.due = grown
    entries.due_size = size
    return True


@cfunc
@nogil
@exceptval(check=False)
def _leave(entries: pointer[list_t], segment: pointer[segment_t]) -> void:
    """The segment leaves the list's heap."""
    place: uint32_t = segment.due_place - 1
    last: pointer[segment_t]
    check(place < entries.due_count and entries.due[place] == segment, b"expiries X1 a heap knows its segments", place, segment.base)
    segment.due_place = 0
    segment.expiry_min = 0
    entries.due_count -= 1
    if place == entries.due_count:
        return
    last = entries.due[entries.due_count]
    _put_segment(entries, place, last)
    _segment_up(entries, place)
    _segment_down(entries, last.due_place - 1)


@cfunc
@nogil
@exceptval(check=False)
def _enter(entries: pointer[list_t], segment: pointer[segment_t], expiry_min: int64_t) -> void:
    """The segment enters the list's heap, which has room."""
    segment.expiry_min = expiry_min
    entries.due_count += 1
    _put_segment(entries, entries.due_count - 1, segment)
    _segment_up(entries, entries.due_count - 1)


# --- the due slots of one segment -----------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _slot_before(expiry: pointer[int64_t], left: uint32_t, right: uint32_t) -> bint:
    return expiry[left] < expiry[right] or (expiry[left] == expiry[right] and left < right)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _slot_up(segment: pointer[segment_t], place: uint32_t, slot: uint32_t) -> void:
    above: uint32_t
    while place:
        above = (place - 1) >> 1
        if not _slot_before(segment.expiry, slot, segment.due[above]):
            break
        segment.due[place] = segment.due[above]
        place = above
    segment.due[place] = cast(uint16_t, slot)


@cfunc
@nogil
@exceptval(check=False)
def _slot_down(segment: pointer[segment_t], place: uint32_t, slot: uint32_t) -> void:
    below: uint32_t = 2 * place + 1
    while below < segment.due_count:
        if below + 1 < segment.due_count and _slot_before(segment.expiry, segment.due[below + 1], segment.due[below]):
            below += 1
        if not _slot_before(segment.expiry, segment.due[below], slot):
            break
        segment.due[place] = segment.due[below]
        place = below
        below = 2 * place + 1
    segment.due[place] = cast(uint16_t, slot)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _first_due(segment: pointer[segment_t]) -> uint32_t:
    return segment.due[0] if segment.due_first == DUE_HEAP else segment.due[segment.due_first]


@cfunc
@inline
@nogil
@exceptval(check=False)
def _line_up(segment: pointer[segment_t]) -> void:
    """The line begins at 0: at its end is room, or it is a heap from now on (a line is one)."""
    if segment.due_first:
        memmove(segment.due, segment.due + segment.due_first, segment.due_count * sizeof(uint16_t))
        segment.due_first = 0


@cfunc
@inline
@nogil
@exceptval(check=False)
def _add_due(segment: pointer[segment_t], slot: uint32_t) -> void:
    """There is room for it."""
    end: uint32_t
    if segment.due_first != DUE_HEAP:
        end = cast(uint32_t, segment.due_first) + segment.due_count
        if end == segment.count or segment.due_count == 0:
            _line_up(segment)
            end = segment.due_count
        if segment.due_count == 0 or _slot_before(segment.expiry, segment.due[end - 1], slot):
            segment.due[end] = cast(uint16_t, slot)
            segment.due_count += 1
            return
        _line_up(segment)
        segment.due_first = DUE_HEAP
    segment.due_count += 1
    _slot_up(segment, segment.due_count - 1, slot)


@cfunc
@nogil
@exceptval(check=False)
def _make_anew(segment: pointer[segment_t]) -> void:
    """The due slots from the column: each once, without those whose entry is gone (X2). O(slots)."""
    i: uint32_t
    segment.due_count = 0
    segment.due_first = 0
    for i in range(segment.count):
        if segment.expiry[i] == 0:
            continue
        if at_load64(address(segment.slots[i].state)) & ENTRY_STATE_MASK >= ENTRY_DEQUEUED:
            segment.expiry[i] = 0
            continue
        _add_due(segment, i)


@cfunc
@nogil
@exceptval(check=False)
def _put(entries: pointer[list_t], segment: pointer[segment_t], slot: uint32_t) -> bint:
    """Puts a slot with its time in the column into the heaps. False: no memory."""
    if segment.due_place == 0 and not _room(entries):
        return False
    if segment.due_count == segment.count:
        _make_anew(segment)
    else:
        _add_due(segment, slot)
    if segment.due_place == 0:
        _enter(entries, segment, segment.expiry[_first_due(segment)])
    elif segment.expiry[_first_due(segment)] != segment.expiry_min:
        segment.expiry_min = segment.expiry[_first_due(segment)]
        _segment_up(entries, segment.due_place - 1)
        _segment_down(entries, segment.due_place - 1)
    _tell(entries)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _pop(entries: pointer[list_t], segment: pointer[segment_t]) -> void:
    """The first due slot leaves the list's first segment."""
    segment.due_count -= 1
    if segment.due_count == 0:
        segment.due_first = 0
        _leave(entries, segment)
        return
    if segment.due_first == DUE_HEAP:
        _slot_down(segment, 0, segment.due[segment.due_count])
    else:
        segment.due_first += 1
    if segment.expiry[_first_due(segment)] != segment.expiry_min:
        segment.expiry_min = segment.expiry[_first_due(segment)]
        _segment_down(entries, 0)


# --- see expiries.pxd -----------------------------------------------------------------------------------------------------


def expiry_set(entries: pointer[list_t], segment: pointer[segment_t], index: uint64_t, expires_at_ms: int64_t) -> bint:
    slot: uint32_t = cast(uint32_t, index - segment.base)
    if segment.expiry == NULL:
        segment.expiry = expiry_column(segment.count)
        if segment.expiry == NULL:
            return False
        segment.due = cast(pointer[uint16_t], segment.expiry + segment.count)
        segment.due_count = 0
        segment.due_first = 0
    segment.expiry[slot] = expires_at_ms
    if _put(entries, segment, slot):
        return True
    segment.expiry[slot] = 0
    return False


def expiry_came_back(entries: pointer[list_t], segment: pointer[segment_t], index: uint64_t) -> void:
    slot: uint32_t = cast(uint32_t, index - segment.base)
    if segment.expiry == NULL or segment.expiry[slot] == 0 or segment.expiry[slot] > entries.expiry_now:
        return  # X3: it is in the heap still
    _put(entries, segment, slot)


def expiry_detach(segment: pointer[segment_t]) -> pointer[int64_t]:
    column: pointer[int64_t] = segment.expiry
    segment.expiry = NULL
    segment.due = NULL
    return column


def expiry_column(count: uint32_t) -> pointer[int64_t]:
    size: uint64_t = count * (sizeof(int64_t) + sizeof(uint16_t))
    column: pointer[int64_t] = cast(pointer[int64_t], calloc(1, size))
    if column != NULL:
        memory_add(MEMORY_ENTRIES, size)
    return column


def expiry_column_free(column: pointer[int64_t], count: uint32_t) -> void:
    if column != NULL:
        memory_add(MEMORY_ENTRIES, -cast(int64_t, count * (sizeof(int64_t) + sizeof(uint16_t))))
        free(column)


def expiry_attach(entries: pointer[list_t], segment: pointer[segment_t], column: pointer[int64_t]) -> void:
    if entries.due_shell == segment:
        entries.due_shell = NULL
    if segment.due_place:
        _leave(entries, segment)
    segment.expiry = column
    if column != NULL:
        segment.due = cast(pointer[uint16_t], column + segment.count)
        _make_anew(segment)
        if segment.due_count and _room(entries):
            _enter(entries, segment, column[_first_due(segment)])
    _tell(entries)


def expiry_shell(entries: pointer[list_t], segment: pointer[segment_t], expiry_min: int64_t) -> bint:
    if entries.due_shell == segment:
        entries.due_shell = NULL
    if expiry_min and segment.due_place == 0:
        if not _room(entries):
            return False
        _enter(entries, segment, expiry_min)
    _tell(entries)
    return True


def expiry_unlinked(entries: pointer[list_t], segment: pointer[segment_t]) -> void:
    if entries.due_shell == segment:
        entries.due_shell = NULL
        _tell(entries)
    if segment.due_place:
        _leave(entries, segment)
        _tell(entries)


def expiry_free(segment: pointer[segment_t]) -> void:
    if segment.expiry != NULL:
        expiry_column_free(segment.expiry, segment.count)
        segment.expiry = NULL
        segment.due = NULL
        segment.due_count = 0


def expiry_list_free(entries: pointer[list_t]) -> void:
    memory_add(MEMORY_ENTRIES, -cast(int64_t, entries.due_size * sizeof(p_void)))
    free(entries.due)
    entries.due = NULL
    entries.due_count = 0
    entries.due_size = 0


def list_take_expired(entries: pointer[list_t], now_ms: int64_t, position: pointer[uint64_t], slot: pointer[pointer[slot_t]]) -> bint:
    segment: pointer[segment_t]
    expired: pointer[slot_t]
    i: uint32_t
    earliest: int64_t
    taken: bint = False
    position[0] = 0
    if at_load64(cast(pointer[uint64_t], address(entries.expiry_min))) == 0:
        return False
    spin_lock(address(entries.lock))
    if now_ms > entries.expiry_now:
        entries.expiry_now = now_ms
    while not taken and entries.due_count and entries.due[0].expiry_min <= now_ms:
        segment = entries.due[0]
        if segment.slots == NULL:
            if entries.due_shell == NULL:
                earliest = segment.expiry_min
                _leave(entries, segment)
                segment.expiry_min = earliest  # should it not come back: expiry_shell
                entries.due_shell = segment
                position[0] = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | segment.base
            break
        i = _first_due(segment)
        _pop(entries, segment)
        expired = segment.slots + i
        if segment.expiry[i] == 0 or segment.expiry[i] > now_ms:
            continue  # it was there twice
        if slot_acquire(expired, 0, True):
            # Its time stays: should the broker give it back, it is taken again (expiry_came_back).
            slot[0] = expired
            position[0] = (cast(uint64_t, segment.level) << LEVEL_SHIFT) | (segment.base + i)
            check(
                segment.base + i <= entries.levels[segment.level].tail,
                b"expiries X1 an expired entry stands below the tail",
                position[0],
                entries.levels[segment.level].tail,
            )
            count_taken(entries, slot_body_len(expired))
            taken = True
        elif at_load64(address(expired.state)) & ENTRY_STATE_MASK >= ENTRY_DEQUEUED:
            segment.expiry[i] = 0
        # else it is in somebody's hands: expiry_came_back
    _tell(entries)
    spin_unlock(address(entries.lock))
    return taken
