# Slices: a worker takes the next actor of the run queue and processes its requests until the slice is spent.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t, actor_t, worker_t

# Runs exactly one slice as worker `number` on the caller's thread. False: nothing was runnable. For the manual clock (several threads or
# coroutines may step different workers at once); with started workers it is theirs.
cdef bint system_step(actor_system_t *system, uint32_t number) noexcept nogil
# A worker thread's life: slices, sleep when there is nothing, until the system stops.
cdef void worker_run(actor_system_t *system, uint32_t number) noexcept nogil


# The run queue: which actor runs next, and which worker sleeps. All functions take its lock themselves.
cdef enum:
    VRUN_NEW = -1               # actor_t.vrun of one that never ran: is next, and charged a slice in advance

# Time of a slice when that many actors are runnable: a quantum up to 8 of them, then they share as much time.
cdef int64_t run_queue_slice(actor_system_t *system, uint32_t runnable) noexcept nogil
# Room for that many actors. False: no memory.
cdef bint run_queue_reserve(actor_system_t *system, uint32_t actors) noexcept nogil
# A scheduled actor (it holds a reference); wakes a sleeping worker if none is on its way. O(log n).
cdef void run_queue_put(actor_system_t *system, actor_t *actor) noexcept nogil
# The next actor for `worker`, or NULL. `runnable`: how many there are, this one counted. O(log n).
cdef actor_t *run_queue_take(actor_system_t *system, worker_t *worker, uint32_t *runnable) noexcept nogil
# The slice is over and cost that much; back: there is more to do, the actor (still SCHEDULED) queues again.
cdef void run_queue_charge(actor_system_t *system, worker_t *worker, actor_t *actor, int64_t cost_ns, bint back) noexcept nogil
# Sleeps until there is something. False: the system stops.
cdef bint run_queue_sleep(actor_system_t *system, worker_t *worker) noexcept nogil
cdef void run_queue_stop(actor_system_t *system) noexcept nogil
