# Headers of entries that are not in memory, read without a place in the hot window: what message groups and selectors have to know of
# entries that nobody takes yet. Re-exported by nothing: the cold reader's.
from libc.stdint cimport uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t

# Whether somebody waits for headers behind the window. O(1).
cdef bint queue_wants_headers(queue_t *queue) noexcept nogil
# The content of the available entry at `position` was read; `before`: the entry that was read before it in this run, 0: none. True: it
# was the next one that somebody had to look at, and now it is known what it is for. O(selectors that wait for it).
cdef bint queue_header_read(queue_t *queue, uint64_t before, uint64_t position, content_t *content) noexcept nogil
# After some of them: who may have something now is woken.
cdef void queue_headers_read(queue_t *queue) noexcept nogil
