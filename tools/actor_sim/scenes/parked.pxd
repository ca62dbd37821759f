# Very many actors and parked requests on real threads: sizes, costs, and how long a wake takes to be answered.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t

cdef struct wait_t:
    request_t request
    crowd_t *crowd
    uint32_t group
    int64_t answered_ns

cdef struct crowd_t:
    actor_system_t *system
    actor_t **actors
    uint64_t *stock             # items of each group; atomic
    wait_t *waits
    uint64_t answered           # atomic
    uint64_t messages           # atomic
    uint32_t busy               # the group's items are taken with this much work (ns)
