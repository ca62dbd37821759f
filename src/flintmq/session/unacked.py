"""Unacked deliveries of a channel (see unacked.pxd).

in: tags as deliveries are written. out: the entry behind a tag when its ack arrives.

I1  find, add and remove are O(1); a walk (`multiple`, recover, close) costs O(live + span / 256).
I2  A segment of 256 tags is freed when all in it are settled, so one old unacked delivery can't pin the memory of later ones.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.session.types import UNACKED_PER_SEGMENT, unacked_map_t, unacked_segment_t, unacked_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memmove, memset


def unacked_add(map):
    tag: uint64_t = map.last_tag + 1
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    index: uint64_t
    segment: cython.pointer(unacked_segment_t)
    if map.segments == cython.NULL or number - map.first >= map.size:
        if not _make_room(map, number):
            return cython.NULL
    index = number - map.first
    if tag % UNACKED_PER_SEGMENT == 0 and index:
        _retire(map, index - 1)  # was kept while it was being filled
    segment = map.segments[index]
    if segment == cython.NULL:
        segment = map.spare
        map.spare = cython.NULL
        if segment == cython.NULL:
            segment = cython.cast(cython.pointer(unacked_segment_t), calloc(1, cython.sizeof(unacked_segment_t)))
            if segment == cython.NULL:
                return cython.NULL
            memory_add(MEMORY_UNACKED, cython.sizeof(unacked_segment_t))
        map.segments[index] = segment
    segment.live += 1
    map.count += 1
    map.last_tag = tag
    segment.items[tag % UNACKED_PER_SEGMENT].delivered_us = 0
    return cython.address(segment.items[tag % UNACKED_PER_SEGMENT])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _retire(map: cython.pointer(unacked_map_t), index: uint64_t) -> cython.void:
    """Takes out the segment at `index` of the directory when all in it is settled; one is kept for reuse."""
    segment: cython.pointer(unacked_segment_t) = map.segments[index]
    if segment == cython.NULL or segment.live:
        return
    map.segments[index] = cython.NULL
    if map.spare == cython.NULL:
        map.spare = segment
    else:
        _free_segment(segment)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _free_segment(segment: cython.pointer(unacked_segment_t)) -> cython.void:
    if segment != cython.NULL:
        memory_add(MEMORY_UNACKED, -cython.cast(int64_t, cython.sizeof(unacked_segment_t)))
        free(segment)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _make_room(map: cython.pointer(unacked_map_t), number: uint64_t) -> cython.bint:
    """Shifts out segments that are gone at the front, or doubles the directory, until segment `number` has a place."""
    gone: uint32_t = 0
    used: uint32_t
    size: uint32_t
    segments: cython.pointer(cython.pointer(unacked_segment_t))
    if map.count == 0 and map.segments != cython.NULL:
        # Nothing is live: the current segment (still partly unused) is all that can be there.
        for used in range(map.size):
            _retire(map, used)
        map.first = number
        return True
    while gone < map.size and map.segments[gone] == cython.NULL:
        gone += 1
    if gone and (gone * 2 >= map.size or number - map.first - gone < map.size):
        used = map.size - gone
        memmove(map.segments, map.segments + gone, used * cython.sizeof(cython.pointer(unacked_segment_t)))
        memset(map.segments + used, 0, gone * cython.sizeof(cython.pointer(unacked_segment_t)))
        map.first += gone
        if number - map.first < map.size:
            return True
    size = map.size * 2 if map.size else 4
    while number - map.first >= size:
        size *= 2
    segments = cython.cast(
        cython.pointer(cython.pointer(unacked_segment_t)),
        realloc(map.segments, size * cython.sizeof(cython.pointer(unacked_segment_t))),
    )
    if segments == cython.NULL:
        return False
    memset(segments + map.size, 0, (size - map.size) * cython.sizeof(cython.pointer(unacked_segment_t)))
    if map.size == 0:
        map.first = number
    memory_add(MEMORY_UNACKED, (size - map.size) * cython.sizeof(cython.p_void))
    map.segments = segments
    map.size = size
    return True


def unacked_find(map, tag):
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: cython.pointer(unacked_segment_t)
    item: cython.pointer(unacked_t)
    if tag == 0 or tag > map.last_tag or number < map.first or number - map.first >= map.size:
        return cython.NULL
    segment = map.segments[number - map.first]
    if segment == cython.NULL:
        return cython.NULL
    item = cython.address(segment.items[tag % UNACKED_PER_SEGMENT])
    if item.slot == cython.NULL:
        return cython.NULL
    return item


def unacked_remove(map, tag):
    number: uint64_t = tag // UNACKED_PER_SEGMENT
    segment: cython.pointer(unacked_segment_t) = map.segments[number - map.first]
    segment.items[tag % UNACKED_PER_SEGMENT].slot = cython.NULL
    segment.live -= 1
    map.count -= 1
    # The segment that is being filled stays: its next tags come soon.
    if segment.live == 0 and number != map.last_tag // UNACKED_PER_SEGMENT:
        _retire(map, number - map.first)


def unacked_next(map, tag):
    number: uint64_t
    index: uint32_t
    segment: cython.pointer(unacked_segment_t)
    if map.count == 0 or map.segments == cython.NULL:
        return 0
    if tag < map.first * UNACKED_PER_SEGMENT:
        tag = map.first * UNACKED_PER_SEGMENT
    while tag <= map.last_tag:
        number = tag // UNACKED_PER_SEGMENT
        if number - map.first >= map.size:
            return 0
        segment = map.segments[number - map.first]
        if segment == cython.NULL or segment.live == 0:
            tag = (number + 1) * UNACKED_PER_SEGMENT
            continue
        index = tag % UNACKED_PER_SEGMENT
        while index < UNACKED_PER_SEGMENT:
            if segment.items[index].slot != cython.NULL:
                return number * UNACKED_PER_SEGMENT + index
            index += 1
        tag = (number + 1) * UNACKED_PER_SEGMENT
    return 0


def unacked_content(item, message_id):
    message_id[0] = 0
    if item.queue.ops != cython.NULL:
        return cython.NULL  # its slot is no entry's
    message_id[0] = item.slot.message_id
    return slot_borrow(item.slot, True, cython.NULL)


def unacked_free(map):
    i: uint32_t
    for i in range(map.size):
        _free_segment(map.segments[i])
    memory_add(MEMORY_UNACKED, -cython.cast(int64_t, map.size * cython.sizeof(cython.p_void)))
    free(map.segments)
    _free_segment(map.spare)
    memset(map, 0, cython.sizeof(unacked_map_t))
