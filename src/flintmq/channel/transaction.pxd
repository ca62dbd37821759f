# A committed transaction (tx class) on its way through the log: decided when the commit record is durable, then applied.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport log_port_t, queue_t
from flintmq.routing.route_cache cimport destination_t, route_t
from flintmq.channel.connection cimport Connection
from flintmq.channel.placing cimport Landing
from flintmq.channel.types cimport channel_t, connection_t, tx_publish_t, tx_settle_t, unacked_t

cdef enum:                    # late_t.kind: what is due when the transaction takes effect, besides its enrolment; not in the log's transaction
    LATE_LIMIT = 1            # a queue with a limit got a message
    LATE_RETURN = 2           # the message goes back to the publisher: no queue, and mandatory
    LATE_IMMEDIATE = 3        # it is offered
    LATE_STREAM = 4           # it is appended

cdef struct late_t:
    uint8_t kind
    uint8_t bits              # of basic.publish
    queue_t *queue            # LATE_STREAM, LATE_LIMIT: counted
    uint32_t flags            # LATE_LIMIT: DEST_* of its destination
    route_t *route            # counted, or NULL
    content_t *content        # counted, or NULL

cdef struct settled_t:
    unacked_t item            # taken out of its channel's map when the commit was written
    uint32_t method           # BASIC_ACK, BASIC_NACK or BASIC_REJECT of ids.pxd
    uint8_t requeue
    bint logged               # its dequeue is part of the log's transaction

cdef class Transaction(Landing):
    cdef Connection connection        # None: it ended, or the channel did
    cdef readonly object handler      # session.handlers.ConnectionHandler
    cdef readonly uint16_t number     # of the channel
    cdef channel_t *channel           # NULL once detached
    cdef LogPort log                  # None: nothing of it is logged
    cdef Enrolment enrolment          # its messages on queues, and what of it is logged
    cdef uint64_t wait_lsn            # what the answer waits for after it was applied (immediate messages)
    cdef log_port_t *port             # of streams; NULL: there is no store
    cdef uint64_t wait_ticket         # the same for messages on streams
    cdef bint applied
    cdef late_t *late
    cdef uint32_t late_count
    cdef uint32_t late_size
    cdef settled_t *settled
    cdef uint32_t settled_count
    cdef list letters                 # (queue id, REASON_*, message) to be dead-lettered inside the transaction
    cdef dict sums                    # queue id -> [messages, bytes] that it puts on a queue which refuses over its limit
    cdef readonly bint is_shared      # what it publishes and settles is on shared queues: the engine decides it, and nothing is logged here
    cdef readonly list messages       # of those: (queue id, message with flags and priority, expires_at_ms)
    cdef readonly list ends           # of those: (queue id, position) of deliveries that end
    cdef public object on_applied     # called when it took effect; None: nobody waits for that
    cdef readonly list limited        # ids of queues with a dead-letter exchange that it may have filled over their limit
    cdef late_t *_add(self, uint8_t kind, queue_t *queue, route_t *route, content_t *content) except NULL
    cdef void _count_publish(self, content_t *content)
    cdef int _hold(self, tx_publish_t *publish) except -1
    cdef object _append(self, late_t *late)
    cdef void _letter(self, connection_t *connection, settled_t *taken)
    cdef bint _hold_shared(self, tx_publish_t *publish) except -1
    cdef void _take_shared(self, tx_settle_t *settle, unacked_t *item) except *
    cdef bint _refused(self, destination_t *destination, content_t *content) except? True
    cdef int _take(self, tx_settle_t *settle, settled_t *taken) except -1
    cdef bint _advance(self) except? True
    cdef object _leave_line(self, Connection connection)
    cdef object _apply(self)
    cdef object _publish(self, late_t *late)
    cdef object _free(self)
