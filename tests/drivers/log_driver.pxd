# Calls of the message path on a LogStore, for tests that have no queues and connections: what the queue core would call.
from libc.stdint cimport uint64_t
from flintmq.queue.types cimport queue_t
from flintmq.store.log_store cimport LogStore

cdef class LogDriver:
    cdef readonly LogStore store
    cdef dict begun                # transaction -> its LogEnrolment
    cdef dict _queues                   # queue id -> bytearray with a queue_t
    cdef queue_t *queue(self, queue_id) except NULL
