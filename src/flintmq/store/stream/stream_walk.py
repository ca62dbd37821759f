"""A reader's way through the log of a stream: windows, blocks, records, containers (see stream_walk.pxd).

in: containers of the log, through the file port. out: records that check, one after the other; places to begin at.

I1  A record is given only when its CRC matches its LSN.
I2  Only bytes below the durable LSN are looked at: they never change any more, so a window once read stays true.

The chain of commit blocks tells the end of a container from a damaged place in it, as in recovery (docs/FORMAT.md, "Reading").
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, inline, long, nogil, pointer, sizeof, void, with_gil
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import arena_free, arena_new
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.store.log.file_port import FilePort
from cython.cimports.flintmq.store.log.log import log_t
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER,
    CONTAINER_HEADER,
    RECORD_HEADER,
    SECTOR,
    STREAM_SALVAGE_EFFORT,
    align_sector,
    block_decode,
    block_t,
    le32,
    le64,
    record_decode,
    record_t,
)
from cython.cimports.flintmq.store.stream.stream_content import RECORD_STREAM_CHUNK, RECORD_STREAM_MARK, RECORD_STREAM_MESSAGE
from cython.cimports.flintmq.store.stream.stream_log import PLACE_UNKNOWN, stream_decref, stream_incref, stream_learn, stream_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, malloc
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
    reader.window_end = 0


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
        reader.context = files.context
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
def _load(reader: pointer[stream_reader_t], lsn: uint64_t) -> uint64_t:
    """Reads a window from `lsn` on: durable bytes of one container. Returns how many; 0 with reader.error when the disk refuses, without
    when the container is not there."""
    log: pointer[log_t] = reader.stream.dirty.log
    sequence: uint64_t = lsn // log.container_size
    end: uint64_t = min((sequence + 1) * log.container_size, reader.limit)
    size: uint64_t
    got: long
    error: c_int
    before: timespec
    after: timespec
    reader.window_end = 0
    if lsn >= end:
        return 0
    if reader.window == NULL:
        reader.window = cast(pointer[uint8_t], malloc(WINDOW))
        if reader.window == NULL:
            reader.error = 12
            return 0
        memory_add(MEMORY_STREAMS, WINDOW)
    clock_gettime(CLOCK_MONOTONIC, address(before))
    error = _open(reader, sequence)
    if error:
        reader.error = 0 if error == 2 else error
        return 0
    size = min(end - lsn, WINDOW)
    got = reader.read_at(reader.context, reader.fd, reader.window, size, lsn % log.container_size)
    clock_gettime(CLOCK_MONOTONIC, address(after))
    reader.io_ns += (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec
    if got < 0:
        reader.error = cast(c_int, -got)
        return 0
    reader.window_lsn = lsn
    reader.window_end = lsn + got
    reader.bytes_read += got
    return got


@cfunc
@inline
@nogil
@exceptval(check=False)
def _fill(reader: pointer[stream_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    """Bytes that the window has at `lsn`: `least`, unless there are fewer."""
    if reader.window_lsn <= lsn and lsn + least <= reader.window_end:
        return reader.window_end - lsn
    return _load(reader, lsn)


# --- blocks and records -----------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _enter(reader: pointer[stream_reader_t], lsn: uint64_t, chained: bint) -> bint:
    """Goes into the block at `lsn` if there is one; chained: it must follow the present one."""
    block: block_t
    size: uint64_t = reader.stream.dirty.log.container_size
    have: uint64_t = _fill(reader, lsn, BLOCK_HEADER)
    log_id: uint32_t = reader.stream.dirty.log.id
    if have < BLOCK_HEADER or not block_decode(reader.window + (lsn - reader.window_lsn), lsn, size - lsn % size, log_id, address(block)):
        return False
    if (chained and block.previous != reader.block) or lsn + block.length > reader.limit:
        return False
    reader.block = lsn
    reader.block_end = lsn + block.length
    reader.block_us = block.time_us
    reader.at = lsn + BLOCK_HEADER
    return True


@cfunc
@nogil
@exceptval(check=False)
def _next_block(reader: pointer[stream_reader_t]) -> c_int:
    """STEP_RECORD: it stands at the first record of the next block; else why not, and nothing moved."""
    size: uint64_t = reader.stream.dirty.log.container_size
    container: uint64_t = (reader.block_end - 1) // size * size
    candidate: uint64_t = align_sector(reader.block_end)
    following: uint64_t = container + size + CONTAINER_HEADER
    chained: bint = reader.block != 0
    if candidate >= reader.limit:
        return STEP_END
    if candidate + BLOCK_HEADER <= container + size:
        if _enter(reader, candidate, chained):
            return STEP_RECORD
        if reader.error:
            return STEP_IO
        if not chained:
            return STEP_BAD  # nothing tells whether the container ends here
    if following >= reader.limit:
        return STEP_BAD if candidate < container + size else STEP_END
    if _enter(reader, following, chained):
        return STEP_RECORD
    return STEP_IO if reader.error else STEP_BAD


def stream_step(reader: pointer[stream_reader_t], out: pointer[record_t]) -> c_int:
    """The record at the reader's place, which does not move: or why there is none."""
    what: c_int
    have: uint64_t
    length: uint64_t
    while reader.at >= reader.block_end:
        what = _next_block(reader)
        if what != STEP_RECORD:
            return what
    have = _fill(reader, reader.at, RECORD_HEADER)
    if have < RECORD_HEADER:
        return STEP_IO if reader.error else STEP_BAD
    length = le32(reader.window + (reader.at - reader.window_lsn))
    if length < RECORD_HEADER or length > reader.block_end - reader.at or length > WINDOW:
        return STEP_BAD
    have = _fill(reader, reader.at, length)
    if have < length:
        return STEP_IO if reader.error else STEP_BAD
    if not record_decode(reader.window + (reader.at - reader.window_lsn), reader.at, have, reader.block_us, True, out):
        return STEP_BAD
    return STEP_RECORD


@cfunc
@nogil
@exceptval(check=False)
def _place_at(reader: pointer[stream_reader_t], sequence: uint64_t) -> void:
    """At the beginning of a container."""
    reader.block = 0
    reader.at = sequence * reader.stream.dirty.log.container_size + CONTAINER_HEADER
    reader.block_end = reader.at


@cfunc
@nogil
@exceptval(check=False)
def _bad_container(reader: pointer[stream_reader_t]) -> uint64_t:
    """The container to be named: between two blocks that is the next one when this one just ends there, in zeros."""
    size: uint64_t = reader.stream.dirty.log.container_size
    sequence: uint64_t = (reader.at - 1) // size
    at: uint64_t = align_sector(reader.block_end)
    i: uint32_t
    if reader.at < reader.block_end or at <= sequence * size + CONTAINER_HEADER:
        return sequence
    if at + BLOCK_HEADER <= (sequence + 1) * size:
        if _fill(reader, at, BLOCK_HEADER) < BLOCK_HEADER:
            return sequence
        for i in range(BLOCK_HEADER):
            if reader.window[at - reader.window_lsn + i]:
                return sequence
    return sequence + 1


def stream_recover(reader: pointer[stream_reader_t]) -> c_int:
    """Behind a place that does not check: goes to the next record that does, in this block, a later one, a later container. STEP_RECORD,
    STEP_END when nothing durable follows, STEP_IO."""
    size: uint64_t = reader.stream.dirty.log.container_size
    at: uint64_t
    end: uint64_t
    have: uint64_t
    length: uint64_t
    effort: uint64_t
    record: record_t
    if reader.at != reader.bad_at:
        reader.bad_at = reader.at
        _tell(reader, _bad_container(reader))
    if reader.at < reader.block_end:
        at = reader.at + 8
        effort = STREAM_SALVAGE_EFFORT * (reader.block_end - reader.block)
        while at + RECORD_HEADER <= reader.block_end:
            have = _fill(reader, at, RECORD_HEADER)
            if have < RECORD_HEADER:
                break
            length = le32(reader.window + (at - reader.window_lsn))
            if RECORD_HEADER <= length <= min(reader.block_end - at, WINDOW):
                if effort < length:
                    break
                effort -= length
                have = _fill(reader, at, length)
                if have >= length and record_decode(
                    reader.window + (at - reader.window_lsn), at, have, reader.block_us, True, address(record)
                ):
                    reader.at = at
                    return STEP_RECORD
            at += 8
        if reader.error:
            return STEP_IO
        reader.at = reader.block_end
        reader.block = 0
    at = align_sector(reader.block_end)
    end = ((reader.block_end - 1) // size + 1) * size
    while at < reader.limit:
        while at + BLOCK_HEADER <= end and at < reader.limit:
            if _enter(reader, at, False):
                return STEP_RECORD
            if reader.error:
                return STEP_IO
            if reader.window_end <= at:
                break  # the container is not there
            at += SECTOR
        at = end + CONTAINER_HEADER
        end += size
    return STEP_END


@cfunc
@nogil
@exceptval(check=False)
def _tell(reader: pointer[stream_reader_t], sequence: uint64_t) -> void:
    """The broker's log names the container, unless retention just took it."""
    log: pointer[log_t] = reader.stream.dirty.log
    gone: bint
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
def _next_offset(reader: pointer[stream_reader_t], first_us: pointer[uint64_t]) -> uint64_t:
    """The offset that the record at the reader's place tells: of the message that starts there or behind it."""
    record: record_t
    what: c_int
    while True:
        what = stream_step(reader, address(record))
        if what == STEP_BAD:
            what = stream_recover(reader)
            if what == STEP_RECORD:
                continue
        if what != STEP_RECORD:
            return PLACE_UNKNOWN
        if record.size >= 8:
            first_us[0] = record.time_us
            if record.type == RECORD_STREAM_MESSAGE or record.type == RECORD_STREAM_MARK:
                return le64(record.data)
            if record.type == RECORD_STREAM_CHUNK:
                return le64(record.data) + 1
        stream_pass(reader, address(record))


def stream_first_of(reader: pointer[stream_reader_t], sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    stream: pointer[stream_t] = reader.stream
    found: uint64_t
    first_us[0] = 0
    spin_lock(address(stream.places_lock))
    found = PLACE_UNKNOWN
    if sequence >= stream.places_base and sequence - stream.places_base < stream.place_count:
        found = stream.places[sequence - stream.places_base].first_offset
        first_us[0] = stream.places[sequence - stream.places_base].first_us
    spin_unlock(address(stream.places_lock))
    if found != PLACE_UNKNOWN:
        return found
    reader.limit = at_load64(address(stream.dirty.log.durable))
    reader.error = 0
    _place_at(reader, sequence)
    found = _next_offset(reader, first_us)
    reader.window_end = 0
    # It may have walked on into a later container: then this one holds nothing that can be read, and its place stays unknown.
    if found == PLACE_UNKNOWN or (reader.at - 1) // stream.dirty.log.container_size != sequence:
        found = PLACE_UNKNOWN
    else:
        stream_learn(stream, sequence, found, first_us[0])
    reader.at = 0
    return found


@cfunc
@nogil
@exceptval(check=False)
def _bounds(reader: pointer[stream_reader_t], low: pointer[uint64_t], high: pointer[uint64_t]) -> bint:
    """The lowest container and the one that the last durable byte is in. False: there is none."""
    log: pointer[log_t] = reader.stream.dirty.log
    spin_lock(address(log.lock))
    low[0] = log.first_sequence
    high[0] = (log.durable - 1) // log.container_size
    if log.container_count == 0:
        high[0] = 0
    spin_unlock(address(log.lock))
    return high[0] >= low[0]


def stream_search(reader: pointer[stream_reader_t], offset: uint64_t, us: uint64_t) -> bint:
    """Goes to the beginning of the last container whose first offset (or first time, when `us` is given) is not above the wanted one;
    containers that can't be read are passed over. False: there is none, or the disk refused."""
    low: uint64_t = 0
    high: uint64_t = 0
    middle: uint64_t
    probe: uint64_t
    found: uint64_t
    first_us: uint64_t = 0
    if not _bounds(reader, address(low), address(high)):
        return False
    while low < high:
        middle = low + (high - low + 1) // 2
        probe = middle
        found = stream_first_of(reader, probe, address(first_us))
        while found == PLACE_UNKNOWN and not reader.error and probe < high:
            probe += 1
            found = stream_first_of(reader, probe, address(first_us))
        if reader.error:
            return False
        if found != PLACE_UNKNOWN and (first_us < us if us else found <= offset):
            low = probe
        else:
            high = middle - 1
    _place_at(reader, low)
    reader.offset = 0
    return True
