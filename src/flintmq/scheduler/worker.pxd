# Slices: a worker takes the next actor of the run queue and processes its requests until the slice is spent.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t, actor_t, worker_t

# Runs exactly one slice as worker `number` on the caller's thread. False: nothing was runnable. For the manual clock (several threads or
# coroutines may step different workers at once); with started workers it is theirs.
cdef bint system_step(actor_system_t *system, uint32_t number) noexcept nogil
# A worker thread's life: slices, sleep when there is nothing, until the system stops.
cdef void worker_run(actor_system_t *system, uint32_t number) noexcept nogil
