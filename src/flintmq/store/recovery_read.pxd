# Takes in the records of the message log, one by one: see recovery_read.py.
from flintmq.store.log.record cimport record_t
from flintmq.store.recovery_state cimport work_t

# Takes in one record (context: the work_t). Fits scan_record_t.
cdef void work_record(void *context, record_t *record) noexcept nogil
