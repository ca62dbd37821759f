# A batch of scheduled messages whose time has come, on its way from the schedule to the queues of its routes, in one transaction of the log.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport slot_t
from flintmq.channel.placing cimport Landing

cdef struct fired_t:          # an entry of the schedule, acquired by the broker
    slot_t *slot
    uint64_t position
    content_t *content        # counted
    bint logged
    bint aside                # it is left out, and stays where it is until the next start

cdef class Firing(Landing):
    cdef QueueHandle core             # the schedule's
    cdef LogPort log                  # or None
    cdef Enrolment work               # since `begin`
    cdef bint logged                  # the log has a part in it
    cdef fired_t *fired
    cdef uint32_t fired_count
    cdef uint32_t fired_size
    cdef readonly uint32_t unreadable # messages whose content can't be read: they stay, out of the way
    cdef readonly list limited        # ids of queues that dead letters of the batch may have filled over their limit
    cdef readonly list streamed       # ids of streams that it was appended to
    cdef object _free(self)
