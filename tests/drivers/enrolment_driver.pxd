# An Enrolment with a port that keeps what it was asked.
from flintmq.queue.enrolment cimport Enrolment

cdef class EnrolmentDriver:
    cdef Enrolment enrolment
    cdef readonly list asked            # ("enqueue", queue id, position) and ("dequeue", queue id, position, reason), in order
    cdef public object refusal          # an exception that the port raises; None: it takes what comes
    cdef public bint takes              # False: the port says that nothing is logged
