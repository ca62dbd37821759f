# What the limits of a queue make of an arrival: when it expires, what leaves to make room.
from libc.stdint cimport int64_t, uint32_t
from flintmq.queue.types cimport queue_t
from flintmq.routing.route_cache cimport destination_t

# When an expiring message expires on this queue, wall clock, milliseconds; 0 = never. expiration_ms: the message's own, -1 = none; on the
# schedule: when it is due.
cdef int64_t expiry_on(destination_t *destination, int64_t expiration_ms) noexcept nogil
# x-overflow drop-head without a dead-letter exchange: the oldest messages make room, 256 at most. Returns how many.
cdef uint32_t drop_head(queue_t *queue) noexcept nogil
