# Containers of a log -> record batches, container by container (docs/DATAPLANE.md, "Tables": log source).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.pipeline.arrow.containers cimport Containers, content_t, view_t
from flintmq.pipeline.arrow.table cimport Table, column_t
from flintmq.store.log.record cimport block_t, record_t

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

cdef enum:
    STREAM_RECORDS = 0
    STREAM_MESSAGES = 1
    RECORD_ACQUIRE_SET = 43
    # results of putting a record
    PUT_DONE = 0
    PUT_MORE = 1              # the table is full and rows of this record are left
    PUT_BAD = 2               # its fields contradict its length or each other
    PUT_SHORT = 3             # a chunk of its content is missing

cdef class ContainerScan:
    cdef Containers containers
    cdef view_t *view
    cdef readonly uint64_t sequence
    cdef readonly str log
    cdef readonly str path
    cdef uint64_t start                 # LSN of the container
    cdef uint64_t base
    cdef uint64_t end                   # below it everything was durable
    cdef bint end_known
    cdef int stream
    cdef bint strict
    cdef bint ended
    cdef int64_t body_max
    cdef uint32_t rows_max
    cdef frozenset wanted
    cdef object schema
    cdef tuple columns
    cdef bint needs_content             # columns of records that may lie in a chunk
    cdef bint needs_enqueued
    cdef bint started
    # the block that is being read
    cdef block_t block
    cdef bint inside
    cdef bint salvaging
    cdef uint64_t effort
    cdef uint32_t at                    # of the next record, in the block
    cdef uint32_t item                  # next place or run of that record
    cdef uint64_t offset                # of the next block, in the container
    cdef uint64_t last                  # LSN of the last block
    cdef uint32_t epoch
    # figures
    cdef readonly uint64_t records
    cdef readonly uint64_t blocks
    cdef readonly uint64_t incomplete
    cdef readonly uint32_t torn
    cdef readonly list damage
    cdef readonly list warnings
    cdef int _load(self) except -1
    cdef int _damaged(self, uint64_t lsn, uint64_t upto, str text) except -1
    cdef bint _next_block(self) except? False
    cdef bint _enter(self) except? False
    cdef uint32_t _good_record(self, uint32_t at) noexcept nogil
    cdef uint32_t _fill(self, Table table) except? 0xFFFFFFFF
    cdef int _put(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_message(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef int _put_record(self, Table table, uint32_t *row, record_t *record) noexcept nogil
    cdef void _common(self, Table table, uint32_t row, record_t *record) noexcept nogil
    cdef int _content(self, Table table, uint32_t row, record_t *record) noexcept nogil
