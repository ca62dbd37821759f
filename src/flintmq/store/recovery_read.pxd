# Recovery's reading of the message log into a work_t (recovery_work.pxd): plain C, no GIL.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.store.log.record cimport record_t
from flintmq.store.past cimport past_t
from flintmq.store.recovery_work cimport work_t

# Takes in one record (context: the work_t). Fits scan_record_t.
cdef void work_record(void *context, record_t *record) noexcept nogil
# Before the first record: every transaction that the transaction log has (id -> RecoveredTx), and the positions that commits gave.
cdef int work_transactions(work_t *work, dict transactions) except -1
# Behind that: what a checkpoint knows. Messages of its list are in `seen`, before all others.
cdef void work_past(work_t *work, past_t *past) noexcept nogil
# After the last record: a Message-Copy whose chunks were not all read gives way to the older content; purged runs are put in order.
cdef void work_complete(work_t *work) noexcept nogil
# Whether a purge ended what stood there. O(log runs of the queue), after work_complete.
cdef bint work_purged(work_t *work, uint32_t queue, uint64_t position) noexcept nogil
