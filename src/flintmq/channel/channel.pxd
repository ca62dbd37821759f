# A channel's way in: publish and settlement frames. Slow cases leave a note in connection.slow and pause.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.protocol.v0_9_1.engine cimport sink_t
from flintmq.queue.types cimport queue_t
from flintmq.routing.route_cache cimport route_t
from flintmq.channel.types cimport channel_t, connection_t, subscription_t

cdef channel_t *channel_new(connection_t *connection, uint16_t number) noexcept nogil
# Drops the open transaction and releases unacked deliveries to their places, `most` of both at most, the oldest tags first. Consumers must
# have been removed before. `*tag`: 1 at first; 0 afterwards: nothing is left. Returns what is left of `most`.
cdef uint32_t channel_release_some(channel_t *channel, uint64_t *tag, uint32_t most) noexcept nogil
cdef void channel_free(channel_t *channel) noexcept nogil
cdef sink_t *session_sink() noexcept nogil
# Accepts the message in channel.content along `route`: into the transaction, or published now. Takes the reference on the content,
# not the one on the route. FEED_*.
cdef int channel_accept(connection_t *connection, channel_t *channel, route_t *route) noexcept nogil
# The same for a message that goes to the schedule (connection.timed), due at channel.due_ms.
cdef int channel_schedule(connection_t *connection, channel_t *channel) noexcept nogil
cdef void channel_set_route(channel_t *channel, route_t *route) noexcept nogil   # takes the reference
cdef void authorization_changed() noexcept nogil   # every channel asks again before its next publish
# Makes the channel findable by its number, which no open one has. False: no memory.
cdef bint channels_add(connection_t *connection, channel_t *channel) noexcept nogil
cdef void channels_remove(connection_t *connection, channel_t *channel) noexcept nogil
# Frees all channels and what finds them: the connection is at its end.
cdef void channels_free(connection_t *connection) noexcept nogil
