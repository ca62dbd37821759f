# The firehose on the message path: copies of the messages that are published and delivered, to the exchange amq.rabbitmq.trace.
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t
from flintmq.routing.route_cache cimport RouteCache, route_t
from flintmq.channel.types cimport connection_t, tracer_t

cdef enum:
    TRACE_COPY_MAX = 1048576    # bytes of a body that are copied here, some 100 us; a copy of a larger one waits in an outbox (broker/trace.py)

# A message that is about to be put on the queues of its route (NULL: it goes to the schedule), when connection_t.traced has TRACED_FIREHOSE.
# Connection.take_refused is due when connection.refused is not NULL. True: the connection has had its turn. O(bytes of the message, queues).
cdef bint trace_published(connection_t *connection, uint16_t channel, route_t *route, content_t *content) noexcept nogil
# A delivery that was written, for the firehose and for a span, as far as connection_t.traced asks for them. A span takes the GIL.
cdef void note_delivery(connection_t *connection, uint16_t channel, queue_t *queue, bint redelivered, content_t *content) noexcept nogil
# What copies have in common. cache: of the exchange; place: the fields node, vhost and connection; user: the field user.
cdef tracer_t *tracer_new(RouteCache cache, bytes place, bytes user) except NULL
# NULL: there is none.
cdef void tracer_free(tracer_t *tracer) noexcept nogil
