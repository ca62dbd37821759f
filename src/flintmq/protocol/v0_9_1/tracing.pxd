# The content header of a copy for the firehose, made of the wire bytes of the message. Without Python objects.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.protocol.v0_9_1.death cimport text_t

cdef enum:
    TRACE_PUBLISHED = -1        # trace_head_t.redelivered of a copy of a publish

cdef struct trace_head_t:
    text_t exchange             # of the message, without their lengths
    text_t routing_key
    text_t keys                 # further routing keys, each after its length (4 bytes); data NULL: those in CC and BCC of its headers
    text_t header               # its content header payload
    text_t place                # the fields node, vhost and connection, as they stand in a table
    text_t user                 # the field user
    uint16_t channel
    int redelivered             # 0 or 1: of a delivery; TRACE_PUBLISHED
    uint32_t queues_size        # bytes of the names of its queues, as the values that stand in an array; of a publish
    uint32_t size               # bytes of the payload, with these names

cdef struct trace_out_t:        # bytes that are written
    uint8_t *place              # NULL: they are only counted
    uint32_t used

# Fills in head.size, for a publish without queues. O(bytes of the message's header).
cdef void trace_measure(trace_head_t *head) noexcept nogil
# Whether the name of one more queue has room; it is counted then.
cdef bint trace_add_queue(trace_head_t *head, const uint8_t *name) noexcept nogil
# Writes the payload, head.size bytes, but for the names of the queues: returns the place of the first one.
cdef uint8_t *trace_write(trace_head_t *head, uint64_t body_size, uint8_t *out) noexcept nogil
# Writes a name (a shortstr) that was counted; returns the place of the next one.
cdef uint8_t *trace_put_queue(const uint8_t *name, uint8_t *out) noexcept nogil
