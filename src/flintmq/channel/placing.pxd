# The last step of a publish: a message onto the queues of its route, and its confirm.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport log_port_t, queue_t
from flintmq.routing.route_cache cimport destination_t, route_t
from flintmq.channel.types cimport channel_t, connection_t

cdef enum:
    ROUTE_ATTEMPTS = 16       # routes that one message is tried on before it is refused

cdef enum:                    # `bits` of basic.publish
    PUBLISH_MANDATORY = 1
    PUBLISH_IMMEDIATE = 2

cdef enum:                    # what place_on_stream answers
    STREAM_REFUSED = 0        # damage, no memory
    STREAM_TOOK = 1
    STREAM_GONE = 2           # it is deleted

cdef struct tally_t:          # what became of one message on the queues of its route
    uint64_t lsn              # of the log, 0: nothing was logged
    uint64_t ticket           # of the streams, 0: it went to none
    uint32_t placed           # queues that have it
    uint32_t refused          # queues that would not have it, for their limit or for want of memory
    uint32_t unwanted         # queues without a consumer for an `immediate` one
    uint32_t gone             # queues that were deleted when it came
    bint policy               # Connection.take_refused and the policies are due
    bint awaited              # its publisher waits for a confirm

# Puts the message on every queue of its route, answers mandatory and immediate, notes the confirm. Takes the reference on the content,
# not the one on the route. `bits`: of basic.publish; `expiration_ms`: of the message, -1 = none. FEED_PAUSE: Connection.take_refused and
# the policies are due (connection.slow), or, with SLOW_NONE, the connection has had its turn.
cdef int publish_to_queues(
    connection_t *connection, channel_t *channel, route_t *route, content_t *content, uint8_t bits, int64_t expiration_ms
) noexcept nogil
# Puts a message that the broker itself makes of another one on every queue of its route, by their limits: it is nobody's publish, and what
# refuses it is counted as DROP_MAXLEN. Takes no reference. Connection.take_refused is due when connection.refused is not NULL. True: the
# connection has had its turn.
cdef bint place_copy(connection_t *connection, route_t *route, content_t *content) noexcept nogil
# The route of a message by the routing table of now, with a reference for the caller; NULL: it can't be found out (no memory). Takes the
# GIL. For a message that found a queue of `route` deleted; `route` is invalid from then on for whoever remembers it.
cdef route_t *route_anew(connection_t *connection, route_t *route, content_t *content) noexcept nogil
# The part of it that needs Python. The exception is ours to log.
cdef route_t *ask_again(connection_t *connection, route_t *route, content_t *content) except NULL
# Routing keys as route_t.more keeps them.
cpdef bytes pack_keys(list keys)
# Appends the message to a stream and raises `*ticket` to what its confirm waits for. Returns STREAM_*.
cdef int place_on_stream(log_port_t *port, queue_t *stream, content_t *content, uint64_t *ticket) noexcept nogil

# --- publisher confirms
# The next tag's message is on its queues (or was refused): a confirm must wait for `lsn` of the log and `ticket` of the streams, 0 = nothing.
cdef void channel_note_confirm(connection_t *connection, channel_t *channel, uint64_t lsn, uint64_t ticket, bint refused) noexcept nogil
# Sends what may be confirmed on all channels of the connection that have something to confirm.
cdef void connection_flush_confirms(connection_t *connection) noexcept nogil
# The channel ends: nobody waits for what it published.
cdef void confirms_forget(channel_t *channel) noexcept nogil

# A part of a transaction that puts messages on queues; `hold`: one that Python made.
cdef class Landing:
    cdef bint _land(self, queue_t *queue, content_t *content, int64_t expires_at_ms) except? True
