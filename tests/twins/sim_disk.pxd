# The simulated disk: a file port whose files live in memory and whose journal tells what a power loss may leave (disk_images.py).
# The three calls of the data path take the GIL: everything else of the twin is Python.
from libc.stdint cimport uint64_t
from flintmq.store.log.file_port cimport FilePort

cdef int sim_write_at(void *context, int fd, const void *data, size_t size, uint64_t offset) noexcept with gil
cdef long sim_read_at(void *context, int fd, void *data, size_t size, uint64_t offset) noexcept with gil
cdef int sim_sync_data(void *context, int fd) noexcept with gil

cdef class SimDisk(FilePort):
    cdef readonly list journal          # operations that were carried out (disk_images.py has their forms)
    cdef readonly object origin         # DiskState before the first of them
    cdef readonly dict calls            # kind of call -> how often it was called, failed calls included
    cdef readonly list failures         # (kind, path, errno) of every injected failure
    cdef public object budget           # bytes that files may still grow by; None: no limit
    cdef public object clock            # ManualClock that calls move; None: calls take no time
    cdef public dict latency_ms         # kind of call -> milliseconds
    cdef dict _files                    # inode -> bytes, or bytearray once it was written to
    cdef dict _dirs                     # inode -> {name: inode}
    cdef dict _fds                      # descriptor -> [inode, path, holds the lock]
    cdef dict _places                   # path -> inode, of directories
    cdef set _locked                    # inodes with a lock
    cdef list _faults                   # [kind, calls until it strikes, errno, forever, part of the path]
    cdef int _next_fd
    cdef int _next_inode

    cdef _enter(self, str kind, str path)
    cdef _descriptor(self, fd)
    cdef _directory(self, str path)
    cdef _split(self, str path)
    cdef _find(self, str path)
    cdef _create(self, directory, str name)
    cdef _new_fd(self, inode, str path, locked)
    cdef _spend(self, count, str path)
    cdef _writable(self, inode, size)
    cdef _drop(self, inode)
    cdef int do_write(self, int fd, bytes data, uint64_t offset) except -1
    cdef int do_sync(self, int fd) except -1
