# Python-facing driver of the queue core, for tests only.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, credit_t, delivery_t, log_port_t, queue_t, target_t

cdef struct loads_t:              # what the content port was asked for
    uint32_t lock
    uint32_t count
    uint64_t positions[256]

cdef class Queue:
    cdef queue_t *queue
    cdef loads_t loads
    cdef log_port_t port
    cdef object delivery_of(self, delivery_t *delivery)

cdef class Credit:                # a channel's shared prefetch
    cdef credit_t credit

cdef class Target:
    cdef target_t target
    cdef uint32_t notified        # atomic: notify_work calls
    cdef list members

cdef class Consumer:
    cdef consumer_t *consumer
    cdef readonly Queue queue
    cdef readonly Target target
    cdef Credit shared            # kept alive
    cdef uint8_t wanted_first     # interest predicate: first byte of the body
