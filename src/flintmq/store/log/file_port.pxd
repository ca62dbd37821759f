# The file port: the only way the log touches the operating system. The three calls of the data path are C functions (no GIL); the
# rest are Python methods. tests/twins/sim_disk.py is its twin: it records every call, so that crash images can be made of them.
from libc.stdint cimport int64_t, uint64_t

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    ssize_t c_read "read"(int fd, void *data, size_t size)
    int c_close "close"(int fd)

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char *path, int flags, ...)
    int c_fcntl "fcntl"(int fd, int command, ...)
    int F_GETFL, F_SETFL, O_RDONLY, O_CLOEXEC

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t length, int advice)
    int MADV_HUGEPAGE

cdef extern from "<sys/vfs.h>" nogil:
    struct file_system_t "statfs":
        long f_type
    int fstatfs(int fd, file_system_t *result)

cdef extern from *:
    """
    #include <linux/aio_abi.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    typedef aio_context_t aio_queue_t;
    typedef struct io_event aio_event_t;
    static inline int aio_open(unsigned most, aio_queue_t *queue) { *queue = 0; return (int)syscall(SYS_io_setup, most, queue); }
    static inline int aio_close(aio_queue_t queue) { return (int)syscall(SYS_io_destroy, queue); }
    /* The kernel copies the control block: it need not outlive the call. */
    static inline int aio_read(aio_queue_t queue, void *mark, int fd, void *data, size_t size, uint64_t offset) {
        struct iocb block = {0}, *blocks = &block;
        block.aio_data = (uintptr_t)mark;
        block.aio_fildes = (unsigned)fd;
        block.aio_lio_opcode = IOCB_CMD_PREAD;
        block.aio_buf = (uintptr_t)data;
        block.aio_nbytes = size;
        block.aio_offset = (int64_t)offset;
        return (int)syscall(SYS_io_submit, queue, 1, &blocks);
    }
    static inline int aio_wait(aio_queue_t queue, aio_event_t *event) { return (int)syscall(SYS_io_getevents, queue, 1, 1, event, NULL); }
    """
    ctypedef unsigned long aio_queue_t
    ctypedef struct aio_event_t:
        uint64_t data
        int64_t res
    int aio_open(unsigned most, aio_queue_t *queue) nogil
    int aio_close(aio_queue_t queue) nogil
    int aio_read(aio_queue_t queue, void *mark, int fd, void *data, size_t size, uint64_t offset) nogil
    int aio_wait(aio_queue_t queue, aio_event_t *event) nogil

cdef enum:
    DIRECT_ALIGN = 4096         # bytes: memory of direct reads and writes begins at a multiple of it
    HUGE_PAGE = 2097152         # bytes

# Memory for direct reads and writes, to be given to `free`; NULL: there is none. `huge`: in huge pages as far as they go and where there are
# any: a transfer has far fewer pieces of memory then, each of which costs processor time.
cdef void *direct_memory(size_t size, bint huge) noexcept nogil

# Writes all of it at `offset`; 0, or an errno (short writes are continued inside).
ctypedef int (*port_write_t)(void *context, int fd, const void *data, size_t size, uint64_t offset) noexcept nogil
# Reads up to `size` bytes; the count (less only at the end of the file), or -errno.
ctypedef long (*port_read_t)(void *context, int fd, void *data, size_t size, uint64_t offset) noexcept nogil
# fdatasync; 0, or an errno. Never retried after a failure by anybody.
ctypedef int (*port_sync_t)(void *context, int fd) noexcept nogil

cdef struct direct_read_t:
    int fd                      # of open_direct
    void *data                  # begins at a multiple of DIRECT_ALIGN
    uint64_t size               # a multiple of the disk's sector, as offset
    uint64_t offset
    bint under_way
    int64_t result              # bytes, or -errno; valid when it is not under way any more

# Reads that are under way while the caller does something else. One thread at a time uses it. This one is the twin's and reads at once.
cdef class DirectReads:
    cdef void *context
    cdef port_read_t read_at
    # Begins a read; it has ended when `wait` says so. False: it can't be begun now.
    cdef bint begin(self, direct_read_t *read) noexcept nogil
    cdef void wait(self, direct_read_t *read) noexcept nogil

cdef class OsDirectReads(DirectReads):
    cdef aio_queue_t queue
    cdef bint opened

cdef class FilePort:
    cdef void *context
    cdef port_write_t write_at
    cdef port_read_t read_at
    cdef port_sync_t sync_data

cdef class OsFiles(FilePort):
    cdef bint direct            # make_direct may say yes
    cdef dict asked             # path -> when it was read ahead (monotonic seconds)
    cdef bint _can_be_direct(self, int fd)
    cdef int _write_small(self, int fd, bytes data, uint64_t offset) except -1
