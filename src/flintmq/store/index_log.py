"""The index log: runs of entries that left memory; its containers come back when nothing needs them (see index_log.pxd).

in: runs of the queues' pager, reads of it. out: Index-Run records behind all that they rest on; containers that are free again.

X1  The writer writes this log after the message log: what was appended to that before a record of this one is on disk before it.
X2  A run that nothing in memory names is dead. Its container goes when nothing there lives, and nothing that ended there is kept
    (`keep_from`).
X3  A run that is written anew keeps its name, which readers give; the place of the newest copy is in `log_t.moved`.
X4  The log has no file before its first record: a small store whose queues fit into memory has none.

Threading: the C functions: any thread that may wait for a disk; the class: the store's maintenance.
"""

from __future__ import annotations

import logging

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, long, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.hash64 import map64_put, map64_remove
from cython.cimports.flintmq.store.log.log import (
    log_append, log_append_done, log_begin, log_dead, log_end, log_is_live, log_live, log_read_buffered, log_t, log_time, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD, STEP_RECORD, log_reader_t, reader_begin, reader_pass, reader_salvage, reader_step,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, CONTAINER_HEADER, RECORD_HEADER, RECORD_INDEX_RUN, SALVAGE_EFFORT, align8, le32, record_decode, record_encode, record_t,
)  # fmt: skip
from cython.cimports.flintmq.store.log.writer import writer_kick_soon
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy, memset

from flintmq.store.log.containers import TEMPORARY, sequence_of
from flintmq.store.log.log import CONTAINER_SEALED

log = logging.getLogger("flintmq.store")

# bytes of a container, unless those of the message log are smaller
INDEX_CONTAINER = 1 << 20
# bytes of runs that wait for the writer at most
UNWRITTEN_MAX = declare(uint64_t, 8 << 20)
# containers of the log that are not looked at, on top of twice what lives
SPARE_CONTAINERS = 4


# --- the message path's side ----------------------------------------------------------------------------------------------------


def index_run_most(index: pointer[index_log_t]) -> uint32_t:
    if index.log == NULL:
        return 0
    return cast(uint32_t, index.log.buffer_size - CONTAINER_HEADER - BLOCK_HEADER - RECORD_HEADER)


@cfunc
@nogil
@exceptval(check=False)
def _write(log: pointer[log_t], kind: uint8_t, bytes_: pointer[cython.const[uint8_t]], length: uint32_t, first: uint64_t) -> uint64_t:
    """An Index-Run, or a record of a checkpoint, live. first: name of the run that it replaces, first record of the checkpoint; 0: this is
    the first. Log lock held. Returns its LSN; 0: the log refuses."""
    lsn: uint64_t = 0
    size: uint32_t = RECORD_HEADER + length
    record: pointer[uint8_t] = log_append(log, size, address(lsn))
    if record == NULL:
        return 0
    memcpy(record_encode(record, size, kind, 0, 0, log_time(log), first, 0, 0), bytes_, length)
    log_append_done(log, record, size, lsn)
    log_live(log, lsn, align8(size))
    return lsn


def index_append_run(index: pointer[index_log_t], bytes: pointer[cython.const[uint8_t]], length: uint32_t) -> uint64_t:
    return index_append_part(index, RECORD_INDEX_RUN, 0, bytes, length)


def index_append_part(
    index: pointer[index_log_t], kind: uint8_t, first: uint64_t, bytes: pointer[cython.const[uint8_t]], length: uint32_t
) -> uint64_t:
    lsn: uint64_t = 0
    log: pointer[log_t] = index.log
    if log == NULL or length == 0 or length > index_run_most(index) or (index.disk_low != NULL and at_load32(index.disk_low)):
        at_add64(address(index.refused), 1)
        return 0
    log_begin(log)
    if log.tail - at_load64(address(log.durable)) <= index.unwritten_max:
        lsn = _write(log, kind, bytes, length, first)
    log_end(log)
    if lsn == 0:
        at_add64(address(index.refused), 1)
    elif index.writer != NULL:
        writer_kick_soon(index.writer)
    return lsn


def index_run_at(index: pointer[index_log_t], lsn: uint64_t) -> uint64_t:
    place: uint64_t
    log_begin(index.log)
    place = log_where(index.log, lsn)
    log_end(index.log)
    return place


def index_run_dead(index: pointer[index_log_t], lsn: uint64_t) -> void:
    log: pointer[log_t] = index.log
    if log == NULL:
        return
    log_begin(log)
    # Dead as of the present tail (X2).
    log_dead(log, log_where(log, lsn), log.tail)
    if log.moved.count:
        map64_remove(address(log.moved), lsn)
    log_end(log)


# --- reading ----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _take_descriptor(index: pointer[index_log_t], sequence: uint64_t, number: pointer[c_int]) -> c_int:
    """A descriptor of the container; `*number`: its place in the table, -1: it is the caller's to close. -1: it can't be opened."""
    i: c_int
    fd: c_int
    old: c_int = -1
    free_: c_int = -1
    number[0] = -1
    spin_lock(address(index.lock))
    for i in range(INDEX_DESCRIPTORS):
        if index.descriptors[i].sequence == sequence:
            index.uses += 1
            index.descriptors[i].used = index.uses
            index.descriptors[i].users += 1
            fd = index.descriptors[i].fd
            number[0] = i
            spin_unlock(address(index.lock))
            return fd
    spin_unlock(address(index.lock))
    fd = index_open(index.owner, sequence)
    if fd < 0:
        return -1
    spin_lock(address(index.lock))
    for i in range(INDEX_DESCRIPTORS):
        if index.descriptors[i].sequence == sequence:
            free_ = -1  # another read was quicker
            break
        if index.descriptors[i].users == 0 and (free_ < 0 or index.descriptors[i].used < index.descriptors[free_].used):
            free_ = i
    if free_ >= 0:
        old = index.descriptors[free_].fd if index.descriptors[free_].sequence else -1
        index.uses += 1
        index.descriptors[free_].sequence = sequence
        index.descriptors[free_].fd = fd
        index.descriptors[free_].users = 1
        index.descriptors[free_].used = index.uses
        number[0] = free_
    spin_unlock(address(index.lock))
    if old >= 0:
        index_close(index.owner, old)
    return fd


@cfunc
@nogil
@exceptval(check=False)
def _give_descriptor(index: pointer[index_log_t], number: c_int, fd: c_int) -> void:
    if number < 0:
        index_close(index.owner, fd)
        return
    spin_lock(address(index.lock))
    check(index.descriptors[number].users > 0, b"index_log X2 a descriptor that comes back was in use", number, fd)
    index.descriptors[number].users -= 1
    spin_unlock(address(index.lock))


@cfunc
@nogil
@exceptval(check=False)
def _bytes_at(index: pointer[index_log_t], lsn: uint64_t, out: pointer[uint8_t], size: uint64_t) -> bint:
    """`size` bytes of the log: out of the write buffers, else out of their file. False: they are not there."""
    number: c_int = -1
    fd: c_int
    count: long
    if log_read_buffered(index.log, lsn, out, size) == size:
        return True
    fd = _take_descriptor(index, lsn // index.log.container_size, address(number))
    if fd < 0:
        return False
    at_add64(address(index.reads), 1)
    count = index.read_at(index.files, fd, out, size, lsn % index.log.container_size)
    _give_descriptor(index, number, fd)
    return count == cast(long, size)


@cfunc
@nogil
@exceptval(check=False)
def _read(index: pointer[index_log_t], lsn: uint64_t, out: pointer[uint8_t], room: uint32_t) -> uint32_t:
    """The run whose record stands there."""
    header: uint8_t[RECORD_HEADER]
    length: uint32_t
    size: uint32_t = 0
    record: record_t
    bytes_: pointer[uint8_t]
    offset: uint64_t = lsn % index.log.container_size
    if lsn & 7 or offset < CONTAINER_HEADER + BLOCK_HEADER or offset + RECORD_HEADER > index.log.container_size:
        return 0
    if not _bytes_at(index, lsn, header, RECORD_HEADER):
        return 0
    length = le32(header)
    if length < RECORD_HEADER or length > index.log.container_size - offset or length - RECORD_HEADER > room:
        return 0
    bytes_ = cast(pointer[uint8_t], malloc(length))
    if bytes_ == NULL:
        return 0
    if (
        _bytes_at(index, lsn, bytes_, length)
        and record_decode(bytes_, lsn, length, 0, True, address(record))
        and record.type == RECORD_INDEX_RUN
        and record.size <= room
    ):
        size = record.size
        memcpy(out, record.data, size)
    free(bytes_)
    return size


def index_read_run(index: pointer[index_log_t], lsn: uint64_t, out: pointer[uint8_t], room: uint32_t) -> uint32_t:
    size: uint32_t
    place: uint64_t
    before: uint64_t = 0
    if index.log == NULL:
        return 0
    place = index_run_at(index, lsn)
    size = _read(index, place, out, room)
    while size == 0 and place != before:  # it may have been written anew meanwhile, and its container be gone
        before = place
        place = index_run_at(index, lsn)
        if place != before:
            size = _read(index, place, out, room)
    return size


def index_open(owner: p_void, sequence: uint64_t) -> c_int:
    self: IndexLog = cast(IndexLog, owner)
    try:
        return self.files.open(self.log.path_of(sequence))
    except OSError:
        return -1


def index_close(owner: p_void, fd: c_int) -> void:
    self: IndexLog = cast(IndexLog, owner)
    self.files.close(fd)


# --- containers -------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _in_memory(walk: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    """The whole container is in reach from the beginning (see reader_load_t)."""
    return walk.window_end - lsn if walk.window_lsn <= lsn < walk.window_end else 0


@cfunc
@nogil
@exceptval(check=False)
def _move_runs(log: pointer[log_t], bytes_: pointer[uint8_t], size: uint64_t, sequence: uint64_t) -> uint64_t:
    """Writes the live runs of a container anew, whose first `size` bytes these are. Returns how many."""
    walk: log_reader_t
    record: record_t
    step: c_int
    name: uint64_t
    lsn: uint64_t
    count: uint64_t = 0
    memset(address(walk), 0, sizeof(log_reader_t))
    walk.load = _in_memory
    walk.container_size = walk.record_max = log.container_size
    walk.limit = (sequence + 1) * log.container_size
    walk.log_id = log.id
    walk.effort = SALVAGE_EFFORT
    walk.window = bytes_
    walk.window_lsn = sequence * log.container_size
    walk.window_end = walk.window_lsn + size
    reader_begin(address(walk), sequence)
    while True:
        step = reader_step(address(walk), address(record))
        if step == STEP_BAD:
            step = reader_salvage(address(walk))
            if step == STEP_RECORD:
                continue
        if step != STEP_RECORD:
            return count
        reader_pass(address(walk), address(record))
        if record.type != RECORD_INDEX_RUN or record.size == 0:  # an empty one never lived
            continue
        name = record.undo_prev if record.undo_prev else record.lsn
        log_begin(log)
        if log_is_live(log, record.lsn) and log_where(log, name) == record.lsn:
            lsn = _write(log, RECORD_INDEX_RUN, record.data, record.size, name)
            if lsn and map64_put(address(log.moved), name, lsn):
                check(lsn > record.lsn, b"index_log X3 a run that is written anew stands behind the old one", lsn, record.lsn)
                log_dead(log, record.lsn, log.tail)
                count += 1
            elif lsn:
                log_dead(log, lsn, log.tail)
        log_end(log)


@cclass
class IndexLog:
    """One index log. Args: log: its ManagedLog, open; nothing of what it holds is believed yet."""

    def __cinit__(self, log: ManagedLog):
        memset(address(self.index), 0, sizeof(index_log_t))
        self.log = log
        self.files = log.files
        self.index.log = log.log
        self.index.owner = cast(p_void, self)
        self.index.read_at = log.files.read_at
        self.index.files = log.files.context
        self.index.unwritten_max = UNWRITTEN_MAX

    def close(self) -> None:
        """Closes every descriptor. No run is read or written any more."""
        i: c_int
        for i in range(INDEX_DESCRIPTORS):
            if self.index.descriptors[i].sequence:
                self.files.close(self.index.descriptors[i].fd)
                self.index.descriptors[i].sequence = 0
        self.log.close()

    @property
    def begun(self) -> bool:
        """Whether something was ever appended, or is there from an earlier run (X4)."""
        return self.index.log.container_count != 0

    @property
    def figures(self) -> dict:
        """refused: runs that were not taken; reads: of files; moved: runs that were written anew."""
        return {"refused": at_load64(address(self.index.refused)), "reads": at_load64(address(self.index.reads)), "moved": self.moved_runs}

    def maintain(self) -> bool:
        """One pass: containers without anything that is needed become dead, and the oldest one's runs are written anew when most of the
        log is dead. True: something waits for a sync. Raises: OSError, StoreError."""
        if self.log.advance_base() or (self.log.base > self.log.base_durable and not self.log.dirty):
            self.log.append(RECORD_INDEX_RUN)  # the base is told by the next block
        if self.log.retire():
            self._close_below(self.log.base // self.log.container_size)
        return self._move_oldest() or self.log.base > self.log.base_durable

    def _close_below(self, sequence: uint64_t):
        i: c_int
        closing: list = []
        spin_lock(address(self.index.lock))
        for i in range(INDEX_DESCRIPTORS):
            if self.index.descriptors[i].sequence and self.index.descriptors[i].sequence < sequence and not self.index.descriptors[i].users:
                closing.append(self.index.descriptors[i].fd)
                self.index.descriptors[i].sequence = 0
        spin_unlock(address(self.index.lock))
        for fd in closing:
            self.files.close(fd)

    def _move_oldest(self):
        """Writes the runs of the oldest container in which something lives anew, if the log from there on is more than twice what lives.
        True: it did. Those below do not count: they are kept (X2)."""
        oldest = next((one for one in self.log.containers() if one[1]), None)
        used = 0 if oldest is None else self.log.tail - (oldest[0] + SPARE_CONTAINERS) * self.log.container_size
        if oldest is None or oldest[3] != CONTAINER_SEALED or used <= 2 * self.log.live_bytes or self._stuck == oldest[:2]:
            return False
        number: uint64_t = oldest[0]
        size: uint64_t = self.log.container_size
        got: long
        count: uint64_t = 0
        bytes_: pointer[uint8_t] = cast(pointer[uint8_t], malloc(size))
        if bytes_ == NULL:
            return False
        try:
            fd: c_int = self.files.open(self.log.path_of(oldest[0]))
            with nogil:
                got = self.index.read_at(self.index.files, fd, bytes_, size, 0)
                if got > 0:
                    count = _move_runs(self.index.log, bytes_, cast(uint64_t, got), number)
            self.files.close(fd)
        finally:
            free(bytes_)
        self.moved_runs += count
        self._stuck = next((one[:2] for one in self.log.containers() if one[0] == oldest[0] and one[1]), None)
        return count != 0


def clear_index(files: object, directory: str) -> None:
    """Throws an index log away that can't be used: the message log has all that it had. Raises: OSError."""
    names = [name for name in files.list_dir(directory) if sequence_of(name) is not None or name.endswith(TEMPORARY)]
    for name in names:
        files.unlink(f"{directory}/{name}")
    if names:
        files.sync_dir(directory)
