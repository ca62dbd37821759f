# Load for fairness measurements: groups of consumers that pull in a closed loop. The same source runs in simulated time (sim.h) and on real
# threads (plain.h).
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t

cdef enum:
    GROUPS_MAX = 16384
    WAIT_BUCKETS = 160          # four an octave from 256 ns
    SERIES = 256                # equal parts of the run

cdef struct pull_t:             # one consumer: one request, sent again when it is answered
    request_t request
    group_t *group
    int64_t mark_ns             # what the newcomer had got when it was dispatched
    uint32_t waiting

cdef struct group_t:
    load_t *load
    actor_t *actor
    uint64_t number
    uint32_t weight
    uint32_t consumers
    int64_t cost_ns             # CPU time of a request
    int64_t io_ns               # wait of a request for the disk
    int64_t join_ns             # from the start of the run
    int64_t leave_ns
    pull_t *pulls
    # of the worker that runs its actor
    uint64_t served             # in the window
    int64_t busy_ns             # in the window: CPU and I/O
    int64_t wait_sum_ns
    int64_t wait_max_ns         # from dispatch to process()
    uint32_t waits[WAIT_BUCKETS]
    int64_t got_ns              # since the start
    int64_t added_ns            # most that the newcomer got during one wait of this group
    int64_t added_first_ns      # the same of waits that began before it had got anything
    int64_t series_ns[SERIES]
    int64_t series_wait_ns[SERIES]      # longest wait that ended in it

cdef struct load_t:
    actor_system_t *system
    group_t *groups
    uint32_t count
    group_t *newcomer           # or NULL
    int64_t start_ns
    int64_t from_ns             # window, absolute
    int64_t to_ns
    int64_t end_ns
    uint32_t stopping           # atomic
    uint32_t joined             # groups that were started

cdef struct numbered_t:
    actor_system_t *system
    uint32_t number
