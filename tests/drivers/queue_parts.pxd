# What tests do to the inside of a queue: see queue_parts.py.
from libc.stdint cimport uint64_t
from flintmq.queue.types cimport queue_t

# An available entry that the store knows gives up its content. False when it is not available, not known, or cold already.
cdef bint evict_content(queue_t *queue, uint64_t position) noexcept nogil
# Bytes of C memory of the queue: its record, slots, columns, directories (not contents, not consumers). O(segments).
cdef uint64_t queue_memory(queue_t *queue) noexcept nogil
