# Containers of a log -> record batches, container by container (docs/DATAPLANE.md, "Tables": log source).
from libc.stdint cimport uint32_t, uint64_t
from flintmq.arrow.containers cimport Containers, view_t
from flintmq.arrow.records cimport RowMaker
from flintmq.arrow.table cimport Table
from flintmq.store.log.record cimport block_t, record_t

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
    cdef RowMaker maker
    cdef bint messages                  # the stream of messages, not of records
    cdef bint strict
    cdef bint ended
    cdef uint32_t rows_max
    cdef frozenset wanted
    cdef object schema
    cdef tuple columns
    cdef bint started
    # the block that is being read
    cdef block_t block
    cdef bint inside
    cdef bint salvaging
    cdef uint64_t effort
    cdef uint32_t at                    # of the next record, in the block
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
    cdef uint32_t _fill(self, Table table) except? 0xFFFFFFFF
