# Long work of a loop in Python, in slices: see chores.py. The loop's thread only.
from libc.stdint cimport int64_t
from flintmq.core.jobs cimport turn_clock_t

cdef class Chores:
    cdef turn_clock_t *clock
    cdef object steps         # deque of (step, ended)
    cdef object log
    cdef bint waiting         # there are some
    cdef bint over            # the loop is at its end
    # One share of a pass for them, each in its turn.
    cdef void run(self, int64_t end_ns)
    # The loop ends: who still waits for a slice is told.
    cdef void end(self)
