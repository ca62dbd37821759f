# The parts of a checkpoint on their way into the index log: rows gather until a part is full. Functions without the GIL; one thread.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.paging cimport shell_t
from flintmq.store.index_log cimport index_log_t
from flintmq.store.segment_rows cimport segment_rows_t
from flintmq.store.vectors cimport vector_t

cdef enum:                      # kinds of rows (docs/FORMAT.md)
    PART_CONTAINERS = 1
    PART_DEATHS = 2
    PART_TAILS = 3
    PART_SEGMENTS = 4
    PART_MOVED = 5
    PART_LISTED = 6
    PART_MARKS = 7
    PART_KINDS = 8

cdef enum:                      # bytes of rows, or of their heads; those of segments are in segment_rows.pxd
    PART_HEAD = 16              # of the part
    CONTAINER_ROW = 32
    DEATH_HEAD = 16
    TAIL_HEAD = 16              # then an index for each level, each of 8
    MOVED_ROW = 16
    LISTED_HEAD = 16            # then places, each of PLACE_SIZE, and names, each of 8

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
    uint32_t open_segments      # where the head of the last segments is; 0: none takes more
    segment_rows_t segments     # those of that head
    vector_t lsns               # uint64: of the parts that were appended
    vector_t runs               # uint64: of the runs that were made for it
    uint64_t bytes              # of all of them

cdef void parts_free(parts_t *parts) noexcept nogil
# Room for a row. NULL: given up (also for a row that fits into no window of the log). May wait.
cdef uint8_t *parts_row(parts_t *parts, uint32_t kind, uint64_t size) noexcept nogil
# A segment, behind those of its queue and level that stand before it. False: given up.
cdef bint parts_segment(parts_t *parts, uint64_t queue_id, uint32_t level, const shell_t *facts) noexcept nogil
# A run of entries for this checkpoint. Returns its name; 0: given up.
cdef uint64_t parts_run(parts_t *parts, const uint8_t *bytes, uint32_t length) noexcept nogil
# Appends the part of this kind that is not full. False: given up.
cdef bint parts_flush(parts_t *parts, uint32_t kind) noexcept nogil
# Appends the record that ends the checkpoint. Returns the LSN behind which it must be durable; 0: given up.
cdef uint64_t parts_end(parts_t *parts, const uint8_t *bytes, uint32_t length) noexcept nogil
