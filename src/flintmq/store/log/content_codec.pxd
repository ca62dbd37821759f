# Message content as records of the log: written whole or in chunks, read back from records.
#
# In the log a content is one run of bytes: route, content header payload, body (docs/FORMAT.md, Message-Start).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.record cimport record_t

cdef enum:
    PIECE_MAX = 65536           # bytes of content in one record of a long message: the lock is held for about 20 us each

cdef uint32_t content_total(content_t *content) noexcept nogil
# Bytes [offset, offset + size) of the run.
cdef void content_copy_out(content_t *content, uint32_t offset, uint32_t size, uint8_t *out) noexcept nogil
# Writes Message-Start (or Page-Content) and its chunks, and marks it live. Log lock held; let go between chunks. follows: bytes of records
# that must fit behind an undivided one in the same window. Returns its LSN, or LSN_NEVER.
cdef uint64_t content_write(log_t *log, uint8_t kind, uint32_t split_above, uint32_t follows, content_t *content) noexcept nogil
# A content from the record of a Message-Start, Message-Copy or Page-Content, as far as its own bytes go. `*filled`: how many bytes of the
# run it had. NULL: malformed, or no memory.
cdef content_t *content_from_record(arena_t *arena, record_t *record, uint32_t *filled) noexcept nogil
# Puts a chunk into it; false when it does not fit.
cdef bint content_add_chunk(content_t *content, record_t *record) noexcept nogil
# The same for a content that is not longer than split_above, from its bytes: `route` as in the run, `data` its header and body (`length` bytes in all).
cdef uint64_t content_write_small(log_t *log, uint32_t follows, const uint8_t *route, uint16_t route_len, const uint8_t *data, uint32_t header_len, uint32_t length, uint8_t flags, uint8_t priority) noexcept nogil
