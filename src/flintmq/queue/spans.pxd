# Where entries of a level came back below its floor: disjoint runs of indices, in order. With the list locked.
#
# Every available entry below the floor is in a span; a span may also hold entries that are not available (any more): who meets those
# takes them out of it. So a scan jumps over what consumers hold, however much that is: it costs O(log spans) a jump.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport level_t

# An entry at `index`, below the floor, became available. O(log spans), and moving up to SPANS_MAX of them.
cdef void span_add(level_t *level, uint64_t index) noexcept nogil
# The level has no spans any more.
cdef void spans_free(level_t *level) noexcept nogil
# Number of the first span that ends at or after `index`; level.span_count when there is none.
cdef uint32_t span_find(level_t *level, uint64_t index) noexcept nogil
# Indices from..upto (both included) of span `at` are not available: they leave it, which may end or divide it.
cdef void span_cut(level_t *level, uint32_t span_index, uint64_t first, uint64_t last) noexcept nogil
