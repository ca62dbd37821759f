# The file port: the only way the log touches the operating system. The three calls of the data path are C functions (no GIL); the
# rest are Python methods. testing/sim_disk.py is its twin: it records every call, so that crash images can be made of them.
from libc.stdint cimport uint64_t

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    ssize_t c_read "read"(int fd, void *data, size_t size)
    int c_close "close"(int fd)

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char *path, int flags, ...)
    int c_fcntl "fcntl"(int fd, int command, ...)
    int F_GETFL, F_SETFL, O_RDONLY, O_CLOEXEC

cdef extern from "<sys/vfs.h>" nogil:
    struct file_system_t "statfs":
        long f_type
    int fstatfs(int fd, file_system_t *result)

cdef enum:
    DIRECT_ALIGN = 4096         # bytes: memory of direct writes begins at a multiple of it

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

cdef class OsFiles(FilePort):
    cdef bint direct            # make_direct may say yes
    cdef int _write_small(self, int fd, bytes data, uint64_t offset) except -1
