# The pager: one thread's rounds over the queues on log_port_t.paging.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t, restored_t

cdef class Pager:
    cdef restored_t *entries
    cdef uint64_t _out
    cdef bint resting           # of the queue that is looked at: a segment may leave some rounds later
    cdef bint refused           # the log took no run in this round: nothing more is tried, for a full disk would keep a core busy
    cdef bint _page_queue(self, queue_t *queue) noexcept nogil
    cdef bint _look(self, queue_t *queue, uint32_t level, uint32_t place) noexcept nogil
    cdef void _page_level(self, queue_t *queue, uint32_t level) noexcept nogil
