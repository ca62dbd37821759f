# The x-stream-lost header: how many offsets retention (or damage) took before this message, told in the message behind the gap.
from libc.stdint cimport uint64_t
from flintmq.core.content cimport arena_t, content_t

# A copy of the content with the header x-stream-lost (signed 64-bit). NULL: no memory, or a header that can't be read.
cdef content_t *content_with_lost(arena_t *arena, content_t *content, uint64_t lost) noexcept nogil
