# The store of distributed transactions over the logs.
from libc.stdint cimport uint64_t
from flintmq.queue.log_port cimport Enrolment
from flintmq.store.log_engine cimport LogEngine

cdef class LogStore(LogEngine):
    cdef Enrolment enrol(self)
    cpdef uint64_t _ticket(self, uint64_t message_lsn, uint64_t transaction_lsn)
