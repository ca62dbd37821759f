"""Open offsets of a group, in a sorted run with gaps (see open_list.pxd).

in: deliveries, acks, returns. out: what is to be delivered again, and the base below which all is done.

I1  items[start .. end) ascend by offset; the first and the last of them are not DONE.
I2  count, held, ready, delayed, dead are exact; ready_low and due_low are lower bounds.
I3  The array has room for at most twice what was open at once (64 at least): gaps are squeezed out when half of it is gaps, which the
    acks that made them pay for.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.streams.types import OPEN_DEAD, OPEN_DELAYED, OPEN_DONE, OPEN_HELD, OPEN_READY, open_list_t, open_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset

FIRST_ROOM = cython.declare(uint32_t, 64)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _squeeze(opens: cython.pointer(open_list_t), into: cython.pointer(open_t)) -> cython.void:
    """Moves what is not DONE, in order, to the start of `into` (which may be the array itself)."""
    i: uint32_t
    kept: uint32_t = 0
    for i in range(opens.start, opens.end):
        if opens.items[i].state != OPEN_DONE:
            if into != opens.items or i != kept:
                into[kept] = opens.items[i]
            kept += 1
    opens.start = 0
    opens.end = kept


def open_push(opens, offset):
    fresh: cython.pointer(open_t)
    item: cython.pointer(open_t)
    room: uint32_t
    if opens.end == opens.room:
        if opens.count <= opens.room // 2 and opens.room:
            _squeeze(opens, opens.items)
        else:
            room = opens.room * 2 if opens.room else FIRST_ROOM
            fresh = cython.cast(cython.pointer(open_t), malloc(cython.cast(cython.size_t, room) * cython.sizeof(open_t)))
            if fresh == cython.NULL:
                return cython.NULL
            if opens.items != cython.NULL:
                _squeeze(opens, fresh)
                free(opens.items)
            memory_add(MEMORY_STREAMS, (room - opens.room) * cython.sizeof(open_t))
            opens.items = fresh
            opens.room = room
    item = cython.address(opens.items[opens.end])
    memset(item, 0, cython.sizeof(open_t))
    item.offset = offset
    item.state = OPEN_HELD
    opens.end += 1
    opens.count += 1
    opens.held += 1
    return item


def open_find(opens, offset):
    low: uint32_t = opens.start
    high: uint32_t = opens.end
    middle: uint32_t
    while low < high:
        middle = low + (high - low) // 2
        if opens.items[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    if low == opens.end or opens.items[low].offset != offset or opens.items[low].state == OPEN_DONE:
        return cython.NULL
    return cython.address(opens.items[low])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _count(opens: cython.pointer(open_list_t), state: uint8_t, change: uint32_t) -> cython.void:
    if state == OPEN_HELD:
        opens.held += change
    elif state == OPEN_READY:
        opens.ready += change
    elif state == OPEN_DELAYED:
        opens.delayed += change
    elif state == OPEN_DEAD:
        opens.dead += change


def open_become(opens, item, state, due_ms):
    _count(opens, item.state, ~cython.cast(uint32_t, 0))  # minus one
    _count(opens, state, 1)
    item.state = state
    item.due_ms = due_ms
    if state == OPEN_READY and (opens.ready == 1 or item.offset < opens.ready_low):
        opens.ready_low = item.offset
    if due_ms and (opens.due_low == 0 or due_ms < opens.due_low):
        opens.due_low = due_ms
    if state != OPEN_DONE:
        return
    opens.count -= 1
    while opens.start < opens.end and opens.items[opens.start].state == OPEN_DONE:
        opens.start += 1
    while opens.start < opens.end and opens.items[opens.end - 1].state == OPEN_DONE:
        opens.end -= 1
    if opens.start == opens.end:
        opens.start = 0
        opens.end = 0
        opens.due_low = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _at_or_above(opens: cython.pointer(open_list_t), offset: uint64_t) -> uint32_t:
    low: uint32_t = opens.start
    high: uint32_t = opens.end
    middle: uint32_t
    while low < high:
        middle = low + (high - low) // 2
        if opens.items[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def open_first_ready(opens):
    i: uint32_t
    if opens.ready == 0:
        return cython.NULL
    i = _at_or_above(opens, opens.ready_low)
    while i < opens.end:
        if opens.items[i].state == OPEN_READY:
            opens.ready_low = opens.items[i].offset
            return cython.address(opens.items[i])
        i += 1
    return cython.NULL


def open_base(opens, next):
    return opens.items[opens.start].offset if opens.start < opens.end else next


def open_free(opens):
    memory_add(MEMORY_STREAMS, -cython.cast(int64_t, opens.room * cython.sizeof(open_t)))
    free(opens.items)
    memset(opens, 0, cython.sizeof(open_list_t))
