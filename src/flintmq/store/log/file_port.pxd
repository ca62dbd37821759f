# The file port: the only way the log touches the operating system. The three calls of the data path are C functions (no GIL); the
# rest are Python methods. testing/sim_disk.py is its twin: it records every call, so that crash images can be made of them.
from libc.stdint cimport uint64_t

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

# Writes all of it at `offset`; 0, or an errno (short writes are continued inside).
ctypedef int (*port_write_t)(void *context, int fd, const void *data, size_t size, uint64_t offset) noexcept nogil
# Reads up to `size` bytes; the count (less only at the end of the file), or -errno.
ctypedef long (*port_read_t)(void *context, int fd, void *data, size_t size, uint64_t offset) noexcept nogil
# fdatasync; 0, or an errno. Never retried after a failure by anybody.
ctypedef int (*port_sync_t)(void *context, int fd) noexcept nogil

cdef class FilePort:
    cdef void *context
    cdef port_write_t write_at
    cdef port_read_t read_at
    cdef port_sync_t sync_data
