# A batch of scheduled messages whose time has come, on its way from the schedule to the queues of its routes, in one transaction of the log.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport delivery_t, queue_t, slot_t
from flintmq.channel.placing cimport Landing
from flintmq.routing.route_cache cimport RouteCache, route_t

cdef struct fired_t:          # an entry of the schedule, acquired by the broker
    slot_t *slot
    uint64_t position
    content_t *content        # counted
    route_t *route            # counted: it goes to all its queues; NULL: Python says where to
    int64_t expiration_ms     # of the message; below 0: none
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
    cdef uint64_t fired_bytes         # of their bodies
    cdef RouteCache cache             # of the exchange that the last message was for
    cdef dict caches                  # name of an exchange -> its cache, or None
    cdef set unknown                  # routes that Python did not find, or that it does not keep
    cdef readonly uint32_t unreadable # messages whose content can't be read: they stay, out of the way
    cdef readonly list limited        # ids of queues that dead letters of the batch may have filled over their limit
    cdef readonly list streamed       # ids of streams that it was appended to
    cdef readonly uint32_t unroutable # messages that go to no queue
    cdef readonly uint32_t learned    # routes that Python was asked for
    cdef bint _take_some(self, int64_t now, uint32_t limit, uint64_t bytes_limit, delivery_t *cold) noexcept nogil
    cdef void _add(self, delivery_t *delivery, content_t *content) noexcept nogil
    cdef route_t *_find(self, content_t *content, object find, object learn) except? NULL
    cdef route_t *_known(self, content_t *content) noexcept
    cdef void _limited(self, queue_t *queue)
    cdef object _free(self)
