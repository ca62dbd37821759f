# Threads on one queue, for stress tests.
from libc.stdint cimport uint32_t, uint64_t
from tests.drivers.queue_driver cimport Consumer, Queue

cdef struct stress_t:
    uint32_t stop                 # atomic
    uint32_t producers
    uint64_t per_producer
    uint32_t *seen                # per message: how often it was finished (acked, removed or returned); atomic
    uint64_t duplicates           # atomic
    uint64_t disorder             # atomic: first deliveries of one consumer out of a producer's order
    uint64_t finished             # atomic
    uint64_t delivered            # atomic
    uint64_t leaked               # atomic: credit that consumers had in use when they left with nothing in hand
    uint64_t returned             # atomic: immediate messages that came back

cdef class Stress:
    cdef stress_t state
    cdef Queue queue
