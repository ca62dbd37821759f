"""Cold reads of a stream (see stream_reader.pxd).

in: records of its log (stream_walk.py). out: batches of contents, as consumers get them; what is damaged or gone, said so.

I1  Nothing at or above the offset that was visible when the read began is handed out.
I2  An offset that can't be read is never passed over in silence: the read ends before it, and the next one says DAMAGED.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.content import content_body, content_decref, content_header, content_new, content_route, content_t
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD,
    STEP_END,
    STEP_IO,
    STEP_RECORD,
    reader_pass,
    reader_salvage,
    reader_step,
)
from cython.cimports.flintmq.store.log.record import le16, le32, le64, record_t
from cython.cimports.flintmq.store.stream.stream_batch import stream_batch_put, stream_filter_matches
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK,
    RECORD_STREAM_MESSAGE,
    STREAM_FIXED,
    STREAM_NO_FILTER,
    stream_content,
)
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_DAMAGED,
    STREAM_EMPTY,
    STREAM_FILTERED,
    STREAM_GONE,
    STREAM_IO,
    STREAM_MESSAGES,
    STREAM_TRUNCATED,
    stream_batch_t,
    stream_filter_t,
    stream_t,
)
from cython.cimports.flintmq.store.stream.stream_walk import stream_reader_t, stream_search
from cython.cimports.libc.errno import ENOMEM
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy

# bytes of the log that one read looks at before it says FILTERED
LOOK_MOST = declare(uint64_t, 4 << 20)
# an offset that is further ahead is looked up by its container
WALK_MOST = declare(uint64_t, 4096)
# bytes of one message's content: what fits into its fields
TOTAL_MOST = declare(uint64_t, 0x7FFFFFFF)


# --- reading ----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _value_of(record: pointer[record_t], size: pointer[uint32_t]) -> pointer[cython.const[uint8_t]]:
    """The filter value of a Stream-Message that was checked; NULL: it has none."""
    length: uint32_t = le16(record.data + 24)
    size[0] = 0
    if length == STREAM_NO_FILTER:
        return NULL
    size[0] = length
    return record.data + STREAM_FIXED


@cfunc
@nogil
@exceptval(check=False)
def _well_formed(record: pointer[record_t]) -> bint:
    """Whether the lengths in a Stream-Message fit into each other and into the record."""
    fixed: uint64_t = STREAM_FIXED
    segment: uint64_t
    total: uint64_t
    if record.size < STREAM_FIXED:
        return False
    if le16(record.data + 24) != STREAM_NO_FILTER:
        fixed += le16(record.data + 24)
    segment = le32(record.data + 20)
    total = cast(uint64_t, le32(record.data + 8)) + le32(record.data + 12) + le16(record.data + 16)
    return record.size == fixed + segment and segment <= total and total <= TOTAL_MOST


@cfunc
@nogil
@exceptval(check=False)
def _small(reader: pointer[stream_reader_t], record: pointer[record_t]) -> pointer[content_t]:
    """The content of a message that is one record."""
    value_size: uint32_t = 0
    at: pointer[uint8_t] = NULL
    filter_at: uint32_t = 0
    filter_size: uint32_t = 0
    body_len: uint32_t = le32(record.data + 8)
    header_len: uint32_t = le32(record.data + 12)
    route_len: uint32_t = le16(record.data + 16)
    run: pointer[cython.const[uint8_t]]
    _value_of(record, address(value_size))
    run = record.data + STREAM_FIXED + value_size
    return stream_content(
        reader.arena,
        run,
        cast(uint16_t, route_len),
        run + route_len,
        header_len,
        run + route_len + header_len,
        body_len,
        record.data[18],
        record.data[19],
        le64(record.data),
        address(at),
        address(filter_at),
        address(filter_size),
    )


@cfunc
@nogil
@exceptval(check=False)
def _put(content: pointer[content_t], place: uint64_t, data: pointer[cython.const[uint8_t]], size: uint64_t) -> void:
    """Bytes of the run (route, header, body) into a content."""
    part: uint64_t
    header_end: uint64_t = cast(uint64_t, content.route_len) + content.header_len
    if size and place < content.route_len:
        part = min(size, content.route_len - place)
        memcpy(content_route(content) + place, data, part)
        data += part
        place += part
        size -= part
    if size and place < header_end:
        part = min(size, header_end - place)
        memcpy(content_header(content) + (place - content.route_len), data, part)
        data += part
        place += part
        size -= part
    if size:
        memcpy(content_body(content) + (place - header_end), data, size)


@cfunc
@nogil
@exceptval(check=False)
def _large(reader: pointer[stream_reader_t], record: pointer[record_t], out: pointer[pointer[content_t]]) -> c_int:
    """The content of a message whose chunks follow; the reader goes on behind them. STEP_RECORD: NULL in `*out` when it is not whole."""
    at: pointer[uint8_t] = NULL
    filter_at: uint32_t = 0
    filter_size: uint32_t = 0
    value_size: uint32_t = 0
    what: c_int
    start: uint64_t = record.lsn
    offset: uint64_t = le64(record.data)
    total: uint64_t
    filled: uint64_t = le32(record.data + 20)
    piece: record_t
    content: pointer[content_t] = content_new(reader.arena, le16(record.data + 16), le32(record.data + 12), le32(record.data + 8))
    out[0] = NULL
    if content == NULL:
        reader.walk.error = ENOMEM
        return STEP_IO
    content.flags = record.data[18]
    content.priority = record.data[19]
    total = cast(uint64_t, content.route_len) + content.header_len + content.body_len
    _value_of(record, address(value_size))
    _put(content, 0, record.data + STREAM_FIXED + value_size, filled)
    reader_pass(address(reader.walk), record)
    while filled < total:
        what = reader_step(address(reader.walk), address(piece))
        if what != STEP_RECORD:
            content_decref(content)
            return what
        if (
            piece.type != RECORD_STREAM_CHUNK
            or piece.undo_prev != start
            or piece.size < 12
            or le32(piece.data + 8) != filled
            or piece.size - 12 > total - filled
        ):
            content_decref(content)
            return STEP_RECORD  # its end was never written: another message follows
        _put(content, filled, piece.data + 12, piece.size - 12)
        filled += piece.size - 12
        reader_pass(address(reader.walk), address(piece))
    out[0] = stream_content(
        reader.arena,
        content_route(content),
        content.route_len,
        content_header(content),
        content.header_len,
        content_body(content) if content.body_len else NULL,
        content.body_len,
        content.flags,
        content.priority,
        offset,
        address(at),
        address(filter_at),
        address(filter_size),
    )
    content_decref(content)
    if out[0] == NULL:
        reader.walk.error = ENOMEM
        return STEP_IO
    return STEP_RECORD


def stream_read(
    stream: pointer[stream_t],
    reader: pointer[stream_reader_t],
    offset: uint64_t,
    max_count: uint32_t,
    max_bytes: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    wanted: uint64_t = offset
    visible: uint64_t
    found: uint64_t
    looked: uint64_t = 0
    taken: uint32_t = 0
    start: uint64_t = batch.bytes
    what: c_int
    value_size: uint32_t = 0
    value: pointer[cython.const[uint8_t]]
    content: pointer[content_t] = NULL
    record: record_t
    damaged: bint = False
    size: uint64_t
    batch.next_offset = offset
    if at_load32(address(stream.closed)):
        return STREAM_GONE
    if offset < at_load64(address(stream.first)):
        batch.next_offset = at_load64(address(stream.first))
        return STREAM_TRUNCATED
    # In this order: everything visible is below the limit (I2).
    visible = at_load64(address(stream.visible))
    if offset >= visible:
        return STREAM_EMPTY
    reader.walk.limit = at_load64(address(stream.dirty.log.durable))
    reader.io_ns = 0
    reader.walk.error = 0
    what = STEP_RECORD
    if reader.walk.at == 0 or offset < reader.offset or offset > reader.offset + WALK_MOST:
        if not stream_search(reader, offset, 0):
            what = STEP_IO if reader.walk.error else STEP_END
    while what == STEP_RECORD and taken < max_count and wanted < visible:
        what = reader_step(address(reader.walk), address(record))
        if what == STEP_BAD:
            if taken or wanted > offset or offset < at_load64(address(stream.first)):
                break  # first what came before it; and what retention took is not damaged
            damaged = True
            what = reader_salvage(address(reader.walk))
            continue
        if what != STEP_RECORD:
            break
        if wanted > offset or record.type == RECORD_STREAM_MESSAGE:
            looked += record.length
        if record.type != RECORD_STREAM_MESSAGE or not _well_formed(address(record)):
            reader_pass(address(reader.walk), address(record))
            continue
        found = le64(record.data)
        if found < wanted:
            reader.offset = found + 1
            reader_pass(address(reader.walk), address(record))
            continue
        if found > wanted:
            if taken == 0 and wanted == offset:
                batch.next_offset = min(found, visible)
                batch.io_ns += reader.io_ns
                reader.offset = wanted
                return STREAM_DAMAGED
            break
        value = _value_of(address(record), address(value_size))
        if filter != NULL and not stream_filter_matches(filter, value, value_size):
            reader_pass(address(reader.walk), address(record))
            wanted += 1
            reader.offset = wanted
            if looked >= LOOK_MOST:
                break
            continue
        size = cast(uint64_t, le32(record.data + 8)) + le32(record.data + 12)
        if taken and batch.bytes - start + size > max_bytes:
            break
        if le32(record.data + 20) == size + le16(record.data + 16):
            content = _small(reader, address(record))
            if content == NULL:
                reader.walk.error = ENOMEM
                what = STEP_IO
                break
            reader_pass(address(reader.walk), address(record))
        else:
            what = _large(reader, address(record), address(content))
            if what == STEP_BAD:
                if taken or wanted > offset:
                    reader.walk.at = 0  # it is met again by the next read
                    break
                damaged = True
                what = reader_salvage(address(reader.walk))
                continue
            if what != STEP_RECORD:
                reader.walk.at = 0
                break
            if content == NULL:
                continue
        if not stream_batch_put(batch, content, found):
            content_decref(content)
            reader.walk.error = ENOMEM
            reader.walk.at = 0
            what = STEP_IO
            break
        taken += 1
        wanted = found + 1
        reader.offset = wanted
    batch.io_ns += reader.io_ns
    batch.next_offset = wanted
    if taken:
        return STREAM_MESSAGES
    if what == STEP_IO:
        batch.error = reader.walk.error
        reader.walk.at = 0
        return STREAM_IO
    if wanted > offset:
        return STREAM_FILTERED
    if wanted >= visible:
        return STREAM_EMPTY
    # Visible, and not there: the end of what is durable can't be read, or retention took the container under the reader.
    reader.walk.at = 0
    if offset < at_load64(address(stream.first)):
        batch.next_offset = at_load64(address(stream.first))
        return STREAM_TRUNCATED
    if not damaged and what != STEP_END:
        return STREAM_EMPTY
    batch.next_offset = visible
    return STREAM_DAMAGED


def stream_find_time(stream: pointer[stream_t], reader: pointer[stream_reader_t], ms: uint64_t) -> uint64_t:
    us: uint64_t = ms * 1000
    what: c_int
    found: uint64_t
    record: record_t
    first: uint64_t = at_load64(address(stream.first))
    visible: uint64_t = at_load64(address(stream.visible))
    reader.walk.limit = at_load64(address(stream.dirty.log.durable))
    reader.walk.error = 0
    if first >= visible:
        return visible
    if us == 0 or not stream_search(reader, 0, us):
        reader.walk.at = 0
        return first
    while True:
        what = reader_step(address(reader.walk), address(record))
        if what == STEP_BAD:
            what = reader_salvage(address(reader.walk))
            if what == STEP_RECORD:
                continue
        if what != STEP_RECORD:
            break
        if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and record.time_us >= us:
            found = le64(record.data)
            reader.walk.at = 0
            return max(first, min(found, visible))
        reader_pass(address(reader.walk), address(record))
    reader.walk.at = 0
    return visible
