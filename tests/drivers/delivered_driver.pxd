# A consumer and getter of a queue that logs in a store, for tests of marks.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport consumer_t, delivery_t, target_t

cdef class Taker:
    cdef readonly QueueHandle handle
    cdef consumer_t *consumer
    cdef target_t target
    cdef uint32_t notified
    cdef readonly uint32_t owner
    cdef bint _try(self, delivery_t *delivery)
    cdef bint _load(self, uint64_t position)
