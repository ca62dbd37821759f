# Queues as a checkpoint has them, back in memory.
from libc.stdint cimport uint64_t
from flintmq.queue.types cimport queue_t, restored_t
from flintmq.store.entry_pager cimport entry_pager_t
from flintmq.store.logs cimport Logs
from flintmq.store.past cimport past_segment_t
from flintmq.store.recovery cimport Recovery

cdef class PastRestore:
    cdef Recovery recovery
    cdef Logs logs
    cdef entry_pager_t *pager
    # Puts a queue's entries back, those of the log among them. Returns how many. May wait for the disk.
    cdef uint64_t restore(self, queue_t *queue) except? 0
    cdef int _size(self, restored_t *entries, uint64_t count) except -1
    cdef uint64_t _before(self, queue_t *queue, restored_t *entries, uint64_t count, uint64_t limit) except? 0
    cdef uint64_t _segment(self, queue_t *queue, past_segment_t *segment, restored_t *entries, uint64_t count, uint64_t *taken) except? 0
    cdef uint64_t _changed(self, queue_t *queue, past_segment_t *segment, restored_t *entries, uint64_t count, uint64_t *taken) except? 0
    cdef int _end(self, past_segment_t *segment, uint64_t queue_id) except -1
