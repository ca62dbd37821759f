# The content of a stream's message as consumers get it, and the types of records that hold it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t

# Types of records of a stream's log (docs/FORMAT.md, "Stream logs")
cdef enum:
    RECORD_STREAM_MESSAGE = 50
    RECORD_STREAM_CHUNK = 51
    RECORD_STREAM_MARK = 52
    STREAM_FIXED = 28           # bytes of a Stream-Message before filter value and content
    STREAM_NO_FILTER = 0xFFFF
    STREAM_RECORD_LEAST = 56    # no Stream-Message takes fewer bytes of the log

# The content as consumers get it, from the parts of the one that was published: with x-stream-offset in its headers. `*at`: where the 8
# bytes of the offset stand (big endian), NULL when the header can't be read and was copied as it is; filter_at, filter_size: its filter
# value, see hot_t. NULL: no memory.
cdef content_t *stream_content(arena_t *arena, const uint8_t *route, uint16_t route_len, const uint8_t *header, uint32_t header_len, const uint8_t *body, uint32_t body_len, uint8_t flags, uint8_t priority, uint64_t offset, uint8_t **at, uint32_t *filter_at, uint32_t *filter_size) noexcept nogil
cdef void stream_put_offset(uint8_t *at, uint64_t offset) noexcept nogil
