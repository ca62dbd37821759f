"""Heaps of message groups: positions in a group, groups in the order in which they are served (see group_heaps.pxd).

in: positions, groups. out: the lowest. All under message_groups_t.lock.

I1  A group that is in a heap knows its place there.
I2  `positions` is the sum of all groups' heaps.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_store32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.types import group_heap_t, message_group_t, message_groups_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcmp, memcpy

# --- positions of a group -----------------------------------------------------------------------------------------------------


def places_rise(heap: pointer[uint64_t], place: uint32_t) -> void:
    position: uint64_t = heap[place]
    above: uint32_t
    while place:
        above = (place - 1) // 2
        if heap[above] <= position:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = position


def places_sink(heap: pointer[uint64_t], count: uint32_t, place: uint32_t) -> void:
    position: uint64_t = heap[place]
    below: uint32_t = 2 * place + 1
    while below < count:
        if below + 1 < count and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= position:
            break
        heap[place] = heap[below]
        place = below
        below = 2 * place + 1
    heap[place] = position


def group_push(groups: pointer[message_groups_t], group: pointer[message_group_t], position: uint64_t) -> bint:
    heap: pointer[uint64_t]
    room: uint32_t
    if group.count == group.room:
        room = 2 * group.room
        if room <= group.room:
            return False
        heap = cast(pointer[uint64_t], realloc(NULL if group.room == FEW else group.heap, room * sizeof(uint64_t)))
        if heap == NULL:
            return False
        if group.room == FEW:
            memcpy(heap, group.few, FEW * sizeof(uint64_t))
        memory_add(MEMORY_ENTRIES, cast(int64_t, (room - (0 if group.room == FEW else group.room)) * sizeof(uint64_t)))
        group.heap = heap
        group.room = room
    group.heap[group.count] = position
    group.count += 1
    places_rise(group.heap, group.count - 1)
    groups.positions += 1
    return True


def group_drop(groups: pointer[message_groups_t], group: pointer[message_group_t], place: uint32_t) -> void:
    """Takes a position out; a heap that is mostly empty gives its memory back."""
    check(place < group.count and groups.positions > 0, b"group_heaps I2 a position that goes was counted", group.count, groups.positions)
    group.count -= 1
    groups.positions -= 1
    if place < group.count:
        group.heap[place] = group.heap[group.count]
        if place and group.heap[(place - 1) // 2] > group.heap[place]:
            places_rise(group.heap, place)
        else:
            places_sink(group.heap, group.count, place)
    elif group.count == 0 and group.room > FEW:
        free(group.heap)
        memory_add(MEMORY_ENTRIES, -cast(int64_t, group.room * sizeof(uint64_t)))
        group.heap = group.few
        group.room = FEW


# --- heaps of groups ----------------------------------------------------------------------------------------------------------


def group_before(left: pointer[message_group_t], right: pointer[message_group_t]) -> bint:
    order: c_int
    if left.key != NULL and right.key != NULL:
        order = memcmp(left.key, right.key, min(left.key_size, right.key_size))
        if order != 0:
            return order < 0
        if left.key_size != right.key_size:
            return left.key_size < right.key_size
    return left.heap[0] < right.heap[0]


def group_order(heap: pointer[group_heap_t], group: pointer[message_group_t]) -> void:
    """Brings a group of the heap to its place."""
    place: uint32_t = group.place
    other: uint32_t
    while place and group_before(group, heap.groups[(place - 1) // 2]):
        other = (place - 1) // 2
        heap.groups[place] = heap.groups[other]
        heap.groups[place].place = place
        place = other
    if place == group.place:
        other = 2 * place + 1
        while other < heap.count:
            if other + 1 < heap.count and group_before(heap.groups[other + 1], heap.groups[other]):
                other += 1
            if not group_before(heap.groups[other], group):
                break
            heap.groups[place] = heap.groups[other]
            heap.groups[place].place = place
            place = other
            other = 2 * place + 1
    heap.groups[place] = group
    group.place = place


def group_delist(group: pointer[message_group_t]) -> void:
    heap: pointer[group_heap_t] = group.listed
    last: pointer[message_group_t]
    place: uint32_t = group.place
    if heap == NULL:
        return
    check(place < heap.count and heap.groups[place] == group, b"group_heaps I1 a group stands where it says", group.hash, place)
    last = heap.groups[heap.count - 1]
    at_store32(address(heap.count), heap.count - 1)
    group.listed = NULL
    if last != group:
        last.place = place
        heap.groups[place] = last
        group_order(heap, last)


def heap_room(heap: pointer[group_heap_t], most: uint32_t) -> bint:
    groups: pointer[pointer[message_group_t]]
    room: uint32_t
    if most <= heap.room:
        return True
    room = max(2 * heap.room, cast(uint32_t, 8))
    groups = cast(pointer[pointer[message_group_t]], realloc(heap.groups, room * sizeof(pointer[message_group_t])))
    if groups == NULL:
        return False
    memory_add(MEMORY_ENTRIES, cast(int64_t, (room - heap.room) * sizeof(pointer[message_group_t])))
    heap.groups = groups
    heap.room = room
    return True


def heap_empty(heap: pointer[group_heap_t]) -> void:
    free(heap.groups)
    memory_add(MEMORY_ENTRIES, -cast(int64_t, heap.room * sizeof(pointer[message_group_t])))
    heap.groups = NULL
    heap.room = 0
