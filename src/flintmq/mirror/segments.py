"""Segments of a shared queue, as its owner knows them (see segments.pxd).

in: batches that go to the engine, ends of messages. out: which rows are to be written, deleted, read.

S1  Rows of a level are disjoint and rise.
S2  A bit of `ended` is set once; `live` counts the places of a row without one.
S3  A row on a list is freed when it leaves it.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.types import INDEX_MASK, LEVEL_SHIFT
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove
from cython.cimports.posix.unistd import write


def mirror_tell(mirror: pointer[mirror_t]) -> void:
    hub: pointer[hub_t] = mirror.hub
    one: uint64_t = 1
    first: bint
    if at_load32(address(mirror.told)) or at_swap32(address(mirror.told), 1):
        return
    spin_lock(address(hub.lock))
    first = hub.told == NULL
    mirror.next_told = hub.told
    hub.told = mirror
    spin_unlock(address(hub.lock))
    if first:
        write(hub.descriptor, address(one), sizeof(uint64_t))


def mirror_admits(mirror: pointer[mirror_t], body_len: uint32_t, rests: uint32_t) -> bint:
    size: uint64_t = cast(uint64_t, body_len) + MESSAGE_OVERHEAD
    waiting: uint64_t = at_load64(address(mirror.waiting))
    if at_load32(address(mirror.lost)) or at_load32(address(mirror.allowance.rests)) > rests:
        return False
    if waiting and waiting + size > mirror.bytes_max:
        return False
    waiting = at_load64(address(mirror.allowance.bytes))
    return waiting == 0 or waiting + size <= mirror.allowance.bytes_max


def mirror_outcome(mirror: pointer[mirror_t], position: uint64_t) -> c_int:
    if at_load64(address(mirror.lanes[position >> LEVEL_SHIFT].settled)) >= position & INDEX_MASK:
        return MIRROR_SETTLED
    return MIRROR_LOST if at_load32(address(mirror.lost)) else MIRROR_WAITS


@cfunc
@nogil
@exceptval(check=False)
def _place(lane: pointer[lane_t], index: uint64_t) -> uint32_t:
    """Number of the first row that ends at or behind `index`; lane.count: none."""
    low: uint32_t = 0
    high: uint32_t = lane.count
    middle: uint32_t
    row: pointer[row_t]
    while low < high:
        middle = (low + high) >> 1
        row = lane.rows[lane.start + middle]
        if row.first + row.places > index:
            high = middle
        else:
            low = middle + 1
    return low


def lane_find(lane: pointer[lane_t], index: uint64_t) -> pointer[row_t]:
    number: uint32_t = _place(lane, index)
    if number == lane.count or lane.rows[lane.start + number].first > index:
        return NULL
    return lane.rows[lane.start + number]


def lane_append(lane: pointer[lane_t], level: uint32_t, first: uint64_t, places: uint32_t) -> pointer[row_t]:
    rows: pointer[pointer[row_t]]
    room: uint32_t
    row: pointer[row_t]
    if lane.start + lane.count == lane.room:
        if lane.start > lane.room // 2:
            memmove(lane.rows, lane.rows + lane.start, lane.count * sizeof(p_void))
            lane.start = 0
        else:
            room = lane.room * 2 if lane.room else 4
            rows = cast(pointer[pointer[row_t]], realloc(lane.rows, room * sizeof(p_void)))
            if rows == NULL:
                return NULL
            memory_add(MEMORY_ENTRIES, (room - lane.room) * sizeof(p_void))
            lane.rows = rows
            lane.room = room
    if lane.count:
        row = lane.rows[lane.start + lane.count - 1]
        check(first >= row.first + row.places, b"segments S1 rows of a level rise", first, row.first)
    row = cast(pointer[row_t], calloc(1, sizeof(row_t)))
    if row == NULL:
        return NULL
    memory_add(MEMORY_ENTRIES, sizeof(row_t))
    row.level = level
    row.first = first
    row.places = places
    row.live = places
    lane.rows[lane.start + lane.count] = row
    lane.count += 1
    return row


def lane_remove(lane: pointer[lane_t], row: pointer[row_t]) -> void:
    number: uint32_t = _place(lane, row.first)
    rows: pointer[pointer[row_t]] = lane.rows + lane.start
    check(number < lane.count and rows[number] == row, b"segments S1 the lane knows its row", row.first, lane.count)
    check(row.state & (ROW_LISTED | ROW_WANTED) == 0, b"segments S3 a row on a list stays", row.first, row.state)
    if number < lane.count // 2:
        memmove(rows + 1, rows, number * sizeof(p_void))
        lane.start += 1
    else:
        memmove(rows + number, rows + number + 1, (lane.count - number - 1) * sizeof(p_void))
    lane.count -= 1
    if lane.count == 0:
        lane.start = 0
    memory_add(MEMORY_ENTRIES, -cast(int64_t, sizeof(row_t)))
    free(row)


def lane_free(lane: pointer[lane_t]) -> void:
    i: uint32_t
    for i in range(lane.count):
        free(lane.rows[lane.start + i])
    memory_add(MEMORY_ENTRIES, -cast(int64_t, lane.count * sizeof(row_t) + lane.room * sizeof(p_void)))
    free(lane.rows)
    lane.rows = NULL
    lane.start = lane.count = lane.room = 0


def row_has_ended(row: pointer[row_t], index: uint64_t) -> bint:
    place: uint64_t = index - row.first
    return (row.ended[place >> 6] >> (place & 63)) & 1


def row_end(row: pointer[row_t], index: uint64_t, body_len: uint32_t) -> bint:
    place: uint64_t = index - row.first
    bit: uint64_t = cast(uint64_t, 1) << (place & 63)
    size: uint64_t = cast(uint64_t, body_len) + MESSAGE_OVERHEAD
    if row.ended[place >> 6] & bit:
        return False
    check(row.live > 0, b"segments S2 a message that ends was live", index, row.first)
    row.ended[place >> 6] |= bit
    row.live -= 1
    row.live_size -= min(size, row.live_size)
    return True


def mirror_soil(mirror: pointer[mirror_t], row: pointer[row_t]) -> void:
    row.state |= ROW_DIRTY
    if row.state & (ROW_SETTLED | ROW_LISTED) != ROW_SETTLED:
        return
    row.state |= ROW_LISTED
    row.next_ended = NULL
    if mirror.ended == NULL:
        mirror.ended = row
    else:
        mirror.ended_last.next_ended = row
    mirror.ended_last = row
    mirror.ended_count += 1
