# The compiled part of a link: deliveries of one connection become publishes of another, confirms of the other become acks of the first.
#
# No I/O: whole frames in, wire bytes out. A Mover belongs to one thread, and to one pair of connections: it begins and ends with them.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:                    # what is due on the source's channel
    DUE_METHOD = 0
    DUE_HEADER = 1
    DUE_BODY = 2

cpdef enum:                   # how a message of the source is settled
    SETTLE_NEVER = 0          # no-ack
    SETTLE_PUBLISHED = 1      # on-publish
    SETTLE_CONFIRMED = 2      # on-confirm

cdef enum:
    CONFIRM_SIZE = 21             # bytes of the frame of an ack or nack

cdef class Mover:
    # where to: shortstrs as on the wire; None: as the message came
    cdef bytes exchange, key
    cdef object change        # header payload -> header payload of the publish, or None: the message is not published; None: none changes
    cdef uint8_t bits         # of basic.publish
    cdef int mode             # SETTLE_*
    cdef uint32_t payload_max # bytes of a body frame that the destination takes
    cdef uint32_t input_max   # bytes of a frame that the source may send
    # frames for the destination
    cdef uint8_t *out
    cdef size_t out_size, out_end
    # the message that is arriving
    cdef int due              # DUE_*
    cdef bint drops           # it is not published
    cdef bint keeps           # nor settled: it goes back to its queue
    cdef uint64_t body_left
    cdef uint8_t[516] route
    cdef uint32_t route_exchange, route_size
    cdef bint redelivered
    # delivery tags: all up to `came` came, all up to `settled_to` are done; those in between that are done are marked
    cdef uint64_t came, settled_to, acked_to
    cdef uint8_t *done
    # publishes: the tag of publish n stands in tags[n & mask]; all below `confirm_low` are confirmed
    cdef uint64_t *tags
    cdef uint64_t published_count, confirm_low, mask
    cdef uint64_t open_count  # publishes that are not confirmed
    cdef int64_t left        # messages that may still be published; -1: any number
    cdef readonly uint64_t moved
    cdef readonly bint refused
    cdef bint room(self, size_t size) noexcept nogil
    cdef int one(self, const uint8_t *frame, uint32_t size) except -1
    cdef int deliver(self, const uint8_t *payload, uint32_t size) except -1
    cdef int header(self, const uint8_t *payload, uint32_t size) except -1
    cdef int body(self, const uint8_t *payload, uint32_t size) except -1
    cdef int publish(self) except -1
    cdef int complete(self) except -1
    cdef void mark(self, uint64_t tag) noexcept nogil
    cdef int confirm(self, uint64_t number, bint multiple) except -1
    cdef int frame(self, uint8_t kind, const uint8_t *payload, uint32_t size) except -1
