# The store of distributed transactions over the logs.
from libc.stdint cimport uint64_t
from flintmq.store.log_engine cimport LogEngine

cdef class LogStore(LogEngine):
    cdef uint64_t _ticket(self, uint64_t message_lsn, uint64_t transaction_lsn)
