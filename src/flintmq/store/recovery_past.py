"""What of a checkpoint's runs a start puts back (see recovery_past.pxd).

in: a work_t whose log was read to its end. out: facts of segments, entries of those that do not come back as they stand in their runs.

R1  A segment about which nothing else tells comes back as a shell, and its run is not read.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.hash64 import map64_get
from cython.cimports.flintmq.queue.restoring import restored_mark_range
from cython.cimports.flintmq.queue.types import INDEX_MASK, MESSAGE_SPILLED_BIT, RESTORED_LISTED, RESTORED_REDELIVERED, restored_t
from cython.cimports.flintmq.store.past import (
    past_ended, past_entry, past_first, past_gone, past_owner, past_owner_at, past_owner_t, past_place, past_run, past_segment,
    past_segment_t, past_t, past_where,
)  # fmt: skip
from cython.cimports.flintmq.store.recovery_read import work_purged
from cython.cimports.flintmq.store.recovery_work import LEVEL_SHIFT, queue_at, queue_info_t, range_t, work_mark_at, work_segment, work_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


@cfunc
@nogil
@exceptval(check=False)
def _number(work: pointer[work_t], queue_id: uint64_t) -> int64_t:
    """Number of the queue's queue_info_t; -1: none."""
    number: uint64_t = 0
    return cast(int64_t, number) if map64_get(address(work.queue_index), queue_id + 1, address(number)) else -1


@cfunc
@nogil
@exceptval(check=False)
def _purge(past: pointer[past_t], owner: uint32_t, span: pointer[range_t]) -> void:
    """A purge of a run of positions."""
    queue: pointer[past_owner_t] = past_owner_at(past, owner)
    number: uint64_t = past_place(past, owner, span.first)
    segment: pointer[past_segment_t]
    while number < queue.first + queue.count:
        segment = past_segment(past, number)
        if past_first(segment) > span.last:
            return
        if span.first <= past_first(segment) and past_first(segment) + segment.count - 1 <= span.last:
            segment.purged = True
        else:
            segment.touched = True
        number += 1


@cfunc
@nogil
@exceptval(check=False)
def _flag(past: pointer[past_t], owner: uint32_t, span: pointer[range_t]) -> void:
    """A run of positions whose entries were delivered before."""
    queue: pointer[past_owner_t] = past_owner_at(past, owner)
    number: uint64_t = past_place(past, owner, span.first)
    segment: pointer[past_segment_t]
    upto: uint64_t
    while number < queue.first + queue.count:
        segment = past_segment(past, number)
        if past_first(segment) > span.last:
            return
        if span.first <= past_first(segment):
            upto = min(span.last, past_first(segment) + segment.count - 1) & INDEX_MASK
            if segment.flagged_upto < upto:
                segment.flagged_upto = upto
        else:
            segment.touched = True
        number += 1


def past_judge(work: pointer[work_t], unclean: bint) -> void:
    past: pointer[past_t] = work.past
    i: uint64_t
    j: uint64_t
    queue: int64_t
    upto: uint64_t
    info: pointer[queue_info_t]
    segment: pointer[past_segment_t]
    for i in range(work.queues.count):
        info = queue_at(work, cast(uint32_t, i))
        if info.past == 0:
            continue
        for j in range(info.purges, info.purges + info.purge_count):
            _purge(past, info.past - 1, cast(pointer[range_t], work.purges.data) + j)
        for j in range(info.spans, info.spans + info.span_count):
            _flag(past, info.past - 1, cast(pointer[range_t], work.ranges.data) + j)
    for i in range(past.segments.count if unclean else 0):
        segment = past_segment(past, i)
        queue = _number(work, past_owner_at(past, segment.owner).id)
        upto = min(segment.base + segment.count - 1, work_mark_at(work, cast(uint32_t, queue), segment.level))
        if upto >= segment.base and segment.flagged_upto < upto:
            segment.flagged_upto = upto


def past_lowest(work: pointer[work_t], queue_id: uint64_t, level: uint32_t) -> uint64_t:
    owner: int64_t = past_owner(work.past, queue_id)
    number: uint64_t
    segment: pointer[past_segment_t]
    if owner < 0:
        return 0
    number = past_place(work.past, cast(uint32_t, owner), cast(uint64_t, level) << LEVEL_SHIFT)
    if number == past_owner_at(work.past, owner).first + past_owner_at(work.past, owner).count:
        return 0
    segment = past_segment(work.past, number)
    return segment.base if segment.level == level else 0


def past_flagged(work: pointer[work_t], queue_id: uint64_t, level: uint32_t) -> uint64_t:
    owner: int64_t = past_owner(work.past, queue_id)
    i: uint64_t
    upto: uint64_t = 0
    segment: pointer[past_segment_t]
    if owner < 0:
        return 0
    for i in range(past_owner_at(work.past, owner).first, past_owner_at(work.past, owner).first + past_owner_at(work.past, owner).count):
        segment = past_segment(work.past, i)
        if segment.level == level:
            upto = max(upto, segment.base + segment.count - 1 if segment.redelivered or segment.touched else segment.flagged_upto)
    return upto


def past_left(work: pointer[work_t], info: pointer[queue_info_t]) -> uint64_t:
    owner: pointer[past_owner_t]
    segment: pointer[past_segment_t]
    count: uint64_t = 0
    i: uint64_t
    if info.past == 0:
        return 0
    owner = past_owner_at(work.past, info.past - 1)
    for i in range(owner.first, owner.first + owner.count):
        segment = past_segment(work.past, i)
        if not segment.taken and not segment.purged and segment.live > segment.ended_count:
            count += segment.live - segment.ended_count
    return count


def past_standing(
    work: pointer[work_t],
    segment: pointer[past_segment_t],
    out: pointer[restored_t],
    purged: pointer[restored_t],
    ended: pointer[uint32_t],
) -> c_int:
    queue: int64_t = _number(work, past_owner_at(work.past, segment.owner).id)
    info: pointer[queue_info_t]
    spans: pointer[range_t]
    entries: pointer[restored_t]
    count: uint32_t = 0
    kept: uint32_t = 0
    i: uint64_t
    ended[0] = 0
    if queue < 0:
        return 0
    entries = past_run(work.past, segment, address(count))
    if entries == NULL:
        return -1
    for i in range(count):
        if not _is_alone(segment, entries + i):
            continue
        if work_purged(work, cast(uint32_t, queue), entries[i].position):
            if purged != NULL:
                purged[ended[0]] = entries[i]
                ended[0] += 1
            else:
                past_gone(work.past, past_where(work.past, entries[i].message_id))
            continue
        out[kept] = entries[i]
        # How often they came back is told by notes.
        out[kept].flags &= RESTORED_REDELIVERED
        if entries[i].position & INDEX_MASK <= segment.flagged_upto:
            out[kept].flags |= RESTORED_REDELIVERED
        kept += 1
    info = queue_at(work, cast(uint32_t, queue))
    spans = cast(pointer[range_t], work.ranges.data) + info.spans
    for i in range(info.span_count):
        if spans[i].last >= past_first(segment) and spans[i].first < past_first(segment) + segment.count:
            restored_mark_range(out, kept, spans[i].first, spans[i].last)
    return cast(c_int, kept)


@cfunc
@nogil
@exceptval(check=False)
def _is_alone(segment: pointer[past_segment_t], entry: pointer[cython.const[restored_t]]) -> bint:
    """Whether nothing but the run tells of the entry."""
    return not (entry.message_id >> MESSAGE_SPILLED_BIT or entry.flags & RESTORED_LISTED or past_ended(segment, entry.position))


def past_alone(work: pointer[work_t], segment: pointer[past_segment_t], out: pointer[restored_t]) -> c_int:
    count: uint32_t = 0
    kept: c_int = 0
    i: uint32_t
    entries: pointer[restored_t] = past_run(work.past, segment, address(count))
    if entries == NULL:
        return -1
    for i in range(count):
        if _is_alone(segment, entries + i):
            out[kept] = entries[i]
            kept += 1
    return kept


def past_stands(work: pointer[work_t], queue_id: uint64_t, position: uint64_t) -> bint:
    queue: int64_t = _number(work, queue_id)
    segment: pointer[past_segment_t] = work_segment(work, cast(uint32_t, queue), position) if queue >= 0 else NULL
    entry: pointer[cython.const[restored_t]]
    if segment == NULL or segment.purged or work_purged(work, cast(uint32_t, queue), position):
        return False
    entry = past_entry(work.past, segment, position)
    return entry != NULL and _is_alone(segment, entry)
