# Python-facing driver of the queue core, for tests only.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, credit_t, delivery_t, queue_t, target_t

cdef struct loads_t:              # what the content port was asked for
    uint32_t lock
    uint32_t count
    uint64_t positions[256]

cdef class Queue:
    cdef queue_t *queue
    cdef loads_t loads
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

# --- threads
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
