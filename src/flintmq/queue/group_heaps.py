"""Heaps of message groups: positions in a group, groups in the order in which they are served (see group_heaps.pxd).

in: positions, groups. out: the lowest. All under message_groups_t.lock.

I1  A group that is in a heap knows its place there, or its line.
I2  `positions` is the sum of all groups' heaps.
I3  A line has groups in their order. Its first and last order are those of its first and last group.
I4  The heap has room for all groups of it and of its lines.

Groups come mostly in their order: new ones do, and those that each consumer gives back. So there are lines (the runs of patience sorting):
a group that comes after the last one of a line goes to its end, and only what comes before the ends of all lines goes to the heap. A line
costs the same with 10 groups and with 100,000. A heap of so many groups costs 17 steps, each with memory that is not in the caches.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_store32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.types import GROUP_LINES, NO_LINE, group_heap_t, group_place_t, message_group_t, message_groups_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcmp, memcpy

# order of no group
GROUP_NEVER = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)

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


@cfunc
@nogil
@exceptval(check=False)
def _order(group: pointer[message_group_t]) -> uint64_t:
    """What comes first has the lower one. Of sorted values the first octets: those that are equal there are compared as a whole."""
    order: uint64_t = 0
    i: uint32_t
    if group.key == NULL:
        return group.heap[0]
    for i in range(min(group.key_size, cast(uint32_t, 8))):
        order |= cast(uint64_t, group.key[i]) << (56 - 8 * i)
    return order


def group_before(left: pointer[message_group_t], right: pointer[message_group_t]) -> bint:
    order: c_int
    if left.key != NULL and right.key != NULL:
        order = memcmp(left.key, right.key, min(left.key_size, right.key_size))
        if order != 0:
            return order < 0
        if left.key_size != right.key_size:
            return left.key_size < right.key_size
    return left.heap[0] < right.heap[0]


@cfunc
@nogil
@exceptval(check=False)
def _before(left: pointer[group_place_t], right: pointer[group_place_t]) -> bint:
    if left.order != right.order:
        return left.order < right.order
    return left.group.key != NULL and group_before(left.group, right.group)


@cfunc
@nogil
@exceptval(check=False)
def _settle_place(heap: pointer[group_heap_t], place: uint32_t) -> void:
    """The group in this place of the heap goes up or down to where it belongs."""
    places: pointer[group_place_t] = heap.heap
    moved: group_place_t = places[place]
    start: uint32_t = place
    other: uint32_t
    while place and _before(address(moved), places + (place - 1) // 2):
        other = (place - 1) // 2
        places[place] = places[other]
        places[place].group.place = place
        place = other
    if place == start:
        other = 2 * place + 1
        while other < heap.heaped:
            if other + 1 < heap.heaped and _before(places + other + 1, places + other):
                other += 1
            if not _before(places + other, address(moved)):
                break
            places[place] = places[other]
            places[place].group.place = place
            place = other
            other = 2 * place + 1
    places[place] = moved
    moved.group.place = place


@cfunc
@nogil
@exceptval(check=False)
def _to_line(heap: pointer[group_heap_t], group: pointer[message_group_t]) -> bint:
    """Puts the group behind the line that ends nearest before it, or begins one. False: every line ends behind it."""
    best: uint32_t = GROUP_LINES
    empty: uint32_t = GROUP_LINES
    i: uint32_t
    for i in range(heap.lines):
        if heap.heads[i] == NULL:
            empty = i
        elif heap.lasts[i] <= group.order and (best == GROUP_LINES or heap.lasts[i] > heap.lasts[best]):
            best = i
    if best == GROUP_LINES:
        best = empty
        if best == GROUP_LINES:
            if heap.lines == GROUP_LINES:
                return False
            best = heap.lines
            heap.lines += 1
        heap.heads[best] = group
        heap.firsts[best] = group.order
        group.line_previous = NULL
    else:
        heap.tails[best].line_next = group
        group.line_previous = heap.tails[best]
    heap.tails[best] = group
    heap.lasts[best] = group.order
    group.line_next = NULL
    group.line = cast(uint8_t, best)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _from_line(heap: pointer[group_heap_t], group: pointer[message_group_t]) -> void:
    line: uint8_t = group.line
    check(line < heap.lines and heap.heads[line] != NULL, b"group_heaps I3 a group stands in the line that it says", group.hash, line)
    if group.line_previous != NULL:
        group.line_previous.line_next = group.line_next
    else:
        heap.heads[line] = group.line_next
        heap.firsts[line] = GROUP_NEVER if group.line_next == NULL else group.line_next.order
    if group.line_next != NULL:
        group.line_next.line_previous = group.line_previous
    else:
        heap.tails[line] = group.line_previous
        if group.line_previous != NULL:
            heap.lasts[line] = group.line_previous.order
    while heap.lines and heap.heads[heap.lines - 1] == NULL:
        heap.lines -= 1


def heap_top(heap: pointer[group_heap_t]) -> pointer[message_group_t]:
    top: pointer[message_group_t] = NULL
    order: uint64_t = GROUP_NEVER
    i: uint32_t
    if heap.heaped:
        top = heap.heap[0].group
        order = heap.heap[0].order
    for i in range(heap.lines):
        if heap.firsts[i] < order:
            order = heap.firsts[i]
            top = heap.heads[i]
    return top


def group_list(heap: pointer[group_heap_t], group: pointer[message_group_t]) -> void:
    order: uint64_t
    if heap == NULL:
        group_delist(group)
        return
    order = _order(group)
    if group.listed == heap:
        if group.key != NULL:
            _settle_place(heap, group.place)
            return
        if group.order == order:
            return
    group_delist(group)
    group.listed = heap
    group.order = order
    at_store32(address(heap.count), heap.count + 1)
    if group.key == NULL and _to_line(heap, group):
        return
    check(heap.heaped < heap.room, b"group_heaps I4 there is room for each group", heap.heaped, heap.room)
    group.line = NO_LINE
    heap.heap[heap.heaped].order = order
    heap.heap[heap.heaped].group = group
    heap.heaped += 1
    _settle_place(heap, heap.heaped - 1)


def group_delist(group: pointer[message_group_t]) -> void:
    heap: pointer[group_heap_t] = group.listed
    place: uint32_t = group.place
    if heap == NULL:
        return
    group.listed = NULL
    at_store32(address(heap.count), heap.count - 1)
    if group.line != NO_LINE:
        _from_line(heap, group)
        return
    check(place < heap.heaped and heap.heap[place].group == group, b"group_heaps I1 a group stands where it says", group.hash, place)
    heap.heaped -= 1
    if place < heap.heaped:
        heap.heap[place] = heap.heap[heap.heaped]
        _settle_place(heap, place)


def heap_room(heap: pointer[group_heap_t], most: uint32_t) -> bint:
    places: pointer[group_place_t]
    room: uint32_t
    if most <= heap.room:
        return True
    room = max(2 * heap.room, cast(uint32_t, 8))
    places = cast(pointer[group_place_t], realloc(heap.heap, room * sizeof(group_place_t)))
    if places == NULL:
        return False
    memory_add(MEMORY_ENTRIES, cast(int64_t, (room - heap.room) * sizeof(group_place_t)))
    heap.heap = places
    heap.room = room
    return True


def heap_empty(heap: pointer[group_heap_t]) -> void:
    free(heap.heap)
    memory_add(MEMORY_ENTRIES, -cast(int64_t, heap.room * sizeof(group_place_t)))
    heap.heap = NULL
    heap.room = 0
