# How fast cold reads may go while new messages come. Every function wants the loader's lock held.
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    PACE_QUEUES = 64            # queues whose arrivals are watched (by queue id, modulo)

cdef struct arrivals_t:         # how fast messages come to a queue
    uint64_t queue_id
    uint64_t seen
    uint64_t rate               # a second
    int64_t at_ns

cdef struct pace_t:
    uint64_t *hot               # atomic count of messages that came to queues without cold entries; NULL: not known, no pace
    uint64_t rate               # messages a second while there are hot ones; 0: never held back
    uint64_t bytes_rate         # bytes of bodies a second
    uint64_t hot_rate           # hot messages a second from which on cold ones are held back
    uint64_t hot_seen
    int64_t hot_at_ns
    bint is_hot
    int64_t free_at_ns          # what was loaded is paid for at this time
    arrivals_t queues[PACE_QUEUES]

cdef void pace_begin(pace_t *pace, int64_t now) noexcept nogil
# Counts what was loaded for a queue to which `enqueued` messages ever came. Until when its reads must pause; 0: they need not.
cdef int64_t pace_charge(pace_t *pace, int64_t now, uint64_t queue_id, uint64_t enqueued, uint64_t entries, uint64_t bytes_) noexcept nogil
