# The index log: entries that left memory, as runs (docs/FORMAT.md, "Index log"). The functions need no GIL.
#
# Losing it loses nothing: the message log has every fact. So an append may be refused, and a log that can't be read is thrown away.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.store.log.file_port cimport FilePort, port_read_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.writer cimport writer_t

cdef enum:
    INDEX_DESCRIPTORS = 8       # containers that stay open for reading

cdef struct index_descriptor_t: # a container that is open for reading
    uint64_t sequence           # 0: none
    uint64_t used               # when it was used last: a running number
    uint32_t users              # reads under way
    int fd

cdef struct index_log_t:
    log_t *log                  # NULL: there is none
    writer_t *writer
    uint32_t *disk_low          # atomic, of the message log: nothing is appended while it is set; NULL: never
    uint64_t unwritten_max      # bytes appended and not written above which nothing is appended
    uint64_t refused            # atomic figure: runs that were not taken
    uint64_t reads              # atomic figure: runs that were read from a file
    void *owner                 # the IndexLog
    port_read_t read_at
    void *files
    uint32_t lock               # of what follows
    uint64_t uses
    index_descriptor_t descriptors[8]

# Bytes of a run at most.
cdef uint32_t index_run_most(index_log_t *index) noexcept nogil
# Appends a run and marks it live. Returns the LSN of its record, its name from then on; 0: not taken (full, failed, not there). It is on
# disk only after everything that was appended to the message log before. Takes the log's lock; never waits.
cdef uint64_t index_append_run(index_log_t *index, const uint8_t *bytes, uint32_t length) noexcept nogil
# The same for a record of a checkpoint: its type, the LSN of the checkpoint's first record (0: it is that one itself).
cdef uint64_t index_append_part(index_log_t *index, uint8_t kind, uint64_t first, const uint8_t *bytes, uint32_t length) noexcept nogil
# Reads a run into `out`. Returns its bytes; 0: it can't be read (damaged, gone, longer than `room`, no memory or descriptor). May wait for
# the disk, and may take the GIL: never under a lock, never on a loop.
cdef uint32_t index_read_run(index_log_t *index, uint64_t lsn, uint8_t *out, uint32_t room) noexcept nogil
# Nothing in memory names it any more.
cdef void index_run_dead(index_log_t *index, uint64_t lsn) noexcept nogil
# Where the run with this name stands now (it may have been written anew).
cdef uint64_t index_run_at(index_log_t *index, uint64_t lsn) noexcept nogil

# A descriptor for reading a container, or -1.
cdef int index_open(void *owner, uint64_t sequence) noexcept with gil
cdef void index_close(void *owner, int fd) noexcept with gil

cdef class IndexLog:
    cdef index_log_t index
    cdef readonly ManagedLog log
    cdef readonly FilePort files
    cdef readonly uint64_t moved_runs  # figure: runs that were written anew
    cdef object _stuck                 # (container, live things) that could not be written anew the last time
