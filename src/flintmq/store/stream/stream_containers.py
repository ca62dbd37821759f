"""First offsets of a stream's containers, and the container of an offset or a time (see stream_containers.pxd).

in: records that the log's reader gives. out: offsets and times by container, containers by offset and time.

I1  What a damaged container tells is not guessed: its first offset is unknown, and the search passes it over.
I2  Of a container that begins within a message the next message tells: one that a crash cut off gave its offset to that one.
"""

from __future__ import annotations

from cython import address, bint, declare, p_void, pointer
from cython import int as c_int
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD, STEP_END, STEP_RECORD, log_reader_t, reader_begin, reader_pass, reader_salvage, reader_step,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import le64, record_t
from cython.cimports.flintmq.store.stream.stream_content import RECORD_STREAM_CHUNK, RECORD_STREAM_MARK, RECORD_STREAM_MESSAGE
from cython.cimports.libc.stdint import uint64_t

OFFSET_UNKNOWN = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
OFFSET_PENDING = declare(uint64_t, 0xFFFFFFFFFFFFFFFE)


def stream_told(record: pointer[record_t]) -> uint64_t:
    if record.size >= 8:
        if record.type == RECORD_STREAM_MESSAGE or record.type == RECORD_STREAM_MARK:
            return le64(record.data)
        if record.type == RECORD_STREAM_CHUNK:
            return le64(record.data) + 1
    return OFFSET_UNKNOWN


def stream_look(reader: pointer[log_reader_t], sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    record: record_t
    step: c_int
    within: bint = False
    offset: uint64_t = OFFSET_UNKNOWN
    first_us[0] = 0
    reader_begin(reader, sequence)
    while offset == OFFSET_UNKNOWN:
        step = reader_step(reader, address(record))
        if step == STEP_BAD:
            step = reader_salvage(reader)
            if step == STEP_RECORD:
                continue
        if within and step == STEP_END:
            return OFFSET_PENDING
        # Behind damage it may have come to a later container: then nothing in this one can be read.
        if step != STEP_RECORD or (record.lsn // reader.container_size != sequence and not within):
            break
        if not within:
            first_us[0] = record.time_us
        if record.type == RECORD_STREAM_CHUNK:
            within = True  # I2
        else:
            offset = stream_told(address(record))
        reader_pass(reader, address(record))
    return offset


def stream_container(
    reader: pointer[log_reader_t],
    low: uint64_t,
    high: uint64_t,
    offset: uint64_t,
    us: uint64_t,
    first_of: first_of_t,
    context: p_void,
) -> uint64_t:
    middle: uint64_t
    probe: uint64_t
    first: uint64_t
    first_us: uint64_t = 0
    while low < high:
        middle = low + (high - low + 1) // 2
        probe = middle
        first = first_of(context, probe, address(first_us))
        while first == OFFSET_UNKNOWN and not reader.error and probe < high:
            probe += 1
            first = first_of(context, probe, address(first_us))
        if reader.error:
            return 0
        if first != OFFSET_UNKNOWN and (first_us < us if us else first <= offset):
            low = probe
        else:
            high = middle - 1
    return low
