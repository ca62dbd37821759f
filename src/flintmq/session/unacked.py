"""Unacked deliveries of a channel (see unacked.pxd).

in: tags as deliveries are written. out: the entry behind a tag when its ack arrives.

I1  find, add and remove are O(1); a walk (`multiple`, recover, close) costs O(live + span / 256).
I2  A segment of 256 tags is freed when all in it are settled, so one old unacked delivery can't pin the memory of later ones.
I3  What is removed is live, and every live delivery is counted in its segment and in the map.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.session.types import UNACKED_PER_SEGMENT, unacked_map_t, unacked_segment_t, unacked_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove, memset


def unacked_add(map: pointer[unacked_map_t]) -> pointer[unacked_t]:
    tag: uint64_t = map.last_tag + 1
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    index: uint64_t
    segment: pointer[unacked_segment_t]
    if map.segments == NULL or number - map.first >= map.size:
        if not _make_room(map, number):
            return NULL
    index = number - map.first
    if tag % UNACKED_PER_SEGMENT == 0 and index:
        _retire(map, index - 1)  # was kept while it was being filled
    segment = map.segments[index]
    if segment == NULL:
        segment = map.spare
        map.spare = NULL
        if segment == NULL:
            segment = cast(pointer[unacked_segment_t], calloc(1, sizeof(unacked_segment_t)))
            if segment == NULL:
                return NULL
            memory_add(MEMORY_UNACKED, sizeof(unacked_segment_t))
        map.segments[index] = segment
    segment.live += 1
    map.count += 1
    map.last_tag = tag
    return address(segment.items[tag % UNACKED_PER_SEGMENT])


@cfunc
@nogil
@exceptval(check=False)
def _retire(map: pointer[unacked_map_t], index: uint64_t) -> void:
    """Takes out the segment at `index` of the directory when all in it is settled; one is kept for reuse."""
    segment: pointer[unacked_segment_t] = map.segments[index]
    if segment == NULL or segment.live:
        return
    check(index < map.size, b"unacked I2 a segment that is retired is in the directory", index, map.size)
    map.segments[index] = NULL
    if map.spare == NULL:
        map.spare = segment
    else:
        _free_segment(segment)


@cfunc
@nogil
@exceptval(check=False)
def _free_segment(segment: pointer[unacked_segment_t]) -> void:
    if segment != NULL:
        memory_add(MEMORY_UNACKED, -cast(int64_t, sizeof(unacked_segment_t)))
        free(segment)


@cfunc
@nogil
@exceptval(check=False)
def _make_room(map: pointer[unacked_map_t], number: uint64_t) -> bint:
    """Shifts out segments that are gone at the front, or doubles the directory, until segment `number` has a place."""
    gone: uint32_t = 0
    used: uint32_t
    size: uint32_t
    segments: pointer[pointer[unacked_segment_t]]
    if map.count == 0 and map.segments != NULL:
        # Nothing is live: the current segment (still partly unused) is all that can be there.
        for used in range(map.size):
            _retire(map, used)
        map.first = number
        return True
    while gone < map.size and map.segments[gone] == NULL:
        gone += 1
    if gone and (gone * 2 >= map.size or number - map.first - gone < map.size):
        used = map.size - gone
        memmove(map.segments, map.segments + gone, used * sizeof(pointer[unacked_segment_t]))
        memset(map.segments + used, 0, gone * sizeof(pointer[unacked_segment_t]))
        map.first += gone
        if number - map.first < map.size:
            return True
    size = map.size * 2 if map.size else 4
    while number - map.first >= size:
        size *= 2
    segments = cast(
        pointer[pointer[unacked_segment_t]],
        realloc(map.segments, size * sizeof(pointer[unacked_segment_t])),
    )
    if segments == NULL:
        return False
    memset(segments + map.size, 0, (size - map.size) * sizeof(pointer[unacked_segment_t]))
    if map.size == 0:
        map.first = number
    memory_add(MEMORY_UNACKED, (size - map.size) * sizeof(p_void))
    check(number - map.first < size, b"unacked I1 the directory reaches to the next tag", number, map.first)
    map.segments = segments
    map.size = size
    return True


def unacked_find(map: pointer[unacked_map_t], tag: uint64_t) -> pointer[unacked_t]:
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: pointer[unacked_segment_t]
    item: pointer[unacked_t]
    if tag == 0 or tag > map.last_tag or number < map.first or number - map.first >= map.size:
        return NULL
    segment = map.segments[number - map.first]
    if segment == NULL:
        return NULL
    item = address(segment.items[tag % UNACKED_PER_SEGMENT])
    if item.slot == NULL:
        return NULL
    return item


def unacked_remove(map: pointer[unacked_map_t], tag: uint64_t) -> void:
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: pointer[unacked_segment_t] = map.segments[number - map.first]
    check(segment.items[tag % UNACKED_PER_SEGMENT].slot != NULL, b"unacked I3 a delivery that is removed is live", tag, map.last_tag)
    segment.items[tag % UNACKED_PER_SEGMENT].slot = NULL
    segment.live -= 1
    map.count -= 1
    # The segment that is being filled stays: its next tags come soon.
    if segment.live == 0 and number != map.last_tag // UNACKED_PER_SEGMENT:
        _retire(map, number - map.first)


def unacked_next(map: pointer[unacked_map_t], tag: uint64_t) -> uint64_t:
    number: uint64_t
    index: uint32_t
    segment: pointer[unacked_segment_t]
    if map.count == 0 or map.segments == NULL:
        return 0
    if tag < map.first * UNACKED_PER_SEGMENT:
        tag = map.first * UNACKED_PER_SEGMENT
    while tag <= map.last_tag:
        number = tag // UNACKED_PER_SEGMENT
        if number - map.first >= map.size:
            return 0
        segment = map.segments[number - map.first]
        if segment == NULL or segment.live == 0:
            tag = (number + 1) * UNACKED_PER_SEGMENT
            continue
        index = tag % UNACKED_PER_SEGMENT
        while index < UNACKED_PER_SEGMENT:
            if segment.items[index].slot != NULL:
                return number * UNACKED_PER_SEGMENT + index
            index += 1
        tag = (number + 1) * UNACKED_PER_SEGMENT
    return 0


def unacked_content(item: pointer[unacked_t], message_id: pointer[uint64_t]) -> pointer[content_t]:
    message_id[0] = 0
    if item.queue.ops != NULL:
        return NULL  # its slot is no entry's
    message_id[0] = item.slot.message_id
    return slot_borrow(item.slot, True, NULL)


def unacked_free(map: pointer[unacked_map_t]) -> void:
    i: uint32_t
    for i in range(map.size):
        _free_segment(map.segments[i])
    memory_add(MEMORY_UNACKED, -cast(int64_t, map.size * sizeof(p_void)))
    free(map.segments)
    _free_segment(map.spare)
    memset(map, 0, sizeof(unacked_map_t))
