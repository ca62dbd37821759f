# Records of a log -> rows of the log source's tables (docs/DATAPLANE.md, "Tables").
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.arrow.containers cimport Containers
from flintmq.arrow.table cimport Table
from flintmq.store.log.record cimport record_t

cdef enum:                    # columns of schema.RECORDS, by index
    R_LSN = 0
    R_LOG = 1
    R_CONTAINER = 2
    R_KIND = 3
    R_TIME = 4
    R_MSG_LSN = 5
    R_TX_LSN = 6
    R_QUEUE = 7
    R_POSITION = 8
    R_WAITING = 9
    R_REASON = 10
    R_CONSUMER = 11
    R_DELIVERED = 12
    R_DELIVERIES = 13
    R_EXPIRES = 14
    R_BODY_LENGTH = 15
    R_EXCHANGE = 16
    R_ROUTING_KEY = 17
    R_MESSAGE_ID = 18
    R_PUBLISHED = 19
    R_BODY = 20
    R_LENGTH = 21
    R_COUNT = 22

cdef enum:                    # results of putting a record
    PUT_DONE = 0
    PUT_MORE = 1              # the table is full and rows of this record are left
    PUT_BAD = 2               # its fields contradict its length or each other
    PUT_SHORT = 3             # a chunk of its content is missing

cdef class RowMaker:
    cdef Containers containers
    cdef uint64_t sequence
    cdef uint64_t block_us              # time base of the block that is read
    cdef int64_t body_max
    cdef uint32_t item                  # next place or run of the record
    cdef bint messages
    cdef bint needs_content             # columns of records that may lie in a chunk
    cdef bint needs_enqueued
    # Puts the record, whose time is relative to its block, as rows from `*row` on. PUT_*
    cdef int put(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_message(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_purge(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_acquired(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_copy(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_brief(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_record(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef void _common(self, Table table, uint32_t row, record_t *record) noexcept nogil
    cdef int _content(self, Table table, uint32_t row, record_t *record) noexcept nogil
