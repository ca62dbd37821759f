"""The file port: everything the log asks of the operating system (see file_port.pxd), and its real implementation.

in: the log's containers and writer. out: system calls. A simulated twin stands in testing/sim_disk.py; nothing else in the store opens
or writes a file of the log, which is what makes its crash tests complete.

Rules (docs/RELIABILITY.md): pwrite, never a store through mmap; one descriptor from the first write to the last sync; a failed sync is
never retried; a new name counts after the directory's fsync.
"""

from __future__ import annotations

import contextlib
import errno as errno_module
import fcntl
import os

import cython
from cython.cimports.libc.errno import EINTR, errno
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.posix.unistd import pread, pwrite

# bytes of a new file that are brought into the page cache at most: more would be of use too late, and press on what is
WARM_BYTES = 16 << 20
# where that is read to; nobody looks at it. It fits into the processor's second cache.
_UNREAD = bytearray(256 << 10)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_at(
    context: cython.p_void, fd: cython.int, data: cython.pointer(cython.const[cython.void]), size: cython.size_t, offset: uint64_t
) -> cython.int:
    at: cython.p_char = cython.cast(cython.p_char, cython.cast(cython.p_void, data))
    count: cython.Py_ssize_t
    while size:
        count = pwrite(fd, at, size, offset)
        if count < 0:
            if errno == EINTR:
                continue
            return errno
        at += count
        size -= count
        offset += count
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_at(context: cython.p_void, fd: cython.int, data: cython.p_void, size: cython.size_t, offset: uint64_t) -> cython.long:
    at: cython.p_char = cython.cast(cython.p_char, data)
    done: cython.long = 0
    count: cython.Py_ssize_t
    while size:
        count = pread(fd, at, size, offset)
        if count < 0:
            if errno == EINTR:
                continue
            return -errno
        if count == 0:
            break
        at += count
        size -= count
        offset += count
        done += count
    return done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sync_data(context: cython.p_void, fd: cython.int) -> cython.int:
    if fdatasync(fd) == 0:
        return 0
    return errno


@cython.cclass
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

    def write(self, fd: int, data: bytes, offset: int) -> None:
        raise NotImplementedError

    def read(self, fd: int, size: int, offset: int) -> bytes:
        raise NotImplementedError

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
        """Creates the file if need be and takes an exclusive lock that ends with the process. Raises BlockingIOError when another has it."""
        raise NotImplementedError


@cython.cclass
class OsFiles(FilePort):
    """The operating system's files."""

    def __cinit__(self):
        self.context = cython.NULL
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
            return
        # What is reserved reads as zeros without the disk. Read once, it is in the page cache before the writer comes, in folios as large
        # as a read makes them; a write that has to bring its pages along costs twice the processor, and the writer has everybody wait.
        with contextlib.suppress(OSError):  # it would only have been quicker
            for offset in range(0, min(size, WARM_BYTES), len(_UNREAD)):
                os.preadv(fd, [_UNREAD], offset)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(fd, view, offset)
            view = view[count:]
            offset += count

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

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            error.filename = path
            raise
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
