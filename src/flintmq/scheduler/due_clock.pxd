# When things end that belong to no request any more (leases, delays, visibility times): one thread that sleeps until the first of them.
from libc.stdint cimport uint32_t, uint64_t

cdef struct due_clock_t:
    uint64_t at_ns              # atomic: when the next look is, monotonic; 0: nothing ends that is known of
    uint32_t signal             # futex word of the thread: changed when at_ns became earlier, and at the end
    uint32_t references         # atomic

# Something ends at that time (0: nothing does). The earliest that was armed counts; one too many is a look for nothing. Any thread, no GIL,
# never blocks: one atomic read, and a futex call when nothing as early was armed. What ends must be there for the look before this is called.
cdef void due_clock_arm(due_clock_t *clock, uint64_t at_ns) noexcept nogil
cdef void due_clock_incref(due_clock_t *clock) noexcept nogil
cdef void due_clock_decref(due_clock_t *clock) noexcept nogil

cdef class DueClock:
    cdef due_clock_t *clock     # counted: who arms from compiled code may live longer
    cdef object give_back
    cdef object ended
    cdef object thread
    cdef double gap_s
    cdef readonly uint64_t passes
    cdef bint wait(self)
