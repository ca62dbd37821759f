# What happens by the clock: deadlines and holds, ends of pauses, one sample a second, retirement of idle actors.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t, actor_t

# Does everything that is due at `now_ns`; at most one thread at a time. Returns the number of requests answered.
cdef uint64_t system_tick(actor_system_t *system, int64_t now_ns) noexcept nogil
# When system_tick has something to do next (absolute, never later than the truth by more than a tick); 0: nothing.
cdef int64_t system_next_ns(actor_system_t *system) noexcept nogil
# The timer thread's life.
cdef void timers_run(actor_system_t *system) noexcept nogil
# The end, after all threads of the system ended: everything that waits is answered CLOSED, nothing is accepted any more.
cdef void system_close_all(actor_system_t *system) noexcept nogil
