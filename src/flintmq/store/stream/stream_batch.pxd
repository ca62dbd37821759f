# What reads of a stream fill, and the filter that they keep to.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t

cdef struct stream_item_t:
    content_t *content          # one reference, the receiver's. message_id 0, never CONTENT_SHARED
    uint64_t offset

cdef struct stream_batch_t:     # what a read fills; zeroed before its first use
    stream_item_t *items
    uint32_t count
    uint32_t room
    int error
    uint64_t bytes              # of bodies and headers in it
    uint64_t next_offset        # where to go on: behind the last offset that was looked at
    uint64_t io_ns              # time this read waited for the disk

# Drops the references and empties it; its memory stays for the next read.
cdef void stream_batch_clear(stream_batch_t *batch) noexcept nogil
cdef void stream_batch_free(stream_batch_t *batch) noexcept nogil
cdef bint stream_batch_put(stream_batch_t *batch, content_t *content, uint64_t offset) noexcept nogil

# (offset, exchange, routing key, header payload, body) of each message; the batch is freed.
cdef list stream_batch_items(stream_batch_t *batch)

cdef struct stream_filter_t:    # a consumer's x-stream-filter: exact values; immutable
    uint32_t count
    bint unfiltered             # x-stream-match-unfiltered: messages without a filter value match, too
    uint32_t *sizes
    uint8_t **values

# values: bytes objects. Free it when no read uses it any more.
cdef stream_filter_t *stream_filter_new(object values, bint unfiltered) except NULL
cdef void stream_filter_free(stream_filter_t *filter) noexcept nogil
# `value` NULL: the message has no filter value. filter NULL: everything matches.
cdef bint stream_filter_matches(stream_filter_t *filter, const uint8_t *value, uint32_t size) noexcept nogil
