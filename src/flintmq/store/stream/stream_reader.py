"""Cold reads of a stream: windows on its containers, places to begin at, batches of contents (see stream_reader.pxd).

in: containers of its log, through the file port; records, from the log's reader. out: batches of contents, as consumers get them; what is
damaged or gone, said so.

I1  Nothing at or above the offset that was visible when the read began is handed out.
I2  An offset that can't be read is never passed over in silence: the read ends before it, and the next one says DAMAGED.
I3  Only bytes below the durable LSN are looked at: they never change any more, so a window once read stays true.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_void, pointer, sizeof, void, with_gil
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import (
    arena_free, arena_new, content_body, content_decref, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.header_field import parts_of, parts_t
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.store.log.file_port import FilePort
from cython.cimports.flintmq.store.log.log import log_t
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD, STEP_END, STEP_IO, STEP_RECORD, log_reader_t, reader_begin, reader_fill, reader_pass, reader_read, reader_salvage,
    reader_step,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, CONTAINER_HEADER, STREAM_SALVAGE_EFFORT, align_sector, le32, le64, record_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_batch import stream_batch_put, stream_filter_matches
from cython.cimports.flintmq.store.stream.stream_containers import OFFSET_PENDING, OFFSET_UNKNOWN, stream_container, stream_look
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK, RECORD_STREAM_MESSAGE, STREAM_FIXED, stream_content, stream_head, stream_head_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_DAMAGED, STREAM_EMPTY, STREAM_FILTERED, STREAM_GONE, STREAM_IO, STREAM_MESSAGES, STREAM_TRUNCATED, stream_batch_t, stream_decref,
    stream_filter_t, stream_incref, stream_known, stream_learn, stream_t,
)  # fmt: skip
from cython.cimports.libc.errno import ENOENT, ENOMEM
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy
from cython.cimports.posix.time import CLOCK_MONOTONIC, clock_gettime, timespec

# bytes read at a time: neighbours share a read, and the longest record fits
WINDOW = declare(uint64_t, 256 * 1024)


# --- life -----------------------------------------------------------------------------------------------------------------------


def stream_reader_new(stream: pointer[stream_t]) -> pointer[stream_reader_t]:
    reader: pointer[stream_reader_t] = cast(pointer[stream_reader_t], calloc(1, sizeof(stream_reader_t)))
    if reader == NULL:
        return NULL
    reader.arena = arena_new()
    if reader.arena == NULL:
        free(reader)
        return NULL
    reader.stream = stream
    reader.fd = -1
    reader.walk.load = _load
    reader.walk.on_bad = _tell
    reader.walk.context = reader
    reader.walk.container_size = stream.dirty.log.container_size
    reader.walk.record_max = WINDOW
    reader.walk.log_id = stream.dirty.log.id
    reader.walk.effort = STREAM_SALVAGE_EFFORT
    stream_incref(stream)
    return reader


def stream_reader_free(reader: pointer[stream_reader_t]) -> void:
    if reader == NULL:
        return
    stream_reader_rest(reader)
    arena_free(reader.arena)
    stream_decref(reader.stream)
    free(reader)


def stream_reader_rest(reader: pointer[stream_reader_t]) -> void:
    _close(reader)
    if reader.window != NULL:
        memory_add(MEMORY_STREAMS, -cast(int64_t, WINDOW))
    free(reader.window)
    reader.window = NULL
    reader.walk.window_end = 0


@cfunc
@nogil
@exceptval(check=False)
def _close(reader: pointer[stream_reader_t]) -> void:
    if reader.fd >= 0:
        with gil:
            try:
                cast(object, reader.stream.owner).managed.files.close(reader.fd)
            except OSError:
                pass  # it was only read
    reader.fd = -1


@cfunc
@with_gil
@exceptval(check=False)
def _open_file(reader: pointer[stream_reader_t], sequence: uint64_t) -> c_int:
    files: FilePort
    try:
        managed = cast(object, reader.stream.owner).managed
        files = managed.files  # lives as long as the stream's owner, which this reader's reference keeps
        reader.read_at = files.read_at
        reader.files = files.context
        reader.fd = files.open(managed.path_of(sequence))
        reader.sequence = sequence
    except OSError as error:
        return error.errno or 5
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _open(reader: pointer[stream_reader_t], sequence: uint64_t) -> c_int:
    """0, or an errno."""
    if reader.fd >= 0 and reader.sequence == sequence:
        return 0
    _close(reader)
    return _open_file(reader, sequence)


# --- bytes ----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _load(walk: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    """Reads a window from `lsn` on: durable bytes of one container (see reader_load_t)."""
    reader: pointer[stream_reader_t] = cast(pointer[stream_reader_t], walk.context)
    sequence: uint64_t = lsn // walk.container_size
    end: uint64_t = min((sequence + 1) * walk.container_size, walk.limit)
    got: uint64_t
    error: c_int
    before: timespec
    after: timespec
    walk.window_end = 0
    if lsn >= end:
        return 0
    if reader.window == NULL:
        reader.window = cast(pointer[uint8_t], malloc(WINDOW))
        if reader.window == NULL:
            walk.error = ENOMEM
            return 0
        memory_add(MEMORY_STREAMS, WINDOW)
    clock_gettime(CLOCK_MONOTONIC, address(before))
    error = _open(reader, sequence)
    if error:
        walk.error = 0 if error == ENOENT else error
        return 0
    got = reader_read(walk, reader.read_at, reader.files, reader.fd, reader.window, lsn, min(end - lsn, WINDOW))
    clock_gettime(CLOCK_MONOTONIC, address(after))
    reader.io_ns += (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec
    reader.bytes_read += got
    return got


# --- damage ---------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _bad_container(walk: pointer[log_reader_t]) -> uint64_t:
    """The container to be named: between two blocks that is the next one when this one just ends there, in zeros."""
    size: uint64_t = walk.container_size
    sequence: uint64_t = (walk.at - 1) // size
    at: uint64_t = align_sector(walk.block_end)
    i: uint32_t
    if walk.at < walk.block_end or at <= sequence * size + CONTAINER_HEADER:
        return sequence
    if at + BLOCK_HEADER <= (sequence + 1) * size:
        if reader_fill(walk, at, BLOCK_HEADER) < BLOCK_HEADER:
            return sequence
        for i in range(BLOCK_HEADER):
            if walk.window[at - walk.window_lsn + i]:
                return sequence
    return sequence + 1


@cfunc
@nogil
@exceptval(check=False)
def _tell(walk: pointer[log_reader_t]) -> void:
    """The broker's log names a damaged container, once, unless retention just took it."""
    reader: pointer[stream_reader_t] = cast(pointer[stream_reader_t], walk.context)
    log: pointer[log_t] = reader.stream.dirty.log
    sequence: uint64_t
    gone: bint
    if walk.at == reader.bad_at:
        return
    reader.bad_at = walk.at
    sequence = _bad_container(walk)
    spin_lock(address(log.lock))
    gone = sequence < log.first_sequence
    spin_unlock(address(log.lock))
    if gone or at_load32(address(reader.stream.closed)):
        return
    with gil:
        try:
            cast(object, reader.stream.owner).note_damage(sequence, reader.bad_at)
        except Exception:
            pass  # the reading goes on; who reads is told what is damaged


# --- places -----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _first_of(context: p_void, sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    """First offset of a container (see first_of_t): what is known of it, else what it says, which is known from then on."""
    reader: pointer[stream_reader_t] = cast(pointer[stream_reader_t], context)
    stream: pointer[stream_t] = reader.stream
    offset: uint64_t = stream_known(stream, sequence, first_us)
    if offset != OFFSET_UNKNOWN:
        return offset
    reader.walk.limit = at_load64(address(stream.dirty.log.durable))
    reader.walk.error = 0
    offset = stream_look(address(reader.walk), sequence, first_us)
    reader.walk.window_end = 0
    reader.walk.at = 0
    if offset != OFFSET_UNKNOWN and offset != OFFSET_PENDING:
        stream_learn(stream, sequence, offset, first_us[0])
    return offset


def stream_first_of(reader: pointer[stream_reader_t], sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    return _first_of(reader, sequence, first_us)


def stream_search(reader: pointer[stream_reader_t], offset: uint64_t, us: uint64_t) -> bint:
    log: pointer[log_t] = reader.stream.dirty.log
    low: uint64_t
    high: uint64_t = 0
    spin_lock(address(log.lock))
    low = log.first_sequence
    if log.container_count:
        high = (log.durable - 1) // log.container_size  # the one that the last durable byte is in
    spin_unlock(address(log.lock))
    if high < low:
        return False
    low = stream_container(address(reader.walk), low, high, offset, us, _first_of, reader)
    if low == 0:
        return False
    reader_begin(address(reader.walk), low)
    reader.offset = 0
    return True


# bytes of the log that one read looks at before it says FILTERED
LOOK_MOST = declare(uint64_t, 4 << 20)
# an offset that is further ahead is looked up by its container
WALK_MOST = declare(uint64_t, 4096)


# --- reading ----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _small(reader: pointer[stream_reader_t], head: pointer[stream_head_t]) -> pointer[content_t]:
    """The content of a message that is one record."""
    at: pointer[uint8_t] = NULL
    filter_at: uint32_t = 0
    filter_size: uint32_t = 0
    parts: parts_t
    parts.route = head.run
    parts.route_len = head.route_len
    parts.header = head.run + head.route_len
    parts.header_len = head.header_len
    parts.body = head.run + head.route_len + head.header_len
    parts.body_len = head.body_len
    parts.flags = head.flags
    parts.priority = head.priority
    return stream_content(reader.arena, address(parts), head.offset, address(at), address(filter_at), address(filter_size))


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
def _large(
    reader: pointer[stream_reader_t], record: pointer[record_t], head: pointer[stream_head_t], out: pointer[pointer[content_t]]
) -> c_int:
    """The content of a message whose chunks follow; the reader goes on behind them. STEP_RECORD: NULL in `*out` when it is not whole."""
    at: pointer[uint8_t] = NULL
    filter_at: uint32_t = 0
    filter_size: uint32_t = 0
    what: c_int
    start: uint64_t = record.lsn
    total: uint64_t = head.total
    filled: uint64_t = head.here
    piece: record_t
    parts: parts_t
    content: pointer[content_t] = content_new(reader.arena, head.route_len, head.header_len, head.body_len)
    out[0] = NULL
    if content == NULL:
        reader.walk.error = ENOMEM
        return STEP_IO
    content.flags = head.flags
    content.priority = head.priority
    _put(content, 0, head.run, filled)
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
    parts_of(content, address(parts))
    out[0] = stream_content(reader.arena, address(parts), head.offset, address(at), address(filter_at), address(filter_size))
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
    head: stream_head_t
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
        if not stream_head(address(record), address(head)):
            reader_pass(address(reader.walk), address(record))
            continue
        found = head.offset
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
        if filter != NULL and not stream_filter_matches(filter, head.value, head.value_size):
            reader_pass(address(reader.walk), address(record))
            wanted += 1
            reader.offset = wanted
            if looked >= LOOK_MOST:
                break
            continue
        size = cast(uint64_t, head.body_len) + head.header_len
        if taken and batch.bytes - start + size > max_bytes:
            break
        if head.here == head.total:
            content = _small(reader, address(head))
            if content == NULL:
                reader.walk.error = ENOMEM
                what = STEP_IO
                break
            reader_pass(address(reader.walk), address(record))
        else:
            what = _large(reader, address(record), address(head), address(content))
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
