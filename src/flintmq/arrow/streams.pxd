# Containers of one stream -> record batches of messages, by offset (docs/DATAPLANE.md, "Control calls"; docs/FORMAT.md, "Logs of streams").
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.arrow.containers cimport Containers, stored_content_t
from flintmq.arrow.keys cimport KeyPart
from flintmq.arrow.table cimport Table
from flintmq.store.log.reader cimport log_place_t, log_reader_t
from flintmq.store.log.record cimport record_t

cdef class StreamFiles:
    cdef Containers containers
    cdef readonly uint64_t size         # of a container
    cdef readonly uint64_t low          # first container kept
    cdef readonly uint64_t end          # LSN below which everything was durable
    cdef log_reader_t *reader           # of the containers
    cdef uint64_t following             # offset of the next message at the reader's place or behind it
    cdef uint64_t hint_offset           # the last block that was looked for, and what it tells
    cdef uint64_t hint_block
    cdef readonly uint64_t lost         # offsets that were left out
    cdef int _refused                   # why a row could not be made
    cdef void _hop(self, uint64_t offset, uint64_t us, uint64_t lsn) noexcept nogil
    cdef void _seek(self, uint64_t offset, uint64_t us) noexcept nogil
    cdef int _content(self, record_t *record, stored_content_t *out) noexcept nogil
    cdef int _next(self, record_t *record) noexcept nogil
    cdef int _unread(self, int step, record_t *record, log_place_t *before, bint tolerant) noexcept nogil
    cdef bint _lose(self, uint64_t upto, bint tolerant, int refusal) noexcept nogil
    cdef uint32_t _fill(self, Table table, uint64_t upto, uint64_t bytes_max, bint tolerant, const char *queue, uint32_t queue_size, int64_t body_max, KeyPart part) noexcept nogil
