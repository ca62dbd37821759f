"""Where entries of a level came back below its floor (see spans.pxd).

in: releases, scans that met holes. out: the next place below the floor where something may be available.

I1  Spans are disjoint and rise; `span_count` is 0 exactly when none is left.
I2  Memory is bounded: with SPANS_MAX of them, or without memory, neighbours become one span, or the floor goes back: dearer, never wrong.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_store32, at_store64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.types import level_t, span_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memmove

# Entries between two that came back, so few that walking over them is cheaper than a span of its own.
NEAR = declare(uint64_t, 16)
# Spans of one level: 64 KiB.
SPANS_MAX = declare(uint32_t, 4096)


def span_find(level: pointer[level_t], index: uint64_t) -> uint32_t:
    spans: pointer[span_t] = level.spans + level.span_start
    low: uint32_t = 0
    high: uint32_t = level.span_count
    middle: uint32_t
    while low < high:
        middle = (low + high) >> 1
        if spans[middle].last >= index:
            high = middle
        else:
            low = middle + 1
    return low


@cfunc
@nogil
@exceptval(check=False)
def _merge(level: pointer[level_t]) -> void:
    """Every two neighbours become one."""
    spans: pointer[span_t] = level.spans + level.span_start
    to: uint32_t = 0
    span_index: uint32_t = 0
    while span_index < level.span_count:
        spans[to].first = spans[span_index].first
        spans[to].last = spans[span_index + 1].last if span_index + 1 < level.span_count else spans[span_index].last
        to += 1
        span_index += 2
    at_store32(address(level.span_count), to)


@cfunc
@nogil
@exceptval(check=False)
def _room(level: pointer[level_t]) -> bint:
    """Room for one more at the end; may merge spans, so that numbers found before are void. False: there is none at all."""
    room: uint32_t = level.span_room * 2 if level.span_room else 8
    spans: pointer[span_t] = NULL
    if level.span_start + level.span_count < level.span_room:
        return True
    if level.span_start and (level.span_start > level.span_room // 2 or level.span_room >= SPANS_MAX):
        memmove(level.spans, level.spans + level.span_start, level.span_count * sizeof(span_t))
        level.span_start = 0
        return True
    if room <= SPANS_MAX:
        spans = cast(pointer[span_t], realloc(level.spans, room * sizeof(span_t)))
    if spans != NULL:
        memory_add(MEMORY_ENTRIES, (room - level.span_room) * sizeof(span_t))
        level.spans = spans
        level.span_room = room
        return True
    _merge(level)
    return level.span_start + level.span_count < level.span_room


@cfunc
@nogil
@exceptval(check=False)
def _insert(level: pointer[level_t], first: uint64_t, last: uint64_t) -> bint:
    """A span of its own, or a part of one when there is no room. False: not even that."""
    spans: pointer[span_t]
    span_index: uint32_t
    if not _room(level):
        return False
    span_index = span_find(level, first)
    spans = level.spans + level.span_start
    if span_index < level.span_count and spans[span_index].first <= first:
        if spans[span_index].last < last:  # after a merge only
            spans[span_index].last = last
        return True
    check(
        (span_index == 0 or spans[span_index - 1].last < first) and (span_index == level.span_count or last < spans[span_index].first),
        b"spans I1 a new span stands between its neighbours",
        first,
        last,
    )
    check(
        level.span_start + level.span_count < level.span_room, b"spans I2 there is room for a new span", level.span_count, level.span_room
    )
    memmove(spans + span_index + 1, spans + span_index, (level.span_count - span_index) * sizeof(span_t))
    spans[span_index].first = first
    spans[span_index].last = last
    at_store32(address(level.span_count), level.span_count + 1)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _remove(level: pointer[level_t], span_index: uint32_t) -> void:
    spans: pointer[span_t] = level.spans + level.span_start
    check(span_index < level.span_count, b"spans I1 a removed span was there", span_index, level.span_count)
    if span_index == 0:
        level.span_start += 1
    else:
        memmove(spans + span_index, spans + span_index + 1, (level.span_count - span_index - 1) * sizeof(span_t))
    at_store32(address(level.span_count), level.span_count - 1)
    if level.span_count == 0:
        level.span_start = 0


def spans_free(level: pointer[level_t]) -> void:
    memory_add(MEMORY_ENTRIES, -cast(int64_t, level.span_room * sizeof(span_t)))
    free(level.spans)
    level.spans = NULL
    level.span_room = 0
    level.span_start = 0
    at_store32(address(level.span_count), 0)


def span_add(level: pointer[level_t], index: uint64_t) -> void:
    span_index: uint32_t = span_find(level, index)
    spans: pointer[span_t] = level.spans + level.span_start
    if span_index < level.span_count and spans[span_index].first <= index:
        return
    if span_index > 0 and index - spans[span_index - 1].last <= NEAR:
        spans[span_index - 1].last = index
        if span_index < level.span_count and spans[span_index].first == index + 1:
            spans[span_index - 1].last = spans[span_index].last
            _remove(level, span_index)
    elif span_index < level.span_count and spans[span_index].first - index <= NEAR:
        spans[span_index].first = index
    elif not _insert(level, index, index):
        at_store64(address(level.floor), index)  # no memory: everything from here on is walked


def span_cut(level: pointer[level_t], span_index: uint32_t, first: uint64_t, last: uint64_t) -> void:
    span: pointer[span_t] = level.spans + level.span_start + span_index
    end: uint64_t = span.last
    check(span_index < level.span_count and first <= last, b"spans I1 what is cut lies in a span", first, last)
    if first <= span.first:
        if last >= end:
            _remove(level, span_index)
        else:
            span.first = last + 1
        return
    span.last = first - 1
    if last < end and not _insert(level, last + 1, end):
        span.last = end  # no room to divide it: it stays as it was
