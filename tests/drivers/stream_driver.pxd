# Python-facing consumers of a stream, for tests only.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport consumer_t, credit_t, queue_t, slot_t, target_t
from flintmq.streams.control cimport StreamQueue

cdef class StreamConsumer:
    cdef consumer_t *consumer
    cdef target_t target
    cdef consumer_t *consumers[1]
    cdef credit_t shared
    cdef uint32_t notified        # atomic: notify_work calls
    cdef slot_t *slot             # of its deliveries
    cdef readonly StreamQueue stream
    cdef bint attached
    cdef object settled(self, bint done)
