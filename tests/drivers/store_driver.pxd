# LogStore with calls for single messages: see store_driver.py.
from libc.stdint cimport int64_t, uint64_t
from flintmq.store.enrolment cimport LogEnrolment
from flintmq.store.log_store cimport LogStore

cdef class DrivenStore(LogStore):
    cdef dict numbers         # (transaction, queue id) -> number of its next enqueue there
    cdef uint64_t _enqueue_plain(self, uint64_t queue_id, uint64_t position, uint64_t message_id, int64_t expires_at_ms)
    cdef uint64_t _find_listed(self, uint64_t queue_id, uint64_t position)
    cdef void _give_position(self, uint64_t tx, uint64_t message_id, uint64_t queue_id, uint64_t waiting, uint64_t position)

cdef class DrivenEnrolment(LogEnrolment):
    cdef DrivenStore driver
