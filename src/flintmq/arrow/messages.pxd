# Rows of a set (docs/DATAPLANE.md, call `rows`) -> record batches of messages.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.arrow.containers cimport Containers, stored_content_t
from flintmq.arrow.table cimport Table
from flintmq.store.log.record cimport record_t

cdef enum:
    ROW_SIZE = 32
    ROW_GOOD = 0
    ROW_MOVED = 1             # its record does not check (any more)
    ROW_BAD = 2               # the payload contradicts itself: nothing behind it means anything
    ROW_WRONG = 3             # its content contradicts itself, though its record checks: this message can't be shown
    ROW_LEFT = 4              # the caller does not want it

# The columns of a message that its content gives: exchange, routing key, body, properties. body_max: bytes of the body kept, -1 all.
# False: malformed, nothing was put.
cdef bint put_content(Table table, uint32_t row, stored_content_t *content, int64_t body_max) noexcept nogil
# Time of the message's Message-Enqueue on this queue (0: any) at this position (0: any) when it follows the content in the same block;
# 0: it does not.
cdef uint64_t enqueued_us(Containers containers, uint64_t message, uint64_t after, uint64_t queue, uint64_t position) noexcept nogil

cdef class Decoder:
    cdef Containers containers
    cdef const uint8_t *rows
    cdef const uint8_t *inline_at       # of the next row that has its content inline
    cdef const uint8_t *end
    cdef uint32_t total
    cdef uint32_t next                  # row that comes next
    cdef uint32_t segment               # queue of that row
    cdef uint32_t segment_left
    cdef uint32_t segment_count
    cdef const char **names
    cdef uint32_t *name_sizes
    cdef uint32_t *counts
    cdef uint64_t *queues
    cdef list kept                      # the names' bytes
    cdef int64_t body_max
    cdef bint needs_enqueued
    cdef bint fresh                     # everything held was read in this call
    cdef list moved
    cdef list wrong
    cdef object left_mask
    cdef const uint8_t *left            # a byte per row, not 0: leave it out; NULL: none
    cdef int _inline(self, uint32_t body_len, stored_content_t *content) noexcept nogil
    cdef int _logged(self, uint64_t thing, uint64_t where, uint32_t body_len, stored_content_t *content) noexcept nogil
    cdef int _row(self, Table table, uint32_t row) noexcept nogil
    cdef uint32_t fill(self, Table table, uint32_t rows_max, uint64_t bytes_max) except? 0xFFFFFFFF
