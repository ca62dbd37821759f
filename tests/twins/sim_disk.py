"""The file port's simulated twin: files in memory, every operation in a journal, faults and delays on demand.

in: the calls of store/log/file_port.py. out: the same answers as OsFiles gives (tests/store/test_file_port.py compares them), and
`images`: what a disk may hold after power was lost at any point of the journal.

Rules of the model (disk_images.py): data counts after a sync of its file, a name after a sync of its directory; a failed sync drops
the dirty data for good although reads still show it; 512-byte sectors are written whole, damaged or not at all.
"""

from __future__ import annotations

import errno as errno_module
import os
import traceback

import cython
from cython import cast, cclass, exceptval, long, p_char, p_void, pointer, size_t, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.store.log.file_port import DirectReads
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memcpy

from tests.twins.disk_images import ROOT, SECTOR, DiskState

_FIRST_FD = 100_000  # far from real descriptors: a mix-up fails at once


def sim_write_at(context: p_void, fd: c_int, data: pointer[cython.const[void]], size: size_t, offset: uint64_t) -> c_int:
    disk: SimDisk = cast(SimDisk, cast(object, context))
    try:
        disk.do_write(fd, PyBytes_FromStringAndSize(cast(p_char, cast(p_void, data)), size), offset)
    except OSError as error:
        return error.errno or errno_module.EIO
    except BaseException:
        traceback.print_exc()
        return errno_module.EIO
    return 0


def sim_read_at(context: p_void, fd: c_int, data: p_void, size: size_t, offset: uint64_t) -> long:
    disk: SimDisk = cast(SimDisk, cast(object, context))
    try:
        found: bytes = disk.read(fd, size, offset)
    except OSError as error:
        return -(error.errno or errno_module.EIO)
    except BaseException:
        traceback.print_exc()
        return -errno_module.EIO
    memcpy(data, cast(p_char, found), len(found))
    return len(found)


def sim_sync_data(context: p_void, fd: c_int) -> c_int:
    disk: SimDisk = cast(SimDisk, cast(object, context))
    try:
        disk.do_sync(fd)
    except OSError as error:
        return error.errno or errno_module.EIO
    except BaseException:
        traceback.print_exc()
        return errno_module.EIO
    return 0


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@cclass
class SimDisk(FilePort):
    """See module. Kinds of calls, for `fail`, `calls` and `latency_ms`: open, close, create, allocate, write, read, sync, rename,
    unlink, sync_dir, make_dir, lock."""

    def __cinit__(self):
        self.context = cast(p_void, self)
        self.write_at = sim_write_at
        self.read_at = sim_read_at
        self.sync_data = sim_sync_data

    def __init__(self, origin=None, budget=None, clock=None):
        """Args: origin: a DiskState to start from (default: an empty disk); what is un-synced in it stays un-synced and is shown."""
        self.journal = []
        self.origin = DiskState() if origin is None else origin
        self.calls = {}
        self.failures = []
        self.budget = budget
        self.clock = clock
        self.latency_ms = {}
        self._fds = {}
        self._places = {}
        self._locked = set()
        self._faults = []
        self._next_fd = _FIRST_FD
        self._next_inode = self.origin.next_inode
        self._files = self.origin.shown_files()
        self._dirs = self.origin.shown_dirs()

    @staticmethod
    def from_image(image, budget=None, clock=None):
        """A disk that holds the image, all of it synced."""
        return SimDisk(DiskState.from_image(image), budget, clock)

    def restart(self):
        """The disk after the process died and the machine did not: what was un-synced is shown, and still un-synced."""
        return SimDisk(self.state(), self.budget, self.clock)

    def state(self, position=None):
        """DiskState after the first `position` operations of the journal (None: all)."""
        state = self.origin.clone()
        for operation in self.journal[:position]:
            state.apply(operation)
        return state

    def images(self, position=None, limit=256, seed=0):
        """Images (disk_images.Image) that power loss after `position` operations may leave: up to `limit` different ones, chosen by
        `seed`; all of them when there are no more than that."""
        return self.state(position).images(limit, seed, len(self.journal) if position is None else position)

    @property
    def position(self) -> int:
        """Operations in the journal."""
        return len(self.journal)

    def fail(self, kind, nth=1, error=errno_module.EIO, forever=False, path=""):
        """Makes the nth call (1 = the next one) of that kind on a path that contains `path` fail: once, or from then on."""
        self._faults.append([kind, nth, error, forever, path])

    def heal(self) -> None:
        """Removes all faults that were asked for."""
        self._faults.clear()

    def _enter(self, kind: str, path: str) -> object:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        if self.clock is not None and kind in self.latency_ms:
            self.clock.advance(ms=self.latency_ms[kind])
        struck = 0
        for fault in list(self._faults):
            if fault[0] != kind or fault[4] not in path:
                continue
            fault[1] -= 1
            if fault[1] <= 0:
                struck = struck or fault[2]
                if not fault[3]:
                    self._faults.remove(fault)
        if struck:
            self.failures.append((kind, path, struck))
            raise _error(struck, path)

    def _descriptor(self, fd: object) -> object:
        entry = self._fds.get(fd)
        if entry is None:
            raise _error(errno_module.EBADF, str(fd))
        return entry

    def _directory(self, path: str) -> object:
        inode = self._places.get(path)
        if inode is not None:
            return inode
        inode = ROOT
        for name in path.split("/"):
            if name:
                inode = self._dirs[inode].get(name) if inode in self._dirs else None
                if inode is None:
                    raise _error(errno_module.ENOENT, path)
        if inode not in self._dirs:
            raise _error(errno_module.ENOTDIR, path)
        self._places[path] = inode  # a directory is never removed or renamed
        return inode

    def _split(self, path: str) -> object:
        directory, name = os.path.split(path)
        return self._directory(directory), name

    def _find(self, path: str) -> object:
        directory, name = self._split(path)
        inode = self._dirs[directory].get(name)
        if inode is None:
            raise _error(errno_module.ENOENT, path)
        return inode

    def _create(self, directory: object, name: str) -> object:
        inode = self._next_inode
        self._next_inode += 1
        self._files[inode] = b""
        self._dirs[directory][name] = inode
        self.journal.append(("create", inode, directory, name))
        return inode

    def _spend(self, count: object, path: str) -> object:
        if self.budget is not None and count > 0:
            if count > self.budget:
                raise _error(errno_module.ENOSPC, path)
            self.budget -= count

    def _writable(self, inode: object, size: object) -> object:
        """The file's bytes, at least `size` of them, in a form that can be written to."""
        content = self._files[inode]
        if not isinstance(content, bytearray):
            content = self._files[inode] = bytearray(content)
        if len(content) < size:
            content.extend(bytes(size - len(content)))
        return content

    def _drop(self, inode: object) -> object:
        """Gives the space of a file back when no name and no descriptor speaks of it any more."""
        if any(entry[0] == inode for entry in self._fds.values()) or any(inode in names.values() for names in self._dirs.values()):
            return
        content = self._files.pop(inode, b"")
        if self.budget is not None:
            self.budget += len(content)

    def open(self, path: str, create: bool = False) -> int:
        self._enter("create" if create else "open", path)
        directory, name = self._split(path)
        inode = self._dirs[directory].get(name)
        if create:
            if inode is not None:
                raise _error(errno_module.EEXIST, path)
            inode = self._create(directory, name)
        elif inode is None:
            raise _error(errno_module.ENOENT, path)
        elif inode in self._dirs:
            raise _error(errno_module.EISDIR, path)
        return self._new_fd(inode, path, False)

    def _new_fd(self, inode: object, path: str, locked: object) -> object:
        fd = self._next_fd
        self._next_fd += 1
        self._fds[fd] = [inode, path, locked]
        return fd

    def open_direct(self, path: str) -> int:
        return self.open(path)

    def direct_reads(self, most: int) -> DirectReads | None:
        reads: DirectReads = DirectReads()
        reads.context = self.context
        reads.read_at = self.read_at
        return reads

    def close(self, fd: int) -> None:
        entry = self._descriptor(fd)
        self._enter("close", entry[1])
        del self._fds[fd]
        if entry[2]:
            self._locked.discard(entry[0])
        self._drop(entry[0])

    def allocate(self, fd: int, size: int, zero: bool) -> None:
        entry = self._descriptor(fd)
        self._enter("allocate", entry[1])
        if size <= 0:
            raise _error(errno_module.EINVAL, entry[1])
        inode = entry[0]
        self._spend(size - len(self._files[inode]), entry[1])
        content = self._writable(inode, size)
        if zero:
            content[:size] = bytes(size)
        self.journal.append(("allocate", inode, size, zero))

    @exceptval(-1, check=False)
    def do_write(self, fd: c_int, data: bytes, offset: uint64_t) -> c_int:
        entry = self._descriptor(fd)
        self._enter("write", entry[1])
        size = len(data)
        if size == 0:
            return 0
        inode = entry[0]
        end = offset + size
        self._spend(end - len(self._files[inode]), entry[1])
        content = self._writable(inode, end)
        content[offset:end] = data
        self.journal.append(("write", inode, offset, data))
        return 0

    @exceptval(-1, check=False)
    def do_sync(self, fd: c_int) -> c_int:
        entry = self._descriptor(fd)
        try:
            self._enter("sync", entry[1])
        except OSError:
            self.journal.append(("sync failed", entry[0]))
            raise
        self.journal.append(("sync", entry[0]))
        return 0

    def write(self, fd: int, data: bytes, offset: int) -> None:
        self.do_write(fd, bytes(data), offset)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        entry = self._descriptor(fd)
        self._enter("read", entry[1])
        content = self._files[entry[0]]
        if offset == 0 and size >= len(content) and isinstance(content, bytes):
            return content
        return bytes(memoryview(content)[offset : offset + size])

    def data_end(self, fd: int, size: int) -> int:
        content = bytes(self._files[self._descriptor(fd)[0]][:size]).rstrip(b"\0")
        return min(size, -(-len(content) // SECTOR) * SECTOR)

    def sync(self, fd: int) -> None:
        self.do_sync(fd)

    def rename(self, old: str, new: str) -> None:
        self._enter("rename", old)
        source, name = self._split(old)
        target, new_name = self._split(new)
        inode = self._find(old)
        if inode in self._dirs:
            raise _error(errno_module.EISDIR, old)  # the store never renames a directory
        replaced = self._dirs[target].get(new_name)
        if replaced == inode:
            return
        if replaced is not None and replaced in self._dirs:
            raise _error(errno_module.EISDIR, new)
        del self._dirs[source][name]
        self._dirs[target][new_name] = inode
        self.journal.append(("rename", source, name, target, new_name))
        if replaced is not None:
            self._drop(replaced)

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        directory, name = self._split(path)
        inode = self._find(path)
        if inode in self._dirs:
            raise _error(errno_module.EISDIR, path)
        del self._dirs[directory][name]
        self.journal.append(("unlink", directory, name))
        self._drop(inode)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._enter("sync_dir", path)
        self.journal.append(("sync_dir", directory))

    def make_dir(self, path: str) -> None:
        self._enter("make_dir", path)
        directory, name = self._split(path)
        if name not in self._dirs[directory]:
            inode = self._next_inode
            self._next_inode += 1
            self._dirs[directory][name] = inode
            self._dirs[inode] = {}
            self.journal.append(("make_dir", inode, directory, name))
        self.sync_dir(os.path.dirname(path) or "/")  # also when it is there: who made it may have died before this

    def remove_dir(self, path: str) -> None:
        """It stays, empty: as if power was lost before its removal got to the disk."""
        if self._dirs[self._directory(path)]:
            raise _error(errno_module.ENOTEMPTY, path)

    def list_dir(self, path: str) -> list:
        try:
            return sorted(self._dirs[self._directory(path)])
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        inode = self._find(path)
        return 0 if inode in self._dirs else len(self._files[inode])

    def lock(self, path: str) -> int:
        self._enter("lock", path)
        directory, name = self._split(path)
        inode = self._dirs[directory].get(name)
        if inode is None:
            inode = self._create(directory, name)
        if inode in self._locked:
            raise _error(errno_module.EAGAIN, path)
        self._locked.add(inode)
        return self._new_fd(inode, path, True)


# The data path's C functions, callable from tests of any file port.


def port_write(files: FilePort, fd: c_int, data: bytes, offset: uint64_t) -> int:
    """0 or an errno."""
    return files.write_at(files.context, fd, cast(p_char, data), len(data), offset)


def port_read(files: FilePort, fd: c_int, size: size_t, offset: uint64_t) -> object:
    """The bytes, or minus an errno."""
    buffer = bytearray(size)
    at: p_char = buffer
    count: long = files.read_at(files.context, fd, at, size, offset)
    return count if count < 0 else bytes(buffer[:count])


def port_sync(files: FilePort, fd: c_int) -> int:
    """0 or an errno."""
    return files.sync_data(files.context, fd)
