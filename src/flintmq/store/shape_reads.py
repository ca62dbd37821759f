"""Message-Shapes that were read lately (see shape_reads.pxd).

in: records of Message-Shapes. out: the same, by LSN. An LSN is given once, so that what is kept never becomes wrong.
"""

from __future__ import annotations

from cython import NULL, address, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.flintmq.store.log.record import record_t, shape_head, shape_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy

SPREAD = declare(uint64_t, 0x1E3779B97F4A7C15)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _first(lsn: uint64_t) -> uint32_t:
    """The first place that a shape may have. Records stand at multiples of 8; a large odd number spreads neighbours."""
    return cast(uint32_t, (((lsn >> 3) * SPREAD) >> 32) % (SHAPE_READS // SHAPE_READ_WAYS)) * SHAPE_READ_WAYS


def shape_reads_get(reads: pointer[shape_reads_t], lsn: uint64_t) -> pointer[shape_t]:
    i: uint32_t
    first: uint32_t = _first(lsn)
    if reads.table == NULL:
        return NULL
    for i in range(first, first + SHAPE_READ_WAYS):
        if reads.table[i].lsn == lsn:
            return address(reads.table[i].shape)
    return NULL


def shape_reads_put(reads: pointer[shape_reads_t], record: pointer[record_t]) -> pointer[shape_t]:
    shape: shape_t
    kept: pointer[read_shape_t]
    total: uint32_t
    i: uint32_t
    first: uint32_t = _first(record.lsn)
    if not shape_head(record, address(shape)):
        return NULL
    total = cast(uint32_t, shape.head.total)
    if reads.bytes + total > SHAPE_READS_BYTES:
        shape_reads_free(reads)
    if reads.table == NULL:
        reads.table = cast(pointer[read_shape_t], calloc(SHAPE_READS, sizeof(read_shape_t)))
        if reads.table == NULL:
            return NULL
        memory_add(MEMORY_ROUTES, SHAPE_READS * sizeof(read_shape_t))
    # A free place, or that of the shape with the lowest LSN: whoever reads a backlog has left its container first.
    kept = address(reads.table[first])
    for i in range(first + 1, first + SHAPE_READ_WAYS):
        if reads.table[i].lsn < kept.lsn:
            kept = address(reads.table[i])
    kept.lsn = 0
    if kept.room < total:
        reads.bytes -= kept.room
        memory_add(MEMORY_ROUTES, -cast(int64_t, kept.room))
        free(kept.bytes)
        kept.room = 0
        kept.bytes = cast(pointer[uint8_t], malloc(total))
        if kept.bytes == NULL:
            return NULL
        kept.room = total
        reads.bytes += total
        memory_add(MEMORY_ROUTES, total)
    memcpy(kept.bytes, shape.head.run, total)
    kept.shape = shape
    kept.shape.head.run = kept.bytes
    kept.lsn = record.lsn
    return address(kept.shape)


def shape_reads_free(reads: pointer[shape_reads_t]) -> void:
    i: uint32_t
    if reads.table == NULL:
        return
    for i in range(SHAPE_READS):
        free(reads.table[i].bytes)
    free(reads.table)
    reads.table = NULL
    memory_add(MEMORY_ROUTES, -cast(int64_t, SHAPE_READS * sizeof(read_shape_t) + reads.bytes))
    reads.bytes = 0
