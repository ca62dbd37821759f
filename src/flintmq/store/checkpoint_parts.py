"""Rows become parts of a checkpoint, records of the index log (see checkpoint_parts.pxd).

in: rows, one after the other. out: Checkpoint-Parts, Index-Runs and the Checkpoint, each live.

R1  Parts are numbered as they stand in the log, and all but the first name the first.
R2  What was appended is in `lsns` or `runs`: who gives the checkpoint up finds all of it there.
R3  Segments of a level that follow each other in a part have one head, and each is written as what differs from the one before.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.store.index_log import index_append_part, index_run_dead, index_run_most
from cython.cimports.flintmq.store.log.record import (
    RECORD_CHECKPOINT, RECORD_CHECKPOINT_PART, RECORD_HEADER, RECORD_INDEX_RUN, align8, set32,
)  # fmt: skip
from cython.cimports.flintmq.store.segment_rows import (
    SEGMENTS_HEAD, SEGMENT_MOST, segment_put, segment_rows_t, segments_begin, segments_put_head,
)  # fmt: skip
from cython.cimports.flintmq.store.vectors import vector_add_number, vector_free, vector_number, vector_t
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc


def parts_free(parts: pointer[parts_t]) -> void:
    i: uint32_t
    for i in range(PART_KINDS):
        free(parts.kinds[i].bytes)
        parts.kinds[i].bytes = NULL
        parts.kinds[i].room = 0
    vector_free(address(parts.lsns))
    vector_free(address(parts.runs))


@cfunc
@nogil
@exceptval(check=False)
def _append(
    parts: pointer[parts_t],
    lsns: pointer[vector_t],
    kind: uint8_t,
    first: uint64_t,
    bytes: pointer[cython.const[uint8_t]],
    length: uint32_t,
) -> uint64_t:
    """Appends a record (R2). Returns its LSN; 0: given up."""
    lsn: uint64_t
    if length > index_run_most(parts.index):
        return 0
    while True:
        lsn = index_append_part(parts.index, kind, first, bytes, length)
        if lsn:
            break
        if not parts.wait(parts.owner):
            return 0
    if not vector_add_number(lsns, lsn):
        index_run_dead(parts.index, lsn)
        return 0
    parts.bytes += align8(RECORD_HEADER + length)
    return lsn


def parts_flush(parts: pointer[parts_t], kind: uint32_t) -> bint:
    rows: pointer[rows_t] = address(parts.kinds[kind])
    first: uint64_t = vector_number(address(parts.lsns), 0) if parts.lsns.count else 0
    if rows.count == 0:
        return True
    check(rows.used <= rows.room, b"checkpoint_parts R1 rows lie in their part", rows.used, rows.room)
    set32(rows.bytes, kind)
    set32(rows.bytes + 4, cast(uint32_t, parts.lsns.count))
    set32(rows.bytes + 8, rows.count)
    set32(rows.bytes + 12, 0)
    if kind == PART_SEGMENTS:
        parts.open_segments = 0
    if _append(parts, address(parts.lsns), RECORD_CHECKPOINT_PART, first, rows.bytes, rows.used) == 0:
        return False
    rows.used = PART_HEAD
    rows.count = 0
    return True


def parts_row(parts: pointer[parts_t], kind: uint32_t, size: uint64_t) -> pointer[uint8_t]:
    rows: pointer[rows_t] = address(parts.kinds[kind])
    need: uint64_t = PART_HEAD + size
    grown: pointer[uint8_t]
    if need > index_run_most(parts.index):
        return NULL
    if rows.count and rows.used + size > parts.most and not parts_flush(parts, kind):
        return NULL
    if need < parts.most:
        need = parts.most
    if need > rows.room:
        grown = cast(pointer[uint8_t], realloc(rows.bytes, need))
        if grown == NULL:
            return NULL
        rows.bytes = grown
        rows.room = cast(uint32_t, need)
    if rows.count == 0:
        rows.used = PART_HEAD
    grown = rows.bytes + rows.used
    rows.used += cast(uint32_t, size)
    rows.count += 1
    return grown


def parts_segment(parts: pointer[parts_t], queue_id: uint64_t, level: uint32_t, facts: pointer[cython.const[shell_t]]) -> bint:
    rows: pointer[rows_t] = address(parts.kinds[PART_SEGMENTS])
    segments: pointer[segment_rows_t] = address(parts.segments)
    head: pointer[uint8_t]
    check(facts.run % 8 == 0, b"checkpoint_parts R3 a run begins where a record may", facts.run, facts.base)
    if parts.open_segments == 0 or segments.queue_id != queue_id or segments.level != level or rows.used + SEGMENT_MOST > parts.most:
        head = parts_row(parts, PART_SEGMENTS, SEGMENTS_HEAD + SEGMENT_MOST)
        if head == NULL:
            return False
        rows.used -= SEGMENT_MOST
        parts.open_segments = cast(uint32_t, head - rows.bytes)
        segments_begin(segments, queue_id, level)
    rows.used += segment_put(segments, facts, rows.bytes + rows.used)
    segments_put_head(segments, rows.bytes + parts.open_segments)
    return True


def parts_run(parts: pointer[parts_t], bytes: pointer[cython.const[uint8_t]], length: uint32_t) -> uint64_t:
    return _append(parts, address(parts.runs), RECORD_INDEX_RUN, 0, bytes, length)


def parts_end(parts: pointer[parts_t], bytes: pointer[cython.const[uint8_t]], length: uint32_t) -> uint64_t:
    lsn: uint64_t = 0
    if parts.lsns.count:
        lsn = _append(parts, address(parts.lsns), RECORD_CHECKPOINT, vector_number(address(parts.lsns), 0), bytes, length)
    return lsn + RECORD_HEADER + length if lsn else 0
