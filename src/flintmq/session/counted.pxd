# The x-delivery-count header of a message that came back to its queue.
from libc.stdint cimport uint32_t
from flintmq.core.content cimport arena_t, content_t

# A copy of the content whose headers say x-delivery-count = `count` (int64), instead of any such field that it had. NULL: no memory, or a
# header that can't be read. O(bytes of the message).
cdef content_t *content_with_count(arena_t *arena, content_t *content, uint32_t count) noexcept nogil
