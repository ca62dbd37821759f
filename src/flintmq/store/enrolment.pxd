# One transaction in the logs: see enrolment.py.
from libc.stdint cimport uint64_t
from flintmq.queue.log_port cimport Enrolment
from flintmq.store.logs cimport Logs

cdef class LogEnrolment(Enrolment):
    cdef Logs logs
    cdef readonly object transaction    # Transaction of transaction_log.py
    cdef readonly uint64_t tx           # its id
    cdef readonly uint64_t lsn          # behind the Commit of a local one
