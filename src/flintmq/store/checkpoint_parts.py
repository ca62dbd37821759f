"""Rows become parts of a checkpoint, records of the index log (see checkpoint_parts.pxd).

in: rows, one after the other. out: Checkpoint-Parts, Index-Runs and the Checkpoint, each live.

R1  Parts are numbered as they stand in the log, and all but the first name the first.
R2  What was appended is in `lsns` or `runs`: who gives the checkpoint up finds all of it there.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.store.index_log import index_append_part, index_run_dead, index_run_most
from cython.cimports.flintmq.store.log.record import (
    RECORD_CHECKPOINT, RECORD_CHECKPOINT_PART, RECORD_HEADER, RECORD_INDEX_RUN, align8, le32, le64, set32, set64,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc

# bytes in front of the rows of a part; of the head of a row of segments, of one segment
PART_HEAD = declare(uint32_t, 16)
SEGMENTS_HEAD = declare(uint32_t, 16)
SEGMENT = declare(uint32_t, 56)


def lsns_add(lsns: pointer[lsns_t], lsn: uint64_t) -> bint:
    room: uint32_t
    values: pointer[uint64_t]
    if lsns.count == lsns.room:
        room = lsns.room * 2 if lsns.room else 64
        values = cast(pointer[uint64_t], realloc(lsns.values, room * sizeof(uint64_t)))
        if values == NULL:
            return False
        lsns.values = values
        lsns.room = room
    lsns.values[lsns.count] = lsn
    lsns.count += 1
    return True


def lsns_free(lsns: pointer[lsns_t]) -> void:
    free(lsns.values)
    lsns.values = NULL
    lsns.count = 0
    lsns.room = 0


def parts_free(parts: pointer[parts_t]) -> void:
    i: uint32_t
    for i in range(PART_KINDS):
        free(parts.kinds[i].bytes)
        parts.kinds[i].bytes = NULL
        parts.kinds[i].room = 0
    lsns_free(address(parts.lsns))
    lsns_free(address(parts.runs))


@cfunc
@nogil
@exceptval(check=False)
def _append(
    parts: pointer[parts_t], lsns: pointer[lsns_t], kind: uint8_t, first: uint64_t, bytes: pointer[cython.const[uint8_t]], length: uint32_t
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
    if not lsns_add(lsns, lsn):
        index_run_dead(parts.index, lsn)
        return 0
    parts.bytes += align8(RECORD_HEADER + length)
    return lsn


def parts_flush(parts: pointer[parts_t], kind: uint32_t) -> bint:
    rows: pointer[rows_t] = address(parts.kinds[kind])
    first: uint64_t = parts.lsns.values[0] if parts.lsns.count else 0
    if rows.count == 0:
        return True
    check(rows.used <= rows.room, b"checkpoint_parts R1 rows lie in their part", rows.used, rows.room)
    set32(rows.bytes, kind)
    set32(rows.bytes + 4, parts.lsns.count)
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
    head: pointer[uint8_t] = rows.bytes + parts.open_segments
    row: pointer[uint8_t]
    if parts.open_segments and le64(head) == queue_id and le32(head + 8) == level and rows.used + SEGMENT <= parts.most:
        row = rows.bytes + rows.used
        rows.used += SEGMENT
        set32(head + 12, le32(head + 12) + 1)
    else:
        head = parts_row(parts, PART_SEGMENTS, SEGMENTS_HEAD + SEGMENT)
        if head == NULL:
            return False
        parts.open_segments = cast(uint32_t, head - rows.bytes)
        set64(head, queue_id)
        set32(head + 8, level)
        set32(head + 12, 1)
        row = head + SEGMENTS_HEAD
    set64(row, facts.base)
    set32(row + 8, facts.count)
    set32(row + 12, facts.live)
    set64(row + 16, facts.bytes)
    set32(row + 24, facts.redelivered)
    set32(row + 28, facts.spilled)
    set64(row + 32, cast(uint64_t, facts.expiry_min))
    set64(row + 40, facts.flagged_upto)
    set64(row + 48, facts.run)
    return True


def parts_run(parts: pointer[parts_t], bytes: pointer[cython.const[uint8_t]], length: uint32_t) -> uint64_t:
    return _append(parts, address(parts.runs), RECORD_INDEX_RUN, 0, bytes, length)


def parts_end(parts: pointer[parts_t], bytes: pointer[cython.const[uint8_t]], length: uint32_t) -> uint64_t:
    lsn: uint64_t = 0
    if parts.lsns.count:
        lsn = _append(parts, address(parts.lsns), RECORD_CHECKPOINT, parts.lsns.values[0], bytes, length)
    return lsn + RECORD_HEADER + length if lsn else 0
