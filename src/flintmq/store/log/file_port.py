"""The file port: everything the log asks of the operating system (see file_port.pxd), and its real implementation.

in: the log's containers and writer. out: system calls. A simulated twin stands in tests/twins/sim_disk.py; nothing else in the store opens
or writes a file of the log, which is what makes its crash tests complete.

Rules (docs/RELIABILITY.md): pwrite, never a store through mmap; one descriptor from the first write to the last sync; a failed sync is
never retried; a new name counts after the directory's fsync. Direct writes (docs/adr/0007-direct-writes.md) change none of them: only a
sync makes bytes durable.
"""

from __future__ import annotations

import contextlib
import errno as errno_module
import fcntl
import os
import threading
import time

import cython
from cython import (
    NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, declare, exceptval, long, nogil, p_char, p_void, pointer, pp_char, size_t, sizeof,
    void,
)  # fmt: skip
from cython import int as c_int
from cython.cimports.libc.errno import EINTR, EINVAL, errno
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy
from cython.cimports.posix.stdlib import posix_memalign
from cython.cimports.posix.unistd import pread, pwrite

# bytes of a new file that are brought into the page cache at most: more would be of use too late, and press on the pages that are
WARM_BYTES = 16 << 20
# where that is read to; nobody looks at it. It fits into the processor's second cache.
_UNREAD = bytearray(256 << 10)

# bytes of one read of read_into_cache: small enough for the processor's second cache
READ_PIECE = declare(size_t, 256 << 10)
# seconds in which a file is read ahead once, whoever asks for it; files of which that is known, the oldest goes
ASKED_S = 1.0
ASKED_MAX = 256
# 0 where the system has no such thing
O_DIRECT = declare(c_int, getattr(os, "O_DIRECT", 0))
# f_type of the file systems that keep reads through other descriptors coherent with direct writes (statfs(2))
EXT4 = declare(long, 0xEF53)
XFS = declare(long, 0x58465342)


@cfunc
@nogil
@exceptval(check=False)
def _write_at(context: p_void, fd: c_int, data: pointer[cython.const[void]], size: size_t, offset: uint64_t) -> c_int:
    data_at: p_char = cast(p_char, cast(p_void, data))
    count: Py_ssize_t
    error: c_int
    while size:
        count = pwrite(fd, data_at, size, offset)
        if count < 0:
            error = errno
            if error == EINTR or (error == EINVAL and _write_through_cache(fd)):
                continue
            return error
        data_at += count
        size -= count
        offset += count
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _write_through_cache(fd: c_int) -> bint:
    """A disk with larger sectors than the log's refused a direct write, before it began. False: the descriptor was not direct."""
    flags: c_int = c_fcntl(fd, F_GETFL)
    return flags >= 0 and flags & O_DIRECT != 0 and c_fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0


@cfunc
@nogil
@exceptval(check=False)
def _read_at(context: p_void, fd: c_int, data: p_void, size: size_t, offset: uint64_t) -> long:
    data_at: p_char = cast(p_char, data)
    done: long = 0
    count: Py_ssize_t
    while size:
        count = pread(fd, data_at, size, offset)
        if count < 0:
            if errno == EINTR:
                continue
            return -errno
        if count == 0:
            break
        data_at += count
        size -= count
        offset += count
        done += count
    return done


@cfunc
@nogil
@exceptval(check=False)
def _sync_data(context: p_void, fd: c_int) -> c_int:
    if fdatasync(fd) == 0:
        return 0
    return errno


def direct_memory(size: size_t, huge: bint) -> p_void:
    memory: p_void = NULL
    if posix_memalign(address(memory), HUGE_PAGE if huge else DIRECT_ALIGN, size) != 0:
        return NULL
    if huge:
        madvise(memory, size, MADV_HUGEPAGE)  # no harm when it is refused
    return memory


def read_into_cache(paths: list) -> None:
    """Reads the files from end to end, in their order and without the GIL: the page cache has them then. An unreadable file is left out."""
    scratch: p_void = direct_memory(READ_PIECE, False)
    names: pp_char
    count: size_t = len(paths)
    i: size_t
    fd: c_int
    encoded = [os.fsencode(path) for path in paths]
    names = cast(pp_char, calloc(count + 1, sizeof(p_char)))
    if names == NULL or scratch == NULL:
        free(scratch)
        free(names)
        return
    for i in range(count):
        names[i] = encoded[i]
    with nogil:
        for i in range(count):
            fd = c_open(names[i], O_RDONLY | O_CLOEXEC)
            if fd >= 0:
                while c_read(fd, scratch, READ_PIECE) > 0:
                    pass
                c_close(fd)
    free(scratch)
    free(names)


@cclass
class DirectReads:
    """See file_port.pxd."""

    def begin(self, read: pointer[direct_read_t]) -> bint:
        read.result = self.read_at(self.context, read.fd, read.data, read.size, read.offset)
        read.under_way = False
        return True

    def wait(self, read: pointer[direct_read_t]) -> void:
        pass


@cclass
class OsDirectReads(DirectReads):
    """The kernel's own asynchronous reads (io_submit(2)), which need no thread; they don't block when the page cache is not involved.

    Raises: OSError: the system has or allows no such thing, or has no more of it.
    """

    def __cinit__(self, most: int):
        self.opened = aio_open(most, address(self.queue)) == 0
        if not self.opened:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.opened:
            aio_close(self.queue)  # after all have ended

    def begin(self, read):
        read.under_way = aio_read(self.queue, read, read.fd, read.data, read.size, read.offset) == 1
        return read.under_way

    def wait(self, read):
        event: aio_event_t
        ended: pointer[direct_read_t]
        while read.under_way:
            if aio_wait(self.queue, address(event)) == 1:
                ended = cast(pointer[direct_read_t], event.data)
                ended.result = event.res
                ended.under_way = False


@cclass
class FilePort:
    """What the log needs of files. Every method raises OSError; paths are absolute strings."""

    def open(self, path: str, create: bool = False) -> int:
        """A descriptor for reading and writing. create: the file must not exist yet."""
        raise NotImplementedError

    def close(self, fd: int) -> None:
        raise NotImplementedError

    def allocate(self, fd: int, size: int, zero: bool) -> None:
        """Reserves `size` bytes from offset 0, so that no later write inside them fails for space. zero: write zeros, which makes
        later syncs cheaper; else they are reserved only. Raises OSError ENOSPC."""
        raise NotImplementedError

    def make_direct(self, fd: int) -> bool:
        """From now on writes go around the page cache, and nothing is read with this descriptor. Memory should begin at a multiple of
        DIRECT_ALIGN, offset and size be multiples of the disk's sector; what is not goes through the cache. False: this port or file
        system has no such thing, the descriptor is as it was. Never raises."""
        return False

    def warm(self, fd: int, size: int) -> None:
        """A file that was reserved is about to be written through the cache. Never raises."""

    def read_ahead(self, path: str) -> None:
        """That file will be read soon: the disk may begin. Does not wait for it; a file asked for again within a second is not read again.
        Never raises."""

    def open_direct(self, path: str) -> int:
        """A descriptor for reading around the page cache (see direct_reads). Raises OSError, also when the file system has no such
        thing."""
        raise NotImplementedError

    def direct_reads(self, most: int) -> DirectReads | None:
        """For up to `most` reads that are under way together, of descriptors of open_direct. None: this port or system has no such
        thing."""
        return None

    def write(self, fd: int, data: bytes, offset: int) -> None:
        raise NotImplementedError

    def read(self, fd: int, size: int, offset: int) -> bytes:
        raise NotImplementedError

    def data_end(self, fd: int, size: int) -> int:
        """Everything from here to `size` reads as zeros, since nothing was ever written there; `size` when the port can't tell. Of a
        container with little in it only that little need then be read. Never raises."""
        return size

    def sync(self, fd: int) -> None:
        """fdatasync."""
        raise NotImplementedError

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError

    def unlink(self, path: str) -> None:
        raise NotImplementedError

    def sync_dir(self, path: str) -> None:
        """fsync of the directory: names made, changed or removed in it count from now on."""
        raise NotImplementedError

    def make_dir(self, path: str) -> None:
        """Creates the directory (not its parents) when it is not there, and syncs its parent."""
        raise NotImplementedError

    def remove_dir(self, path: str) -> None:
        """Removes an empty directory; that it is there again after a crash must do no harm. Nothing is synced."""
        raise NotImplementedError

    def list_dir(self, path: str) -> list:
        """Names in it, sorted; empty when there is no such directory."""
        raise NotImplementedError

    def size(self, path: str) -> int:
        raise NotImplementedError

    def free_bytes(self, path: str) -> int | None:
        """Bytes that this process may still allocate on the disk of that directory; None: unknown."""
        return None

    def lock(self, path: str) -> int:
        """Creates the file if need be and takes an exclusive lock that ends with the process. Raises BlockingIOError when another has
        it."""
        raise NotImplementedError


def _failed_sync(error: OSError, path: str | None = None) -> OSError:
    """A sync that failed says EIO whatever it failed of: nobody may take it for something to be tried again."""
    return OSError(errno_module.EIO if error.errno == errno_module.ENOMEM else error.errno, error.strerror, path)


@cclass
class OsFiles(FilePort):
    """The operating system's files."""

    def __cinit__(self, direct: bool = True):
        self.context = NULL
        self.direct = direct
        self.asked = {}
        self.write_at = _write_at
        self.read_at = _read_at
        self.sync_data = _sync_data

    def open(self, path: str, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT | os.O_EXCL if create else flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def allocate(self, fd: int, size: int, zero: bool) -> None:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno_module.EOPNOTSUPP, errno_module.EINVAL):
                raise
            zero = True
        if zero:
            piece = bytes(min(size, 1 << 20))
            for offset in range(0, size, len(piece)):
                os.pwrite(fd, piece[: size - offset], offset)

    def _can_be_direct(self, fd: c_int) -> bint:
        file_system: file_system_t
        if not self.direct or not O_DIRECT or fstatfs(fd, address(file_system)) != 0:
            return False
        return file_system.f_type == EXT4 or file_system.f_type == XFS

    def make_direct(self, fd: int) -> bool:
        flags: c_int
        descriptor: c_int = fd
        if not self._can_be_direct(descriptor):
            return False
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # each direct write would have to look for it
        flags = c_fcntl(descriptor, F_GETFL)
        return flags >= 0 and c_fcntl(descriptor, F_SETFL, flags | O_DIRECT) == 0

    def warm(self, fd: int, size: int) -> None:
        # A reserved range reads as zeros without the disk. Read once, it is in the page cache before the writer comes, in folios as large
        # as a read makes them; a write that has to bring its pages along costs twice the processor, and the writer has everybody wait.
        with contextlib.suppress(OSError):  # it would only have been quicker
            for offset in range(0, min(size, WARM_BYTES), len(_UNREAD)):
                os.preadv(fd, [_UNREAD], offset)

    def read_ahead(self, path: str) -> None:
        now = time.monotonic()
        if now - self.asked.get(path, -ASKED_S) < ASKED_S:  # by another reader of the same part of the log
            return
        self.asked.pop(path, None)
        if len(self.asked) >= ASKED_MAX:
            self.asked.pop(next(iter(self.asked)), None)
        self.asked[path] = now
        with contextlib.suppress(RuntimeError):  # no more threads: then it is read when its turn comes
            threading.Thread(target=read_into_cache, args=([path],), name="flintmq-read-ahead", daemon=True).start()

    def open_direct(self, path: str) -> int:
        fd: int = os.open(path, os.O_RDONLY | os.O_CLOEXEC | O_DIRECT)
        if self._can_be_direct(fd):
            return fd
        os.close(fd)
        raise OSError(errno_module.EOPNOTSUPP, os.strerror(errno_module.EOPNOTSUPP), path)

    def direct_reads(self, most: int) -> DirectReads | None:
        try:
            return OsDirectReads(most) if self.direct else None
        except OSError:
            return None

    def write(self, fd: int, data: bytes, offset: int) -> None:
        if len(data) <= DIRECT_ALIGN:
            self._write_small(fd, data, offset)
            return
        view = memoryview(data)
        while view:
            count = os.pwrite(fd, view, offset)
            view = view[count:]
            offset += count

    def _write_small(self, fd: c_int, data: bytes | None, offset: uint64_t) -> c_int:
        """Out of aligned memory: a header can be written directly, too."""
        memory: p_void = direct_memory(DIRECT_ALIGN, False)
        size: size_t = len(data)
        error: c_int
        if memory == NULL:
            raise MemoryError
        memcpy(memory, cast(p_char, data), size)
        error = _write_at(NULL, fd, memory, size, offset)
        free(memory)
        if error:
            raise OSError(error, os.strerror(error))

    def read(self, fd: int, size: int, offset: int) -> bytes:
        parts = []
        while size:
            part = os.pread(fd, size, offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return b"".join(parts)

    def data_end(self, fd: int, size: int) -> int:
        end = 0
        try:
            while end < size:
                end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return min(end, size) if error.errno == errno_module.ENXIO else size  # ENXIO: no data follows
        return min(end, size)

    def sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise _failed_sync(error) from None

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise _failed_sync(error, path) from None
        finally:
            os.close(fd)

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # who made it may have died before the sync
        self.sync_dir(os.path.dirname(path))

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def list_dir(self, path: str) -> list:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int | None:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd
