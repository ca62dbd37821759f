# The last step of a publish: a message onto the queues of its route.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport log_port_t, queue_t
from flintmq.routing.route_cache cimport destination_t, route_t
from flintmq.session.types cimport channel_t, connection_t

# Puts the message on every queue of its route, answers mandatory and immediate, notes the confirm. Takes both references.
# `bits`: of basic.publish; `expiration_ms`: of the message, -1 = none. FEED_PAUSE: Connection.take_refused and the policies are due.
cdef int publish_to_queues(
    connection_t *connection, channel_t *channel, route_t *route, content_t *content, uint8_t bits, int64_t expiration_ms
) noexcept nogil
# Appends the message to a stream and raises `*ticket` to what its confirm waits for. False: it was refused (damage, no memory).
cdef bint place_on_stream(log_port_t *port, queue_t *stream, content_t *content, uint64_t *ticket) noexcept nogil
# Python dead-letters the message after this event. `reason`: REASON_DROP or REASON_REJECT. False: no memory, it is only refused.
cdef bint note_refused(connection_t *connection, queue_t *queue, content_t *content, int reason) noexcept nogil
# x-overflow drop-head without a dead-letter exchange: the oldest messages make room. Returns how many.
cdef uint32_t drop_head(destination_t *destination) noexcept nogil
# When an expiring message expires on this queue, wall clock, milliseconds; 0 = never. expiration_ms: the message's own, -1 = none.
cdef int64_t expiry_on(destination_t *destination, int64_t expiration_ms) noexcept nogil
