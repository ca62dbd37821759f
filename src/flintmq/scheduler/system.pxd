# The actor system: settings, threads, and the face for Python.
from flintmq.scheduler.actor cimport actor_system_t

cdef class ActorSystem:
    cdef actor_system_t *system     # valid as long as the object lives; NULL never
    cdef readonly object limits
    cdef list threads
    cdef bint started
    cdef bint stopped
