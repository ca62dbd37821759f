# The content of a stream's message as consumers get it, and the types of records that hold it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.core.header_field cimport parts_t
from flintmq.store.log.record cimport CONTENT_MAX, le16, le32, le64, record_t

# Types of records of a stream's log (docs/FORMAT.md, "Logs of streams")
cdef enum:
    RECORD_STREAM_MESSAGE = 50
    RECORD_STREAM_CHUNK = 51
    RECORD_STREAM_MARK = 52
    STREAM_FIXED = 28           # bytes of a Stream-Message before filter value and content
    STREAM_NO_FILTER = 0xFFFF
    STREAM_RECORD_LEAST = 56    # no Stream-Message takes fewer bytes of the log

cdef struct stream_head_t:      # what a Stream-Message says of itself
    const uint8_t *value        # its filter value; NULL: it has none
    const uint8_t *run          # the content's bytes in this record: route, header, body; borrowed
    uint64_t offset
    uint64_t total              # bytes of the whole content
    uint32_t value_size
    uint32_t body_len
    uint32_t header_len
    uint32_t here               # bytes at `run`
    uint16_t route_len
    uint8_t flags
    uint8_t priority

# Decodes the fields of a Stream-Message that was checked. False: it is none, or its lengths contradict each other.
cdef inline bint stream_head(const record_t *record, stream_head_t *out) noexcept nogil:
    cdef const uint8_t *p = record.data
    if record.type != RECORD_STREAM_MESSAGE or record.size < STREAM_FIXED:
        return False
    out.offset = le64(p)
    out.body_len = le32(p + 8)
    out.header_len = le32(p + 12)
    out.route_len = le16(p + 16)
    out.flags = p[18]
    out.priority = p[19]
    out.here = le32(p + 20)
    out.value = NULL
    out.value_size = 0
    if le16(p + 24) != STREAM_NO_FILTER:
        out.value = p + STREAM_FIXED
        out.value_size = le16(p + 24)
    out.run = p + STREAM_FIXED + out.value_size
    out.total = <uint64_t>out.body_len + out.header_len + out.route_len
    return record.size == <uint64_t>STREAM_FIXED + out.value_size + out.here and out.here <= out.total and out.total <= CONTENT_MAX

# The content as consumers get it, from the parts of the one that was published: with x-stream-offset in its headers. `*at`: where the 8
# bytes of the offset stand (big endian), NULL when the header can't be read and was copied as it is; filter_at, filter_size: its filter
# value, see hot_t. parts.flags loses CONTENT_SHARED. NULL: no memory.
cdef content_t *stream_content(arena_t *arena, parts_t *parts, uint64_t offset, uint8_t **byte, uint32_t *filter_at, uint32_t *filter_size) noexcept nogil
