# Whether a loop polls for a moment before it sleeps: see patience.py. The loop's thread only.
cimport cython
from libc.stdint cimport int64_t, uint32_t
from flintmq.core.jobs cimport turn_clock_t
from flintmq.net.sysio cimport epoll_event

@cython.final
cdef class Patience:
    cdef int64_t poll_ns          # the longest poll, and half of the longest wait that counts as short; 0: it never polls
    cdef readonly uint32_t needed # short waits in a row before it polls
    cdef uint32_t in_row          # short waits since the last long one
    cdef uint32_t paid            # polls in a row that ended with an event
    # Whether the next wait begins with a poll, after a pass that took so long. O(1).
    cpdef bint polls(self, int64_t worked_ns) noexcept nogil
    # How long a wait took, and whether it was a poll that ended with no event. O(1).
    cpdef void waited(self, int64_t waited_ns, bint in_vain) noexcept nogil
    # Up to EVENTS_MAX events, at once or after at most `timeout` milliseconds. worked_ns: how long the pass took that ends; polled_ns: when
    # the loop looked last. Returns how many, or what epoll_wait does.
    cdef int wait(self, int epoll, epoll_event *events, int timeout, int64_t worked_ns, turn_clock_t *clock, int64_t polled_ns) noexcept nogil
