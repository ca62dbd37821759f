# What an index log has at a start: its runs and its checkpoints.
from libc.stdint cimport uint64_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.scan cimport LogScan
from flintmq.store.past cimport Past
from flintmq.store.vectors cimport vector_t

cdef struct index_record_t:
    uint64_t lsn
    uint64_t name               # of the run; 0: a record of a checkpoint
    uint64_t bytes

cdef class IndexScan:
    cdef readonly LogScan scan
    cdef readonly object finder          # store.checkpoint.Finder
    cdef readonly list refused           # why checkpoints were not believed
    cdef vector_t records
    cdef object _error
    cdef object _directory
    cdef bint _has(self, uint64_t name)
    # What the log has lives when the checkpoint names it. Log lock held. False: no memory.
    cdef bint adopt(self, log_t *log, Past past)
