"""The reader of a log, which recovery, cold reads, copy-forward, streams and Arrow stand on (see reader.pxd).

in: bytes of one log, by LSN, from its user's `load`. out: records that check, one after the other or by LSN; block headers.

I1  A record is given only when its CRC matches its LSN: bytes of a recycled file are never taken for new ones.
I2  No length from the log is used before it was compared with the bytes that are there.
I3  A place that does not check is never passed in silence: a step says STEP_BAD, and reader_salvage goes on at the caller's wish.

The chain of commit blocks tells the end of a container from a damaged place in it. The difference of torn and damaged, and its meaning, is
the user's to say: it knows what was durable.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, inline, long, nogil, p_char, p_void, pointer
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.store.log.file_port import port_read_t
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, BLOCK_MAGIC, CONTAINER_HEADER, RECORD_HEADER, SALVAGE_EFFORT, SECTOR, align8, align_sector, block_begun, block_decode,
    block_encode, block_t, le32, record_crc, record_decode, record_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t


def reader_read(
    reader: pointer[log_reader_t],
    read_at: port_read_t,
    files: p_void,
    fd: c_int,
    bytes: pointer[uint8_t],
    lsn: uint64_t,
    size: uint64_t,
) -> uint64_t:
    got: long = read_at(files, fd, bytes, size, lsn % reader.container_size)
    reader.window_end = 0
    if got <= 0:
        reader.error = cast(c_int, -got)
        return 0
    reader.window = bytes
    reader.window_lsn = lsn
    reader.window_end = lsn + got
    return got


# --- along the chain ------------------------------------------------------------------------------------------------------------


def reader_enter(reader: pointer[log_reader_t], lsn: uint64_t, chained: bint) -> bint:
    block: block_t
    have: uint64_t = reader_fill(reader, lsn, BLOCK_HEADER)
    room: uint64_t = reader.container_size - lsn % reader.container_size
    if have < BLOCK_HEADER or not block_decode(reader.window + (lsn - reader.window_lsn), lsn, room, reader.log_id, address(block)):
        return False
    if (chained and block.previous != reader.block) or lsn + block.length > reader.limit:
        return False
    reader.block = lsn
    reader.block_end = lsn + block.length
    reader.block_us = block.time_us
    reader.at = lsn + BLOCK_HEADER
    return True


def reader_next_block(reader: pointer[log_reader_t]) -> c_int:
    size: uint64_t = reader.container_size
    container: uint64_t = (reader.block_end - 1) // size * size
    candidate: uint64_t = align_sector(reader.block_end)
    following: uint64_t = container + size + CONTAINER_HEADER
    chained: bint = reader.block != 0
    if candidate >= reader.limit:
        return STEP_END
    if candidate + BLOCK_HEADER <= container + size:
        if reader_enter(reader, candidate, chained):
            return STEP_RECORD
        if reader.error:
            return STEP_IO
        if not chained:
            return STEP_BAD  # nothing tells whether the container ends here
    if following >= reader.limit:
        return STEP_BAD if candidate < container + size else STEP_END
    if reader_enter(reader, following, chained):
        return STEP_RECORD
    return STEP_IO if reader.error else STEP_BAD


@cfunc
@inline
@nogil
@exceptval(check=False)
def _decode(reader: pointer[log_reader_t], lsn: uint64_t, end: uint64_t, time_us: uint64_t, out: pointer[record_t]) -> bint:
    """The record at `lsn`, which ends at `end` or before."""
    length: uint64_t
    if reader_fill(reader, lsn, RECORD_HEADER) < RECORD_HEADER:
        return False
    length = le32(reader.window + (lsn - reader.window_lsn))
    if length < RECORD_HEADER or length > end - lsn or length > reader.record_max or reader_fill(reader, lsn, length) < length:
        return False
    return record_decode(reader.window + (lsn - reader.window_lsn), lsn, length, time_us, True, out)


def reader_step(reader: pointer[log_reader_t], out: pointer[record_t]) -> c_int:
    step: c_int
    while reader.at >= reader.block_end:
        step = reader_next_block(reader)
        if step != STEP_RECORD:
            return step
    if _decode(reader, reader.at, reader.block_end, reader.block_us, out):
        return STEP_RECORD
    return STEP_IO if reader.error else STEP_BAD


def reader_salvage(reader: pointer[log_reader_t]) -> c_int:
    size: uint64_t = reader.container_size
    offset: uint64_t
    end: uint64_t
    length: uint64_t
    effort: uint64_t
    record: record_t
    if reader.on_bad != NULL:
        reader.on_bad(reader)
    if reader.at < reader.block_end:
        offset = reader.at + 8
        effort = reader.effort * (reader.block_end - reader.block)
        while offset + RECORD_HEADER <= reader.block_end and reader_fill(reader, offset, RECORD_HEADER) >= RECORD_HEADER:
            length = le32(reader.window + (offset - reader.window_lsn))
            if RECORD_HEADER <= length <= min(reader.block_end - offset, reader.record_max):
                if effort < length:
                    break
                effort -= length
                if _decode(reader, offset, reader.block_end, reader.block_us, address(record)):
                    reader.at = offset
                    return STEP_RECORD
            offset += 8
        if reader.error:
            return STEP_IO
        reader.at = reader.block_end
        reader.block = 0
    offset = align_sector(reader.block_end)
    end = ((reader.block_end - 1) // size + 1) * size
    while offset < reader.limit:
        while offset + BLOCK_HEADER <= end and offset < reader.limit:
            if reader_enter(reader, offset, False):
                return STEP_RECORD
            if reader.error:
                return STEP_IO
            if reader.window_end <= offset:
                break  # the container is not there
            offset += SECTOR
        offset = end + CONTAINER_HEADER
        end += size
    return STEP_END


# --- by LSN ---------------------------------------------------------------------------------------------------------------------


def reader_inside(reader: pointer[log_reader_t], lsn: uint64_t, out: pointer[record_t]) -> bint:
    return lsn < reader.block_end and _decode(reader, lsn, reader.block_end, reader.block_us, out)


def reader_record_at(reader: pointer[log_reader_t], lsn: uint64_t, out: pointer[record_t]) -> bint:
    size: uint64_t = reader.container_size
    offset: uint64_t = lsn % size
    fresh: bint = False
    read_twice: bint = False
    if lsn & 7 or offset < CONTAINER_HEADER + BLOCK_HEADER or offset + RECORD_HEADER > size:
        return False
    while not _decode(reader, lsn, lsn - offset + size, 0, out):
        fresh = fresh or reader.window_end == 0 or reader.window_lsn == lsn
        if not reader.growing or read_twice or (fresh and not reader.shared):
            reader.anew = False
            return False
        # The window was read when these bytes were not written yet, or the container became another one: once more.
        read_twice = fresh
        fresh = True
        reader.window_end = 0
        reader.anew = True
    reader.anew = False
    return True


def reader_following(reader: pointer[log_reader_t], lsn: uint64_t, open_every: uint64_t, out: pointer[record_t]) -> bint:
    size: uint64_t = reader.container_size
    container: uint64_t = (lsn - 1) // size * size  # of the record before, which may end where the container does
    start: uint64_t
    step: uint32_t
    block: block_t
    closed: bint
    if lsn < container + size and reader_record_at(reader, lsn, out):
        return True
    for step in range(3):
        if step == 0:
            start = align_sector(lsn)
        elif step == 1:
            if open_every == 0:
                continue
            start = container + (lsn - container + open_every - 1) // open_every * open_every
        else:
            start = container + size + CONTAINER_HEADER
        if (step < 2 and start >= container + size) or reader_fill(reader, start, BLOCK_HEADER) < BLOCK_HEADER:
            continue
        closed = block_decode(reader.window + (start - reader.window_lsn), start, size - start % size, reader.log_id, address(block))
        # The header of a block that is still open is not written: its first record tells.
        if (closed or open_every) and reader_record_at(reader, start + BLOCK_HEADER, out):
            return True
        if closed:
            return False
    return False


# --- blocks that are whole in memory ----------------------------------------------------------------------------------------------


def block_search(
    p: pointer[cython.const[uint8_t]],
    start: uint64_t,
    offset: uint64_t,
    end: uint64_t,
    size: uint64_t,
    log_id: uint32_t,
    epoch: uint32_t,
    out: pointer[block_t],
) -> uint64_t:
    while offset < end and offset + BLOCK_HEADER <= size:
        if le32(p + offset) == BLOCK_MAGIC and block_decode(p + offset, start + offset, size - offset, log_id, out) and out.epoch >= epoch:
            return offset
        offset += SECTOR
    return end


def block_check(p: pointer[cython.const[uint8_t]], block: pointer[block_t], count: pointer[uint32_t]) -> uint32_t:
    offset: uint32_t = BLOCK_HEADER
    good: uint32_t = 0
    record: record_t
    while offset < block.length and record_decode(p + offset, block.lsn + offset, block.length - offset, 0, True, address(record)):
        offset += cast(uint32_t, align8(record.length))
        good += 1
    count[0] = good
    return min(offset, block.length)


def block_salvage(p: pointer[cython.const[uint8_t]], block: pointer[block_t], offset: uint32_t, effort: pointer[uint64_t]) -> uint32_t:
    record: record_t
    while offset + RECORD_HEADER <= block.length:
        if record_decode(p + offset, block.lsn + offset, block.length - offset, 0, False, address(record)):
            if effort[0] < record.length:
                break
            effort[0] -= record.length
            if record_decode(p + offset, block.lsn + offset, block.length - offset, 0, True, address(record)):
                return offset
        offset += 8
    return block.length


# --- for Python: bytes that the caller has in memory ------------------------------------------------------------------------------


@cfunc
@inline
def _bytes(data: bytes | None) -> pointer[cython.const[uint8_t]]:
    return cast(pointer[uint8_t], PyBytes_AS_STRING(data))


@cfunc
def _block(block: pointer[block_t]) -> tuple:
    return (
        block.lsn,
        block.length,
        block.epoch,
        block.records,
        block.durable_hint,
        block.base,
        block.time_us,
        block.previous,
        block.flags,
    )


@cfunc
def _record(record: pointer[record_t]) -> tuple:
    return (
        record.lsn,
        record.type,
        record.stream,
        record.flags,
        record.time_us,
        record.undo_prev,
        record.undo_next,
        record.tx,
        cast(uint64_t, record.expires_at_ms),
        record.length,
        PyBytes_FromStringAndSize(cast(p_char, record.data), record.size),
    )


def block_at(data: bytes, lsn: int, room: int, log: int) -> tuple | None:
    """The block header at the beginning of `data`, as in blocks_in; None: there is none. room: bytes of its container from there on."""
    block: block_t
    if len(data) < BLOCK_HEADER or not block_decode(_bytes(data), lsn, room, log, address(block)):
        return None
    return _block(address(block))


def blocks_in(data: bytes, start: int, log: int) -> list:
    """Every block header of this log that checks in a container's bytes, ascending, each as (lsn, length, epoch, records, hint, base,
    time_us, previous, flags). start: LSN of data[0]. Headers inside a good block are not looked for."""
    blocks: list = []
    block: block_t
    size: uint64_t = len(data)
    first: uint64_t = start
    offset: uint64_t = CONTAINER_HEADER
    while True:
        offset = block_search(_bytes(data), first, offset, size, size, log, 0, address(block))
        if offset >= size:
            return blocks
        blocks.append(_block(address(block)))
        offset = align_sector(offset + block.length)


def begun_at(data: bytes, lsn: int) -> bool:
    """Whether a block was begun at the beginning of `data`, whole or torn."""
    return len(data) >= BLOCK_HEADER and block_begun(_bytes(data), lsn)


def records_in(data: bytes, lsn: int, time_us: int) -> list:
    """The records of the block that `data` is, whose LSN and time base these are.

    Returns: those that check, each as (lsn, type, stream, flags, time_us, undo_prev, undo_next, tx, expires_ms, length, own fields), and
    each stretch between where none does as (lsn, LSN of the next).
    """
    records: list = []
    block: block_t
    record: record_t
    base: uint64_t = time_us
    offset: uint32_t = BLOCK_HEADER
    good: uint32_t
    effort: uint64_t
    block.lsn = lsn
    block.length = len(data)
    effort = SALVAGE_EFFORT * cast(uint64_t, block.length)
    while offset < block.length:
        if record_decode(_bytes(data) + offset, block.lsn + offset, block.length - offset, base, True, address(record)):
            records.append(_record(address(record)))
            offset += cast(uint32_t, align8(record.length))
            continue
        good = block_salvage(_bytes(data), address(block), offset + 8, address(effort))
        records.append((block.lsn + offset, block.lsn + good))
        offset = good
    return records


def record_in(data: bytes, lsn: int) -> tuple | None:
    """The record at the beginning of `data`, as in records_in, its time relative to its block; None: it does not check."""
    record: record_t
    if not record_decode(_bytes(data), lsn, len(data), 0, True, address(record)):
        return None
    return _record(address(record))


def sealed(raw: bytes, lsn: int) -> bytes:
    """A record with the CRC that it has at this LSN. raw: the whole record, the bytes of its CRC whatever they are."""
    crc: uint32_t = record_crc(_bytes(raw), len(raw), lsn)
    return raw[:4] + PyBytes_FromStringAndSize(cast(p_char, address(crc)), 4) + raw[8:]


def block_bytes(lsn: int, length: int, epoch: int, records: int, hint: int, base: int, time_us: int, previous: int, flags: int) -> bytes:
    """The header of a commit block."""
    block: block_t
    header: uint8_t[64]
    block.lsn = lsn
    block.length = length
    block.epoch = epoch
    block.records = records
    block.durable_hint = hint
    block.base = base
    block.time_us = time_us
    block.previous = previous
    block.flags = flags
    block_encode(header, address(block))
    return PyBytes_FromStringAndSize(cast(p_char, header), BLOCK_HEADER)
