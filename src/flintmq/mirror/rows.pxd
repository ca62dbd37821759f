# One segment of a shared queue as a row of the engine has it: messages of one level, at rising positions. Numbers are little-endian.
#
# A head, then for each message its fields, route, header payload and body (content.pxd). A place without a message had ended before the row
# was written.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t

cdef enum:
    ROW_FORMAT = 1
    ROW_PLACES = 512            # of one segment at most
    MESSAGE_REDELIVERED = 1     # row_fields_t.flags: it was delivered before

cdef packed struct row_head_t:  # 40 bytes
    uint8_t format
    uint8_t level
    uint16_t zero
    uint32_t count              # messages
    uint64_t epoch              # of the owner that wrote it, and the number of its batch
    uint64_t batch
    uint64_t first              # index of the first place
    uint32_t places
    uint32_t size               # bytes of the row

cdef packed struct row_fields_t:  # 28 bytes
    uint16_t place              # first + place is the index
    uint16_t route_len
    uint16_t deliveries         # earlier ones that came back
    uint8_t content_flags
    uint8_t priority
    uint32_t header_len
    uint32_t body_len
    int64_t expires_at_ms       # wall clock, 0: never
    uint32_t flags

cdef struct row_message_t:
    row_fields_t fields
    const uint8_t *data         # of a reader: route, header, body
    content_t *content          # of a writer: what it copies

cdef struct row_reader_t:
    row_head_t head
    const uint8_t *data
    uint64_t at                 # bytes that were read
    uint32_t read               # messages
    uint32_t place              # of the last one, plus 1

# Bytes that a message takes of a row.
cdef uint64_t row_cost(content_t *content) noexcept nogil
# Fills in the fields that come from the content.
cdef void row_describe(row_message_t *message) noexcept nogil
# Writes a row of head.size bytes: its head and head.count messages. O(bytes).
cdef void row_write(uint8_t *out, row_head_t *head, row_message_t *messages) noexcept nogil
# False: these bytes are no row of this format.
cdef bint row_open(row_reader_t *reader, const uint8_t *data, uint64_t size) noexcept nogil
# 1: the next message; 0: there are no more; -1: the row is damaged.
cdef int row_next(row_reader_t *reader, row_message_t *out) noexcept nogil
# The content of a message that was read: one reference, NULL when memory is exhausted.
cdef content_t *row_content(arena_t *arena, row_message_t *message) noexcept nogil
