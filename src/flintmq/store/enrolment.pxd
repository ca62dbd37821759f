# One transaction in the logs: see enrolment.py.
from libc.stdint cimport uint64_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.store.logs cimport Logs
from flintmq.store.tx_sets cimport BulkTransactions

cdef class LogEnrolment(Enrolment):
    cdef Logs logs
    cdef BulkTransactions bulk
    cdef readonly object transaction    # Transaction of transaction_log.py; None: nothing is logged yet
    cdef public uint64_t tx             # its id; 0: nothing is logged yet
    cdef readonly uint64_t lsn          # behind the Commit of a local one
    # of a branch
    cdef bytes xid
    cdef object queues                  # BranchQueues
    cdef uint64_t enrolments_max
    cdef set queue_ids                  # of all it holds and enqueues
    cdef dict _runs                     # queue id -> Run
    cdef dict singles                   # the same, where the log has a dequeue for each entry: of stores of before
    cdef uint64_t consumer_id           # whom the log names for them
    cdef bint acquired                  # the log knows them
    cdef object staged                  # Stage, or None
