# The parts of a checkpoint on their way into the index log: rows gather until a part is full. Functions without the GIL; one thread.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.paging cimport shell_t
from flintmq.store.index_log cimport index_log_t

cdef enum:                      # kinds of rows (docs/FORMAT.md)
    PART_CONTAINERS = 1
    PART_DEATHS = 2
    PART_TAILS = 3
    PART_SEGMENTS = 4
    PART_MOVED = 5
    PART_LISTED = 6
    PART_MARKS = 7
    PART_KINDS = 8

cdef struct lsns_t:
    uint64_t *values
    uint32_t count
    uint32_t room

# The index log takes nothing now. True: something may have changed, try once more; False: give up. No lock is held.
ctypedef bint (*parts_wait_t)(void *owner) noexcept nogil

cdef struct rows_t:             # a part that fills
    uint8_t *bytes              # its head is in front
    uint32_t room
    uint32_t used
    uint32_t count

cdef struct parts_t:
    index_log_t *index
    void *owner
    parts_wait_t wait
    uint32_t most               # bytes of a part; one row may make it longer
    rows_t kinds[8]
    uint32_t open_segments      # where the last row of segments begins; 0: none takes more
    lsns_t lsns                 # of the parts that were appended
    lsns_t runs                 # of the runs that were made for it
    uint64_t bytes              # of all of them

# False: no memory.
cdef bint lsns_add(lsns_t *lsns, uint64_t lsn) noexcept nogil
cdef void lsns_free(lsns_t *lsns) noexcept nogil
cdef void parts_free(parts_t *parts) noexcept nogil
# Room for a row. NULL: given up (also for a row that fits into no window of the log). May wait.
cdef uint8_t *parts_row(parts_t *parts, uint32_t kind, uint64_t size) noexcept nogil
# A row of a segment. False: given up.
cdef bint parts_segment(parts_t *parts, uint64_t queue_id, uint32_t level, const shell_t *facts) noexcept nogil
# A run of entries for this checkpoint. Returns its name; 0: given up.
cdef uint64_t parts_run(parts_t *parts, const uint8_t *bytes, uint32_t length) noexcept nogil
# Appends the part of this kind that is not full. False: given up.
cdef bint parts_flush(parts_t *parts, uint32_t kind) noexcept nogil
# Appends the record that ends the checkpoint. Returns the LSN behind which it must be durable; 0: given up.
cdef uint64_t parts_end(parts_t *parts, const uint8_t *bytes, uint32_t length) noexcept nogil
