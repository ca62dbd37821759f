"""Open offsets of a group, in a sorted run with gaps (see open_list.pxd).

in: deliveries, acks, returns. out: what is to be delivered again, and the base below which all is done.

I1  items[start .. end) ascend by offset; the first and the last of them are not DONE.
I2  count, held, ready, delayed, dead are exact; ready_low and due_low are lower bounds.
I3  The array has room for at most twice what was open at once (64 at least): gaps are squeezed out when half of it is gaps, which the
    acks that made them pay for.
"""

from __future__ import annotations

from cython import NULL, address, cast, cfunc, declare, exceptval, inline, nogil, pointer, size_t, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.streams.types import OPEN_DEAD, OPEN_DELAYED, OPEN_DONE, OPEN_HELD, OPEN_READY, open_list_t, open_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset

FIRST_ROOM = declare(uint32_t, 64)


@cfunc
@nogil
@exceptval(check=False)
def _squeeze(opens: pointer[open_list_t], into: pointer[open_t]) -> void:
    """Moves what is not DONE, in order, to the start of `into` (which may be the array itself)."""
    i: uint32_t
    kept: uint32_t = 0
    for i in range(opens.start, opens.end):
        if opens.items[i].state != OPEN_DONE:
            if into != opens.items or i != kept:
                into[kept] = opens.items[i]
            kept += 1
    check(kept == opens.count, b"open_list I2 what is open is counted", kept, opens.count)
    opens.start = 0
    opens.end = kept


def open_push(opens: pointer[open_list_t], offset: uint64_t) -> pointer[open_t]:
    fresh: pointer[open_t]
    item: pointer[open_t]
    room: uint32_t
    if opens.end == opens.room:
        if opens.count <= opens.room // 2 and opens.room:
            _squeeze(opens, opens.items)
        else:
            room = opens.room * 2 if opens.room else FIRST_ROOM
            fresh = cast(pointer[open_t], malloc(cast(size_t, room) * sizeof(open_t)))
            if fresh == NULL:
                return NULL
            if opens.items != NULL:
                _squeeze(opens, fresh)
                free(opens.items)
            memory_add(MEMORY_STREAMS, (room - opens.room) * sizeof(open_t))
            opens.items = fresh
            opens.room = room
    check(
        opens.end == opens.start or opens.items[opens.end - 1].offset < offset,
        b"open_list I1 offsets ascend",
        offset,
        opens.end,
    )
    check(opens.end < opens.room, b"open_list I3 there is room for an offset", opens.end, opens.room)
    item = address(opens.items[opens.end])
    memset(item, 0, sizeof(open_t))
    item.offset = offset
    item.state = OPEN_HELD
    opens.end += 1
    opens.count += 1
    opens.held += 1
    return item


def open_find(opens: pointer[open_list_t], offset: uint64_t) -> pointer[open_t]:
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
        return NULL
    return address(opens.items[low])


@cfunc
@inline
@nogil
@exceptval(check=False)
def _count(opens: pointer[open_list_t], state: uint8_t, change: uint32_t) -> void:
    if state == OPEN_HELD:
        opens.held += change
    elif state == OPEN_READY:
        opens.ready += change
    elif state == OPEN_DELAYED:
        opens.delayed += change
    elif state == OPEN_DEAD:
        opens.dead += change


def open_become(opens: pointer[open_list_t], item: pointer[open_t], state: uint8_t, due_ms: int64_t) -> void:
    check(opens.count > 0 and item.state != OPEN_DONE, b"open_list I2 what is done is not open again", item.offset, item.state)
    _count(opens, item.state, ~cast(uint32_t, 0))  # minus one
    _count(opens, state, 1)
    check(
        opens.held + opens.ready + opens.delayed + opens.dead + (1 if state == OPEN_DONE else 0) == opens.count,
        b"open_list I2 each open offset is counted in its state",
        item.offset,
        opens.count,
    )
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


@cfunc
@nogil
@exceptval(check=False)
def _at_or_above(opens: pointer[open_list_t], offset: uint64_t) -> uint32_t:
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


def open_first_ready(opens: pointer[open_list_t]) -> pointer[open_t]:
    i: uint32_t
    if opens.ready == 0:
        return NULL
    i = _at_or_above(opens, opens.ready_low)
    while i < opens.end:
        if opens.items[i].state == OPEN_READY:
            opens.ready_low = opens.items[i].offset
            return address(opens.items[i])
        i += 1
    check(opens.ready == 0, b"open_list I2 no ready offset is below the bound", opens.ready, opens.ready_low)
    return NULL


def open_cut(opens: pointer[open_list_t], offset: uint64_t) -> void:
    while opens.start < opens.end and opens.items[opens.end - 1].offset >= offset:
        open_become(opens, address(opens.items[opens.end - 1]), OPEN_DONE, 0)


def open_base(opens: pointer[open_list_t], next: uint64_t) -> uint64_t:
    return opens.items[opens.start].offset if opens.start < opens.end else next


def open_free(opens: pointer[open_list_t]) -> void:
    memory_add(MEMORY_STREAMS, -cast(int64_t, opens.room * sizeof(open_t)))
    free(opens.items)
    memset(opens, 0, sizeof(open_list_t))
