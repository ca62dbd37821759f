# Messages that wait before they are delivered again: see retries.py.
from flintmq.queue.waits cimport retries_t, waits_t

cdef enum:
    WAITS_AT_ONCE = 64                # messages that come back between two looks at the time

cdef class Retries:
    cdef retries_t retries
    cdef object clock

cdef class Ending:              # what waited in a queue that is deleted
    cdef waits_t *waits
