# The actor system: settings, threads, and the face for Python.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t

cdef class ActorSystem:
    cdef actor_system_t *system     # valid as long as the object lives; never NULL
    cdef readonly object limits
    cdef object clock               # a ManualClock, or None
    cdef list threads
    cdef object lock                # of start and stop
    cdef bint started
    cdef bint stopped
    cdef int _sync(self) except -1
