"""Container files read by LSN (see containers.pxd; layout: docs/FORMAT.md).

in: a directory of containers, LSNs. out: records whose CRC names their LSN, contents put together from chunks, blocks.

I1  No byte is handed out that was not covered by a CRC checked in our own memory.
I2  No length from a file is used before it was compared with the bytes there.
I3  At most `memory` bytes of containers are held (but three containers always).
"""

from __future__ import annotations

import os
import threading

import cython
from cython import (
    NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, char, declare, exceptval, nogil, p_char, p_void, pointer, sizeof, ulonglong, void,
)  # fmt: skip
from cython import int as c_int
from cython.cimports.flintmq.core.crc32c import crc32c
from cython.cimports.flintmq.store.log.reader import log_reader_t, reader_following, reader_record_at
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER, BRIEF_FIXED, CONTAINER_HEADER, CONTENT_MAX, RECORD_CHUNK, RECORD_COPY, RECORD_MESSAGE, SECTOR, STREAM_SALVAGE_EFFORT,
    align8, align_sector, block_decode, block_t, brief_head, content_head, head_t, le32, le64, record_t, shape_head, shape_t,
)  # fmt: skip
from cython.cimports.libc.errno import EINTR, ENOENT, errno
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdio import snprintf
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.posix.fcntl import O_CLOEXEC, O_RDONLY
from cython.cimports.posix.fcntl import open as c_open
from cython.cimports.posix.unistd import close as c_close
from cython.cimports.posix.unistd import pread

from flintmq.store.log.containers import HEADER_SIZE, SIZE_MAX, SIZE_MIN, read_header, sequence_of

# bytes that are read at least
PIECE = declare(uint64_t, 65536)
# The chunks of a message are written one behind the other, with other threads' records between: a chunk that is not found within this
# many containers does not exist.
CHUNK_CONTAINERS = declare(uint64_t, 16)
# what may be read of a log whose end nobody told
NO_LIMIT = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
MEMORY = 64 * 1024 * 1024
VIEWS_MIN = 3
VIEWS_MAX = 256


@cfunc
@nogil
@exceptval(check=False)
def _load(reader: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    """As much as is in memory around `lsn`, after the pieces that hold these bytes were read (see reader_load_t)."""
    size: uint64_t = reader.container_size
    offset: uint64_t = lsn % size
    end: uint64_t = min(offset + least, size)
    view: pointer[view_t] = cast(Containers, reader.context).open(lsn // size)
    reader.window_end = 0
    if view == NULL or not cast(Containers, reader.context).load(view, offset, end - offset):
        reader.error = cast(Containers, reader.context).error
        return 0
    end = (end + PIECE - 1) // PIECE
    while end * PIECE < size and view.loaded[end >> 6] >> (end & 63) & 1:
        end += 1
    reader.window = view.bytes + offset // PIECE * PIECE
    reader.window_lsn = lsn - offset % PIECE
    reader.window_end = lsn - offset + min(end * PIECE, size)
    return reader.window_end - lsn


@cclass
class Containers:
    """Args: directory: of one log's containers ("": none, for bytes given by `give`); store_uuid: its 16 bytes, None to take that of the
    first container; log: 1 messages, 2 transactions; memory: bytes of containers held at most; container_size: 0 to take that of the
    first container. Not for use by two threads at once; its users hold `lock`."""

    def __cinit__(self, directory: str, store_uuid: bytes | None = None, log: int = 1, memory: int = MEMORY, container_size: int = 0):
        self.directory = directory
        self._path = os.fsencode(directory)
        self.path = self._path
        self.log = log
        self.memory = memory
        self.lock = threading.Lock()
        self.has_uuid = False
        if len(self._path) > 3900 or b"\0" in self._path:
            raise ValueError("the path of the log's directory is too long")
        if store_uuid is not None:
            if len(store_uuid) != 16:
                raise ValueError("the UUID of a store has 16 bytes")
            memcpy(self.uuid, cast(p_char, store_uuid), 16)
            self.has_uuid = True
        self.container_size = 0
        self.reader.load = _load
        self.reader.context = cast(p_void, self)
        self.reader.limit = NO_LIMIT
        self.reader.log_id = log
        self.reader.effort = STREAM_SALVAGE_EFFORT
        if container_size:
            self._set_size(container_size)

    def __dealloc__(self):
        i: uint32_t
        if self.views != NULL:
            for i in range(self.count):
                self.close_view(address(self.views[i]))
                free(self.views[i].bytes)
                free(self.views[i].loaded)
                free(self.views[i].blocks)
            free(self.views)
        free(self.scratch)

    @property
    def store_uuid(self) -> bytes | None:
        """16 bytes; None before a container was seen."""
        return cast(p_char, self.uuid)[:16] if self.has_uuid else None

    @property
    def users(self) -> object:
        """The lock that a user of this object holds."""
        return self.lock

    def close(self) -> None:
        """Gives descriptors back; the object can be used again."""
        with self.lock:
            self.forget()

    def give(self, sequence: int, data: bytes) -> None:
        """Takes a container from memory instead of a file (it must fit: the size of `data` is the container's)."""
        if not self.container_size:
            self._set_size(len(data))
        view: pointer[view_t] = address(self.views[0])
        if view.sequence or len(data) != self.container_size:
            raise ValueError("one container can be given, of the log's container size")
        if not self._room(view):
            raise MemoryError
        memcpy(view.bytes, cast(p_char, data), self.container_size)
        memset(view.loaded, 0xFF, ((self.container_size + PIECE - 1) // PIECE + 63) // 64 * 8)
        view.sequence = sequence
        view.pins = 1
        view.fd = -1

    def _set_size(self, size: uint64_t) -> None:
        i: uint32_t
        if size < SIZE_MIN or size > SIZE_MAX or size % SIZE_MIN:
            raise ValueError(f"{size} is no container size: not a multiple of {SIZE_MIN} up to {SIZE_MAX}")
        if self.views != NULL:
            raise ValueError("the container size is known")
        self.count = max(VIEWS_MIN, min(VIEWS_MAX, self.memory // size))
        self.views = cast(pointer[view_t], calloc(self.count, sizeof(view_t)))
        if self.views == NULL:
            raise MemoryError
        for i in range(self.count):
            self.views[i].fd = -1
        self.container_size = self.reader.container_size = self.reader.record_max = size

    def learn(self) -> c_int:
        """Finds out the container size, when it is not known yet; 0 stays when the log has no container. Raises: OSError."""
        if self.container_size or not self.directory:
            return 0
        for name in sorted(os.listdir(self.directory)):
            if sequence_of(name) is None:
                continue
            try:
                with open(os.path.join(self.directory, name), "rb") as file:
                    header = read_header(file.read(HEADER_SIZE))
            except FileNotFoundError:
                continue
            if header is not None and header.known:
                if not self.has_uuid:
                    memcpy(self.uuid, cast(p_char, header.store_uuid), 16)
                    self.has_uuid = True
                self._set_size(header.size)
                return 0
        return 0

    def raise_error(self) -> c_int:
        """Raises the OSError of a read that failed, if one did."""
        number = self.error
        self.error = self.reader.error = 0
        if number:
            raise OSError(number, f"cannot read the log in {self.directory}: {os.strerror(number)}")
        return 0

    # --- views

    def close_view(self, view: pointer[view_t]) -> void:
        if view.fd >= 0:
            c_close(view.fd)
        self.reader.window_end = 0
        view.fd = -1
        view.sequence = 0
        view.scanned = 0
        view.block_count = 0
        view.block_last = 0

    def forget(self) -> void:
        i: uint32_t
        if self.views == NULL:
            return
        for i in range(self.count):
            if self.views[i].pins == 0 and self.views[i].sequence:
                self.close_view(address(self.views[i]))

    def _room(self, view: pointer[view_t]) -> bint:
        words: uint64_t = ((self.container_size + PIECE - 1) // PIECE + 63) // 64
        if view.bytes == NULL:
            view.bytes = cast(pointer[uint8_t], malloc(self.container_size))
            view.loaded = cast(pointer[uint64_t], malloc(words * 8))
            if view.bytes == NULL or view.loaded == NULL:
                free(view.bytes)
                free(view.loaded)
                view.bytes = NULL
                view.loaded = NULL
                self.error = 12  # ENOMEM
                return False
        memset(view.loaded, 0, words * 8)
        return True

    def header_good(self, header: pointer[cython.const[uint8_t]], sequence: uint64_t) -> bint:
        return (
            memcmp(header, b"FLNTLOG1", 8) == 0
            and 1 <= le32(header + 8) <= 3
            and le32(header + 12) == SECTOR
            and crc32c(0, header, 508) == le32(header + 508)
            and (not self.has_uuid or memcmp(header + 16, self.uuid, 16) == 0)
            and le32(header + 32) == self.log
            and le64(header + 40) == sequence
            and le64(header + 48) == self.container_size
        )

    def open(self, sequence: uint64_t) -> pointer[view_t]:
        name: char[4096]
        header: uint8_t[512]
        i: uint32_t
        got: Py_ssize_t
        fd: c_int
        view: pointer[view_t] = NULL
        self.tick += 1
        for i in range(self.count):
            if self.views[i].sequence == sequence:
                self.views[i].used_at = self.tick
                return address(self.views[i])
            if self.views[i].pins == 0 and (view == NULL or self.views[i].used_at < view.used_at):
                view = address(self.views[i])
        if view == NULL or self.path[0] == 0 or sequence == 0:
            return NULL
        snprintf(name, 4096, b"%s/%020llu.flog", self.path, cast(ulonglong, sequence))
        while True:
            fd = c_open(name, O_RDONLY | O_CLOEXEC)
            if fd >= 0 or errno != EINTR:
                break
        if fd < 0:
            if errno != ENOENT:
                self.error = errno
            return NULL
        got = pread(fd, header, CONTAINER_HEADER, 0)
        if got != CONTAINER_HEADER or not self.header_good(header, sequence):
            if got < 0:
                self.error = errno
            c_close(fd)
            return NULL
        self.close_view(view)
        if not self._room(view):
            c_close(fd)
            return NULL
        view.fd = fd
        view.sequence = sequence
        view.used_at = self.tick
        return view

    def load(self, view: pointer[view_t], offset: uint64_t, size: uint64_t) -> bint:
        """Bytes [offset, offset + size) of the container are in memory; what a short file lacks reads as zeros. False: a read error."""
        piece: uint64_t = offset // PIECE
        upto: uint64_t
        first: uint64_t
        start: uint64_t
        end: uint64_t
        got: Py_ssize_t
        if offset + size > self.container_size:
            return False
        upto = (offset + size + PIECE - 1) // PIECE
        while piece < upto:
            if view.loaded[piece >> 6] >> (piece & 63) & 1:
                piece += 1
                continue
            first = piece
            start = piece * PIECE
            while piece < upto and not view.loaded[piece >> 6] >> (piece & 63) & 1:
                piece += 1
            end = min(piece * PIECE, self.container_size)
            while start < end:
                got = pread(view.fd, view.bytes + start, end - start, start)
                if got < 0 and errno == EINTR:
                    continue
                if got < 0:
                    self.error = errno
                    return False  # nothing of it counts as loaded: who asks again reads again
                if got == 0:
                    memset(view.bytes + start, 0, end - start)
                    break
                start += got
            while first < piece:
                view.loaded[first >> 6] |= cast(uint64_t, 1) << (first & 63)
                first += 1
        return True

    # --- blocks

    def block_of(self, lsn: uint64_t) -> pointer[known_block_t]:
        size: uint64_t = self.container_size
        offset: uint32_t = cast(uint32_t, lsn % size)
        base: uint64_t = lsn - offset
        view: pointer[view_t] = self.open(lsn // size)
        known: pointer[known_block_t]
        blocks: pointer[known_block_t]
        block: block_t
        low: uint32_t = 0
        high: uint32_t
        middle: uint32_t
        if view == NULL:
            return NULL
        if view.scanned == 0:
            view.scanned = CONTAINER_HEADER
        while view.scanned <= offset and view.scanned + BLOCK_HEADER <= size:
            if not self.load(view, view.scanned, BLOCK_HEADER):
                return NULL
            if not block_decode(view.bytes + view.scanned, base + view.scanned, size - view.scanned, self.log, address(block)):
                view.scanned += SECTOR
                continue
            if view.block_count == view.block_room:
                blocks = cast(pointer[known_block_t], realloc(view.blocks, (view.block_room * 2 + 64) * sizeof(known_block_t)))
                if blocks == NULL:
                    self.error = 12  # ENOMEM
                    return NULL
                view.blocks = blocks
                view.block_room = view.block_room * 2 + 64
            known = address(view.blocks[view.block_count])
            known.offset = cast(uint32_t, view.scanned)
            known.length = block.length
            known.time_us = block.time_us
            known.epoch = block.epoch
            known.records = block.records
            view.block_count += 1
            view.scanned = align_sector(view.scanned + block.length)
        if view.block_last < view.block_count:
            known = address(view.blocks[view.block_last])
            if known.offset <= offset and offset < known.offset + known.length:
                return known
        high = view.block_count
        while low < high:
            middle = (low + high) // 2
            if view.blocks[middle].offset <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return NULL
        known = address(view.blocks[low - 1])
        if offset >= known.offset + known.length:
            return NULL
        view.block_last = low - 1
        return known

    # --- contents

    def content(self, record: pointer[record_t], out: pointer[stored_content_t]) -> c_int:
        head: head_t
        size: uint64_t
        total: uint64_t
        here: uint64_t
        thing: uint64_t = record.undo_prev if record.type == RECORD_COPY else record.lsn
        limit: uint64_t
        known: pointer[known_block_t]
        run: pointer[cython.const[uint8_t]]
        bytes_: pointer[uint8_t]
        out.published_us = 0
        if record.type == RECORD_MESSAGE:
            return self._brief(record, out)
        if not content_head(record, address(head)) or head.total > CONTENT_MAX:
            return CONTENT_BAD
        out.body_len = head.body_len
        out.header_len = head.header_len
        out.route_len = head.route_len
        out.flags = head.flags
        out.priority = head.priority
        out.published_us = head.published_us
        here = head.here
        total = head.total
        run = head.run
        out.end = record.lsn + align8(record.length)
        if record.type != RECORD_COPY:
            known = self.block_of(record.lsn)
            if known == NULL:
                return CONTENT_SHORT
            out.published_us = known.time_us + record.time_us
        if here < total:
            if total > self.scratch_size:
                bytes_ = cast(pointer[uint8_t], realloc(self.scratch, total))
                if bytes_ == NULL:
                    self.error = 12  # ENOMEM
                    return CONTENT_SHORT
                self.scratch = bytes_
                self.scratch_size = total
            memcpy(self.scratch, run, here)
            limit = record.lsn + total + CHUNK_CONTAINERS * self.container_size
            while here < total:
                if out.end > limit or not reader_following(address(self.reader), out.end, 0, record):
                    return CONTENT_SHORT
                out.end = record.lsn + align8(record.length)
                if record.type != RECORD_CHUNK or record.undo_prev != thing or record.size < 4 or le32(record.data) != here:
                    continue
                size = record.size - 4
                if here + size > total:
                    return CONTENT_BAD
                memcpy(self.scratch + here, record.data + 4, size)
                here += size
            run = self.scratch
        out.route = run
        out.header = run + out.route_len
        out.body = out.header + out.header_len
        return CONTENT_GOOD

    def shape_of(self, record: pointer[record_t], out: pointer[shape_t]) -> c_int:
        other: record_t
        distance: uint32_t = 0
        if not brief_head(record, address(distance)) or record.undo_prev // self.container_size != record.lsn // self.container_size:
            return CONTENT_BAD
        if not reader_record_at(address(self.reader), record.undo_prev, address(other)) or not shape_head(address(other), out):
            return CONTENT_SHORT
        out.position += distance
        return CONTENT_GOOD

    def _brief(self, record: pointer[record_t], out: pointer[stored_content_t]) -> c_int:
        """As content, of a Message: its route and header are in its shape, whose bytes are in the same container's memory."""
        shape: shape_t
        how: c_int
        known: pointer[known_block_t] = self.block_of(record.lsn)
        body: pointer[cython.const[uint8_t]] = record.data + BRIEF_FIXED
        out.body_len = record.size - BRIEF_FIXED if record.size >= BRIEF_FIXED else 0
        how = self.shape_of(record, address(shape))
        if how != CONTENT_GOOD or known == NULL:
            return CONTENT_SHORT if how == CONTENT_GOOD else how
        out.header_len = shape.head.header_len
        out.route_len = shape.head.route_len
        out.flags = shape.head.flags
        out.priority = shape.head.priority
        out.published_us = known.time_us + record.time_us
        out.end = record.lsn + align8(record.length)
        out.route = shape.head.run
        out.header = out.route + out.route_len
        out.body = body
        return CONTENT_GOOD
