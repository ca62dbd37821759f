# The timer wheel: one for all actors of a system, an entry per actor (its earliest deadline, end of hold or end of pause).
from libc.stdint cimport int64_t, uint32_t
from flintmq.scheduler.types cimport actor_t, timers_t

cdef enum:
    SLEEP_MS_MAX = 3600000      # milliseconds of one sleep at most

cdef void timers_start(timers_t *timers, int64_t now_ns) noexcept nogil
# The actor is to be looked at, at `at_ns` or up to a millisecond later; an earlier time that was set before stays. The wheel takes a
# reference while the actor is in it. The caller holds the actor's lock. O(1).
cdef void timers_arm(timers_t *timers, actor_t *actor, int64_t at_ns) noexcept nogil
# Takes up to `room` actors whose time has come; with them their references, and nobody arms them before timers_taken. 0: no more.
cdef uint32_t timers_take(timers_t *timers, int64_t now_ns, actor_t **actors, uint32_t room) noexcept nogil
# Any actor of the wheel, as if its time had come (the end of the system); NULL: none.
cdef actor_t *timers_take_any(timers_t *timers) noexcept nogil
# The actor may be armed again. The caller holds the actor's lock.
cdef void timers_taken(timers_t *timers, actor_t *actor) noexcept nogil
# When timers_take must be called next; 0: nothing is armed.
cdef int64_t timers_next(timers_t *timers) noexcept nogil
# For the timer thread: sleeps until `until_ns` (0: without end), the next time of the wheel, or timers_kick. `signal` was read before the
# last look at what there is to do; now_ns is the clock.
cdef void timers_sleep(timers_t *timers, uint32_t signal, int64_t until_ns, int64_t now_ns) noexcept nogil
cdef void timers_kick(timers_t *timers) noexcept nogil
