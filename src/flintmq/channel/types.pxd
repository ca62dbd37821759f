# The records of the session layer: connection, channel, subscription, unacked deliveries. Plain C, owned by one loop thread.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.buffer cimport outbuf_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.core.counters cimport counters_t
from flintmq.core.jobs cimport jobs_t
from flintmq.protocol.v0_9_1.engine cimport engine_t
from flintmq.queue.types cimport consumer_t, credit_t, log_port_t, queue_t, slot_t, target_t
from flintmq.routing.kept cimport kept_user_t
from flintmq.routing.route_cache cimport ROUTE_BY_CHANCE, ROUTE_BY_CONTENT, ROUTE_BY_MEMORY, exchange_t, route_t

cdef struct connection_t
cdef struct channel_t

cdef enum:
    UNACKED_PER_SEGMENT = 256
    CHANNELS_PAGE = 64        # a client chooses its numbers: one high number must not cost a table of all below it
    AUTHORIZED_MAX = 4        # exchanges a channel remembers as authorized for publishing
    REPLY_NAME_MAX = 63       # bytes of the name of a reply queue (Broker.open_reply_queue)

cdef struct unacked_t:        # one delivery that waits for its ack; slot NULL = settled
    slot_t *slot
    uint64_t position
    queue_t *queue            # borrowed from the consumer, counted for basic.get
    consumer_t *consumer      # counted; NULL for basic.get
    uint32_t owner            # id under which the entry is acquired
    uint8_t in_tx             # settled by an open transaction: neither recover nor another settlement sees it
    uint8_t dead_letters      # refused without requeue: goes the slow way to the dead-letter exchange
    # Its time is over (x-consumer-timeout): the entry is back in its queue, and `slot` is nobody's to look at. It stands for the credit that
    # its consumer has used, until the client settles it.
    uint8_t lost
    uint64_t delivered_us     # wall clock of the turn that delivered it, microseconds

cdef struct unacked_segment_t:
    uint32_t live
    unacked_t items[UNACKED_PER_SEGMENT]

cdef struct unacked_map_t:    # delivery tag -> delivery, in segments that go when all in them are settled
    unacked_segment_t **segments
    uint32_t size             # slots in `segments`
    uint64_t first            # number of the segment that segments[0] holds; segment number = tag / UNACKED_PER_SEGMENT
    uint64_t last_tag         # highest tag given out
    uint64_t count            # deliveries not settled
    unacked_segment_t *spare

cdef struct pending_confirm_t:
    uint64_t tag
    uint64_t lsn              # of the log: 0 = nothing of it was logged
    uint64_t ticket           # of the streams: 0 = it went to none

cdef struct tx_publish_t:
    route_t *route            # counted
    content_t *content        # counted
    int64_t due_ms            # of a scheduled message, else 0
    uint8_t bits

cdef struct tx_settle_t:      # one delivery; in_tx is set in its unacked_t
    uint64_t tag
    uint32_t method           # BASIC_ACK, BASIC_NACK or BASIC_REJECT of ids.pxd
    uint8_t requeue

cdef struct refused_t:        # a message that is to be dead-lettered after the present event: reject-publish-dlx, rejects of a tx; or a queue over its limit
    int reason                # REASON_DROP or REASON_REJECT of queue/types.pxd
    queue_t *queue            # counted
    content_t *content        # counted; NULL: the queue is over its limit and drops its head (which is dead-lettered)
    refused_t *next

cdef struct subscription_t:   # one basic.consume: consumer, target and the constant start of its deliver frames
    target_t target
    consumer_t *consumer      # counted
    consumer_t *consumers[1]  # what target.consumers points at
    channel_t *channel
    subscription_t *next      # all subscriptions of the channel
    bint no_ack
    bint cancelled
    bint waiting              # x-single-active-consumer: another consumer of the queue is the active one
    bint dead_letters
    uint32_t prefix_len
    uint8_t prefix[272]       # frame header, class 60 method 60, consumer tag
    queue_t *queue            # counted

cdef struct channel_t:
    connection_t *connection
    channel_t *next_open      # links of connection.open_channels
    channel_t *previous_open
    uint16_t number
    bint open
    # publishing
    route_t *route            # route of the publish under way, and of the last one: counted
    exchange_t *authorized[AUTHORIZED_MAX]   # counted; exchanges this user may publish to
    uint32_t authorized_next
    uint64_t authorized_generation
    content_t *content        # message being received
    uint32_t filled           # body bytes received
    uint32_t announced        # body bytes that its header said; content.body_len is the room for them until all are there
    uint8_t publish_bits      # mandatory, immediate
    bint aimed                # of another node: all its messages go to one queue, which that node has decided
    uint8_t slow_publish      # decided by the route (route_t.how) and at the header: SLOWLY_*; 0: to the queues of the route when complete
    int64_t expiration_ms
    int64_t due_ms            # SLOWLY_SCHEDULED: when it is to be routed, wall clock
    # direct reply-to
    uint8_t reply_to_len      # 0: the channel has no reply queue
    uint8_t reply_to[REPLY_NAME_MAX]
    # confirms
    bint confirm
    bint confirm_dirty        # is on connection.confirming
    channel_t *next_confirming
    uint64_t publish_tag      # tag of the last message received in confirm mode
    uint64_t confirmed        # every tag up to here is answered
    pending_confirm_t *pending  # ring: messages of the log or of streams that are not durable yet
    uint32_t pending_size
    uint32_t pending_first
    uint32_t pending_count
    # transactions
    bint tx
    uint64_t tx_bytes
    tx_publish_t *tx_publishes
    uint32_t tx_publish_count
    uint32_t tx_publish_size
    tx_settle_t *tx_settles
    uint32_t tx_settle_count
    uint32_t tx_settle_size
    # consuming
    bint flow_stopped         # channel.flow(active = false)
    credit_t credit           # channel-wide prefetch (basic.qos global)
    uint32_t prefetch         # for consumers that come (basic.qos)
    unacked_map_t unacked
    uint64_t late             # deliveries whose time was over that left the map: settling one of them is no mistake of the client
    subscription_t *subscriptions
    uint32_t subscription_count
    uint32_t getter           # consumer id of basic.get, made when first needed
    # targets that want to work
    uint32_t work_lock
    uint32_t work_pending     # atomic: the channel is on its connection's list
    target_t *work_first
    target_t *work_last
    channel_t *next_working
    # figures
    uint64_t published
    uint64_t delivered
    uint64_t acknowledged
    uint64_t returned
    uint64_t redelivered      # of `delivered`: with the flag
    uint64_t unroutable       # messages that no queue was there for, and that did not go back
    uint64_t answered         # publishes that were confirmed
    bint publishing           # it has published: counters_t.publishers counts it

cdef enum:                    # index of connection_t.dropped
    DROP_UNROUTABLE = 0       # no queue for it, and not mandatory
    DROP_REFUSED = 1          # by a full queue (reject-publish)
    DROP_MAXLEN = 2           # by a full queue (drop-head)
    DROP_REJECTED = 3         # by its consumer, and no dead-letter exchange
    DROP_CYCLE = 4            # a dead letter would have gone in a circle
    DROP_LETTER = 5           # a dead letter that a full queue refused
    DROP_PASSED = 6           # of DROP_REFUSED: by reject-publish-dlx, so that what became of them is counted with the dead letters
    DROP_REASONS = 7

cdef enum:                    # bits of channel_t.slow_publish
    SLOWLY_IN_PYTHON = 1      # its properties or its exchange need Python
    SLOWLY_SCHEDULED = 2      # it goes to the schedule; due_ms is known
    SLOWLY_ASKED = 4          # Python finds out whether it goes to the schedule
    SLOWLY_BY_CONTENT = ROUTE_BY_CONTENT  # its headers decide its route (a headers exchange, CC, BCC): channel/deciding
    SLOWLY_BY_CHANCE = ROUTE_BY_CHANCE    # it goes to one of the queues of its route
    SLOWLY_BY_MEMORY = ROUTE_BY_MEMORY    # exchanges on its way remember it

cdef enum:                    # bits of connection_t.publisher
    PUBLISHED_EVER = 1
    PUBLISHED_NOW = 2         # since the loop looked last

ctypedef void (*schedule_t)(connection_t *connection) noexcept nogil

cdef struct tracer_t:         # what the firehose's copies of a connection's messages have in common; its bytes stand behind it
    exchange_t *exchange      # amq.rabbitmq.trace of the virtual host, counted
    const uint8_t *place      # the fields node, vhost and connection
    const uint8_t *user       # the field user
    uint32_t place_size
    uint32_t user_size

cdef struct connection_t:
    engine_t engine
    outbuf_t out
    arena_t *arena            # the loop's
    jobs_t *jobs              # the loop's: long work in slices
    counters_t *counters      # the loop's figures
    channel_t ***channels     # pages of CHANNELS_PAGE by number (connection_channel finds one); NULL = none of the page is open
    uint32_t channel_pages
    channel_t *last_channel   # the one that connection_channel found last; NULL: none, or it was closed
    channel_t *open_channels  # all of them, the newest first
    uint32_t frame_size_max   # negotiated, for what we send
    schedule_t schedule       # puts the connection on its loop's run queue; any thread
    void *loop                # the loop's own record of the connection
    # delivery
    uint32_t scheduled        # atomic: on the run queue
    connection_t *next_run
    uint32_t work_lock
    channel_t *work_first     # channels with targets that want to work
    channel_t *work_last
    bint write_blocked        # output above the high mark: consumers are suspended until it drained
    bint closed
    channel_t *confirming     # channels with confirms to send at the end of the pass
    uint32_t publisher        # PUBLISHED_*
    uint32_t wide             # queues that publishes to many (placing.pxd) went to since a turn ended for them
    uint32_t head_came        # atomic: the message that a basic.get waits for was loaded, or the queue's head changed
    bint awaits_end           # our close-ok is its last frame: the client ends the stream (Connection.finished)
    bint waiting              # an answer is still to come (a commit, a message that is being loaded): nothing is fed until Loop.resume
    bint joins                # but for methods that may be under way together (session/underway.py, Loop.next_joining)
    # why Python is called
    int slow
    uint16_t slow_channel
    uint32_t slow_method
    const uint8_t *slow_payload
    uint32_t slow_size
    uint64_t slow_tag
    exchange_t *slow_exchange # borrowed from the channel
    # messages that left without reaching a consumer, since they were last collected (Connection.take_drops)
    uint64_t dropped[DROP_REASONS]
    uint64_t letters[4]       # DEATH_* of channel/letters.pxd: messages that went to their dead-letter exchanges, collected with them
    # figures
    uint64_t output_high
    uint64_t output_low
    uint32_t largest_out      # bytes of the largest body of several frames since all output was sent
    uint64_t deliveries
    uint32_t traced           # TRACED_* of channel/traceparent.pxd: 0: nobody looks; any thread sets it
    tracer_t *tracer          # set before TRACED_FIREHOSE ever is, and there to the end; NULL: the firehose was never on
    # the log
    log_port_t *port          # NULL: nothing is logged
    uint64_t logged           # highest LSN of a message that it published since the loop collected it (1: streams only); 0 = none
    bint awaited              # somebody waits for some of that: a confirm, or a stream
    uint64_t now_us           # wall clock of the delivery turn under way, microseconds
    uint64_t tx_bytes_max
    route_t *timed            # of the virtual host's scheduled messages (counted); NULL: this connection has sent none yet
    refused_t *refused        # oldest first; taken by Connection.take_refused
    refused_t *refused_last
    const uint8_t *user       # name of the user that logged in; the Connection's
    uint32_t user_len         # 0: none has
    kept_user_t *kept_user    # counted: what exchanges remember of this user's messages; NULL: none of its messages came to one yet
    void *owner               # the Connection (borrowed): for the rare calls into Python from the message path

# The open channel of that number, else NULL.
cdef inline channel_t *connection_channel(connection_t *connection, uint32_t number) noexcept nogil:
    cdef uint32_t page
    if connection.last_channel != NULL and connection.last_channel.number == number:
        return connection.last_channel  # frames of one channel come in a row
    page = number // CHANNELS_PAGE
    if page >= connection.channel_pages or connection.channels[page] == NULL:
        return NULL
    connection.last_channel = connection.channels[page][number % CHANNELS_PAGE]
    return connection.last_channel
