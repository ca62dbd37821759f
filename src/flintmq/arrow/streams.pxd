# Containers of one stream -> record batches of messages, by offset (docs/DATAPLANE.md, "Streams"; docs/FORMAT.md, "Stream logs").
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.arrow.containers cimport Containers, content_t
from flintmq.arrow.table cimport Table
from flintmq.store.log.record cimport STEP_BAD, STEP_END, STEP_RECORD, record_t

cdef struct spot_t:             # a place between two records
    uint64_t at                 # LSN of the next record; 0: nowhere
    uint64_t block              # LSN of the block that it is in; 0: not known, any block may follow
    uint64_t block_end
    uint64_t block_us           # time base of that block

cdef class StreamFiles:
    cdef Containers containers
    cdef readonly uint64_t size         # of a container
    cdef readonly uint64_t low          # first container kept
    cdef readonly uint64_t end          # LSN below which everything was durable
    cdef spot_t spot
    cdef uint64_t following             # offset of the next message at the spot or behind it
    cdef uint64_t hint_offset           # the last block that was looked for, and what it tells
    cdef uint64_t hint_block
    cdef readonly uint64_t lost         # offsets that were left out
    cdef int _refused                   # why a row could not be made
    cdef bint _enter(self, uint64_t lsn, bint chained) noexcept nogil
    cdef int _next_block(self) noexcept nogil
    cdef int _step(self, record_t *out) noexcept nogil
    cdef bint _record_at(self, uint64_t lsn, record_t *out) noexcept nogil
    cdef int _recover(self) noexcept nogil
    cdef void _begin(self, uint64_t sequence) noexcept nogil
    cdef uint64_t _first_of(self, uint64_t sequence, uint64_t *first_us) noexcept nogil
    cdef uint64_t _container(self, uint64_t offset, uint64_t us) noexcept nogil
    cdef void _hop(self, uint64_t offset, uint64_t us, uint64_t lsn) noexcept nogil
    cdef void _seek(self, uint64_t offset) noexcept nogil
    cdef int _content(self, record_t *record, content_t *out) noexcept nogil
    cdef uint32_t _fill(self, Table table, uint64_t upto, uint64_t bytes_max, bint tolerant, const char *queue, uint32_t queue_size, int64_t body_max) noexcept nogil
