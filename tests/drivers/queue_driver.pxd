# Python-facing driver of the queue core, for tests only.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.due_index cimport DueIndex
from flintmq.queue.pager cimport Pager
from flintmq.queue.types cimport consumer_t, credit_t, delivery_t, log_port_t, queue_t, target_t, waiter_t

from tests.twins.memory_log cimport MemoryLog
from tests.drivers.queue_ports cimport loads_t

cdef class Queue:
    cdef queue_t *queue
    cdef readonly MemoryLog log
    cdef loads_t loads
    cdef log_port_t port
    cdef DueIndex due_index
    cdef Pager pager
    cdef object delivery_of(self, delivery_t *delivery)

cdef class Waiter:                # a basic.get that waits for the head
    cdef waiter_t waiter
    cdef uint32_t woken           # atomic
    cdef Queue queue              # while it waits

cdef class Credit:                # a channel's shared prefetch
    cdef credit_t credit

cdef class Target:
    cdef target_t target
    cdef uint32_t notified        # atomic: notify_work calls
    cdef list members

cdef struct gate_t:               # where an offer stops until its consumer is off the lists
    consumer_t *consumer
    uint32_t reached              # atomic

cdef class Consumer:
    cdef gate_t gate
    cdef consumer_t *consumer
    cdef readonly Queue queue
    cdef readonly Target target
    cdef Credit shared            # kept alive
    cdef uint8_t wanted_first     # interest predicate: first byte of the body
