# AMQP 0-9-1 receiving side, sans I/O: bytes in, calls on a sink out (specification 2.3, 4.2).
#
# The engine knows frames, their order and their limits; it does not know queues, sockets or time. It is fed whole buffers and
# consumes whole frames only, so that the way bytes were cut up on their journey can't change what it reports (I1).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:                    # phase of the connection as far as frames are concerned
    PHASE_PROTOCOL_HEADER = 0 # the 8 bytes "AMQP" 0 0 9 1 are due
    PHASE_HANDSHAKE = 1       # frames of channel 0, connection class, at most frame_size_before_open
    PHASE_OPEN = 2
    PHASE_CLOSING = 3         # connection.close was sent: everything but close and close-ok is ignored
    PHASE_CLOSED = 4          # nothing is read any more

cdef enum:                    # receiving state of a channel
    RX_CLOSED = 0
    RX_OPEN = 1
    RX_HEADER = 2             # a content header frame is due
    RX_BODY = 3               # body frames are due
    RX_CLOSING = 4            # channel.close was sent: everything but close and close-ok is ignored

cdef enum:                    # result of engine_feed and of sink functions
    FEED_MORE = 0             # every complete frame was consumed
    FEED_PAUSE = 1            # the sink wants control before the next frame
    FEED_ERROR = 2            # the peer broke the protocol: error_* say how; feed no more
    FEED_VERSION = 3          # wrong protocol header: answer with ours and hang up

cdef enum:
    RX_PAGE = 64              # a client chooses its numbers: one high number must not cost a table of all below it

cdef struct channel_rx_t:
    uint8_t state
    uint64_t body_left

cdef struct sink_t:           # what the engine reports; all pointers are valid during the call only
    # the protocol header was right: connection.start is due
    int (*protocol_header)(void *context) noexcept nogil
    # basic.publish: `route` are the exchange and routing key shortstrs as they stand on the wire; bit 0 mandatory, bit 1 immediate
    int (*publish)(void *context, uint16_t channel, const uint8_t *route, uint32_t route_len, uint8_t bits) noexcept nogil
    # content header payload (class, weight, body size, flags, properties)
    int (*header)(void *context, uint16_t channel, uint64_t body_size, const uint8_t *payload, uint32_t size) noexcept nogil
    # one body frame; `left` bytes are still to come, 0 = the message is complete
    int (*body)(void *context, uint16_t channel, const uint8_t *payload, uint32_t size, uint64_t left) noexcept nogil
    # BASIC_ACK, BASIC_NACK or BASIC_REJECT of ids.pxd
    int (*settle)(void *context, uint16_t channel, uint32_t method, uint64_t tag, bint multiple, bint requeue) noexcept nogil
    # every other method: the method frame's payload
    int (*method)(void *context, uint16_t channel, uint32_t method_id, const uint8_t *payload, uint32_t size) noexcept nogil
    int (*heartbeat)(void *context) noexcept nogil

cdef struct engine_t:
    uint8_t phase
    uint32_t frame_size_max           # negotiated; before open the smaller limit
    uint64_t message_size_max         # bytes of one body
    uint64_t handshake_bytes_left     # budget before connection.open
    channel_rx_t **rx                 # pages of RX_PAGE channels by number, NULL = none of them was opened yet
    uint32_t rx_pages
    channel_rx_t *last_rx             # of the channel that the last frame was of (pages stay where they are); NULL: none yet
    uint16_t last_channel
    const sink_t *sink
    void *context
    int error_code                    # AMQP reply code of FEED_ERROR
    const char *error_text            # static text
    uint16_t error_channel            # for a soft error (406): the channel to close; 0 = the connection
    uint32_t error_method             # class << 16 | method it is about, 0 if none
    uint64_t error_value              # what the text is about (a size, a delivery tag), 0 if nothing

cdef int engine_init(engine_t *engine, const sink_t *sink, void *context, uint32_t frame_size_before_open, uint64_t handshake_bytes, uint64_t message_size_max) noexcept nogil
cdef void engine_free(engine_t *engine) noexcept nogil
# Consumes complete frames of buffer[0:size]; `*consumed` says how many bytes. Returns FEED_*.
cdef int engine_feed(engine_t *engine, const uint8_t *buffer, size_t size, size_t *consumed) noexcept nogil
# The method of the frame that comes next, when the whole of it is there and its channel is open, else 0. *frame_size: its bytes.
cdef uint32_t engine_next_method(engine_t *engine, const uint8_t *buffer, size_t size, size_t *frame_size) noexcept nogil
# Returns -1 when memory is exhausted.
cdef int engine_set_channel_state(engine_t *engine, uint16_t channel, int state) noexcept nogil
