"""The windows of a reader of a stream, and the places that it begins at (see stream_walk.pxd).

in: containers of the log, through the file port. out: bytes for the log's reader (store/log/reader.py); places to begin at.

I1  Only bytes below the durable LSN are looked at: they never change any more, so a window once read stays true.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_void, pointer, sizeof, void, with_gil
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import arena_free, arena_new
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.store.log.file_port import FilePort
from cython.cimports.flintmq.store.log.log import log_t
from cython.cimports.flintmq.store.log.reader import log_reader_t, reader_begin, reader_fill, reader_read
from cython.cimports.flintmq.store.log.record import BLOCK_HEADER, CONTAINER_HEADER, STREAM_SALVAGE_EFFORT, align_sector
from cython.cimports.flintmq.store.stream.stream_log import stream_decref, stream_incref, stream_learn, stream_t
from cython.cimports.flintmq.store.stream.stream_places import PLACE_UNKNOWN, stream_container, stream_look
from cython.cimports.libc.errno import ENOENT, ENOMEM
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
    offset: uint64_t = PLACE_UNKNOWN
    first_us[0] = 0
    spin_lock(address(stream.places_lock))
    if sequence >= stream.places_base and sequence - stream.places_base < stream.place_count:
        offset = stream.places[sequence - stream.places_base].first_offset
        first_us[0] = stream.places[sequence - stream.places_base].first_us
    spin_unlock(address(stream.places_lock))
    if offset != PLACE_UNKNOWN:
        return offset
    reader.walk.limit = at_load64(address(stream.dirty.log.durable))
    reader.walk.error = 0
    offset = stream_look(address(reader.walk), sequence, first_us)
    reader.walk.window_end = 0
    reader.walk.at = 0
    if offset != PLACE_UNKNOWN:
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
