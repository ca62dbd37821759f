"""Rows of segments in a checkpoint (see segment_rows.pxd): a segment like the one before costs two bytes.

in: facts of segments, in the order of their positions. out: bytes, and back.

A row is a byte of flags, a number for each flag, and the run. A flag says that a fact is not the one that follows from the segment before;
in front of the first one stands one whose facts are zero.

R1  A row that is read is the one that was written, whatever its facts are: differences wrap around at 64 bits.
"""

from __future__ import annotations

import cython
from cython import address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.varint import varint_fold, varint_get, varint_put, varint_unfold
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.store.log.record import le32, le64, set32, set64
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memset

# what the first byte of a row says, in the order of the numbers that follow
BASE = declare(uint8_t, 1)  # slots between it and the segment before: signed, how many
COUNT = declare(uint8_t, 2)  # another number of slots
LIVE = declare(uint8_t, 4)  # not as many entries as slots
BYTES = declare(uint8_t, 8)  # another number of bytes: signed difference
DELIVERED = declare(uint8_t, 16)  # another number of entries that were delivered before
SPILLED = declare(uint8_t, 32)  # another number of entries that the run alone does not bring back
EXPIRY = declare(uint8_t, 64)  # another earliest expiry: signed difference
FLAGGED = declare(uint8_t, 128)  # another index up to which all count as delivered
# the last value of the facts that have 32 bits
HALF_MAX = declare(uint64_t, 0xFFFFFFFF)
# levels of a queue are numbered up to it
LEVEL_MAX = declare(uint32_t, 255)
# runs begin at multiples of it
ALIGNMENT = declare(uint64_t, 8)


def segments_begin(rows: pointer[segment_rows_t], queue_id: uint64_t, level: uint32_t) -> void:
    memset(rows, 0, sizeof(segment_rows_t))
    rows.queue_id = queue_id
    rows.level = level


def segments_put_head(rows: pointer[cython.const[segment_rows_t]], out: pointer[uint8_t]) -> void:
    set64(out, rows.queue_id)
    set32(out + 8, rows.level)
    set32(out + 12, rows.count)


def segments_get_head(rows: pointer[segment_rows_t], data: pointer[cython.const[uint8_t]], length: uint32_t) -> bint:
    if length < SEGMENTS_HEAD:
        return False
    segments_begin(rows, le64(data), le32(data + 8))
    rows.count = le32(data + 12)
    return rows.level <= LEVEL_MAX and rows.count <= (length - SEGMENTS_HEAD) // SEGMENT_LEAST


@cfunc
@inline
@nogil
@exceptval(check=False)
def _flagged_upto(before: pointer[cython.const[shell_t]], facts: pointer[cython.const[shell_t]]) -> uint64_t:
    """The index up to which all count as delivered: of the last slot, if it was that of the segment before, too; else the same one."""
    if before.count and before.flagged_upto == before.base + before.count - 1:
        return facts.base + facts.count - 1
    return before.flagged_upto


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_step(out: pointer[uint8_t], now: uint64_t, before: uint64_t) -> uint32_t:
    """A signed difference. Returns its bytes."""
    return varint_put(out, varint_fold(cast(int64_t, now - before)))


def segment_put(rows: pointer[segment_rows_t], facts: pointer[cython.const[shell_t]], out: pointer[uint8_t]) -> uint32_t:
    before: pointer[shell_t] = address(rows.before)
    flags: uint8_t = 0
    size: uint32_t = 1
    if facts.base != before.base + before.count:
        flags |= BASE
        size += _put_step(out + size, facts.base, before.base + before.count)
    if facts.count != before.count:
        flags |= COUNT
        size += varint_put(out + size, facts.count)
    if facts.live != facts.count:
        flags |= LIVE
        size += varint_put(out + size, facts.live)
    if facts.bytes != before.bytes:
        flags |= BYTES
        size += _put_step(out + size, facts.bytes, before.bytes)
    if facts.redelivered != before.redelivered:
        flags |= DELIVERED
        size += varint_put(out + size, facts.redelivered)
    if facts.spilled != before.spilled:
        flags |= SPILLED
        size += varint_put(out + size, facts.spilled)
    if facts.expiry_min != before.expiry_min:
        flags |= EXPIRY
        size += _put_step(out + size, cast(uint64_t, facts.expiry_min), cast(uint64_t, before.expiry_min))
    if facts.flagged_upto != _flagged_upto(before, facts):
        flags |= FLAGGED
        size += varint_put(out + size, facts.flagged_upto)
    # Runs of a queue follow each other at about the same distance.
    size += varint_put(out + size, varint_fold(cast(int64_t, facts.run - before.run - rows.step) // cast(int64_t, ALIGNMENT)))
    out[0] = flags
    rows.step = facts.run - before.run
    rows.before = facts[0]
    rows.count += 1
    return size


@cfunc
@inline
@nogil
@exceptval(check=False)
def _get_half(data: pointer[cython.const[uint8_t]], length: uint32_t, place: pointer[uint32_t], value: pointer[uint32_t]) -> bint:
    """A fact of 32 bits. False: malformed."""
    number: uint64_t = 0
    if not varint_get(data, length, place, address(number)) or number > HALF_MAX:
        return False
    value[0] = cast(uint32_t, number)
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _get_step(data: pointer[cython.const[uint8_t]], length: uint32_t, place: pointer[uint32_t], value: pointer[uint64_t]) -> bint:
    """A signed difference, which is added. False: malformed."""
    number: uint64_t = 0
    if not varint_get(data, length, place, address(number)):
        return False
    value[0] += cast(uint64_t, varint_unfold(number))
    return True


def segment_get(rows: pointer[segment_rows_t], data: pointer[cython.const[uint8_t]], length: uint32_t, facts: pointer[shell_t]) -> uint32_t:
    before: pointer[shell_t] = address(rows.before)
    place: uint32_t = 1
    flags: uint8_t
    number: uint64_t = 0
    if length < SEGMENT_LEAST:
        return 0
    flags = data[0]
    facts[0] = before[0]
    facts.base += before.count
    if flags & BASE and not _get_step(data, length, address(place), address(facts.base)):
        return 0
    if flags & COUNT and not _get_half(data, length, address(place), address(facts.count)):
        return 0
    facts.live = facts.count
    if flags & LIVE and not _get_half(data, length, address(place), address(facts.live)):
        return 0
    if flags & BYTES and not _get_step(data, length, address(place), address(facts.bytes)):
        return 0
    if flags & DELIVERED and not _get_half(data, length, address(place), address(facts.redelivered)):
        return 0
    if flags & SPILLED and not _get_half(data, length, address(place), address(facts.spilled)):
        return 0
    if flags & EXPIRY:
        number = cast(uint64_t, facts.expiry_min)
        if not _get_step(data, length, address(place), address(number)):
            return 0
        facts.expiry_min = cast(int64_t, number)
    facts.flagged_upto = _flagged_upto(before, facts)
    if flags & FLAGGED and not varint_get(data, length, address(place), address(facts.flagged_upto)):
        return 0
    if not varint_get(data, length, address(place), address(number)):
        return 0
    facts.run = before.run + rows.step + cast(uint64_t, varint_unfold(number)) * ALIGNMENT
    rows.step = facts.run - before.run
    rows.before = facts[0]
    return place
