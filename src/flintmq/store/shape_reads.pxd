# Message-Shapes that a reader of contents read lately: a run of messages reads each of its shapes once. A zeroed shape_reads_t is empty. One thread.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.store.log.record cimport record_t, shape_t

cdef enum:
    SHAPE_READS = 4096          # shapes that are kept at most
    SHAPE_READ_WAYS = 4         # places in the table that a shape may have
    SHAPE_READS_BYTES = 1048576 # bytes of their routes and content headers at most

cdef struct read_shape_t:
    uint64_t lsn                # 0: none
    shape_t shape               # its bytes are `bytes`
    uint8_t *bytes
    uint32_t room               # of `bytes`

cdef struct shape_reads_t:
    read_shape_t *table         # NULL: nothing is kept
    uint64_t bytes              # of all `bytes`

# The shape at this LSN; NULL: it is not kept. Valid until the next call.
cdef shape_t *shape_reads_get(shape_reads_t *reads, uint64_t lsn) noexcept nogil
# Keeps the shape of a record that was checked, and gives it. NULL: the record is none, or there is no memory.
cdef shape_t *shape_reads_put(shape_reads_t *reads, record_t *record) noexcept nogil
cdef void shape_reads_free(shape_reads_t *reads) noexcept nogil
