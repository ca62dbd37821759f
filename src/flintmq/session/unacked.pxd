# Delivery tag -> unacked delivery. Tags count up from 1 per channel; memory follows what is unsettled, not the span of tags.
from libc.stdint cimport uint64_t
from flintmq.core.content cimport content_t
from flintmq.session.types cimport unacked_map_t, unacked_t

# Room for the next tag, which is `map.last_tag` afterwards; NULL when memory is exhausted. O(1).
cdef unacked_t *unacked_add(unacked_map_t *map) noexcept nogil
cdef unacked_t *unacked_find(unacked_map_t *map, uint64_t tag) noexcept nogil   # NULL: unknown or settled
cdef void unacked_remove(unacked_map_t *map, uint64_t tag) noexcept nogil       # must be live
# First live tag at or after `tag`; 0 when there is none.
cdef uint64_t unacked_next(unacked_map_t *map, uint64_t tag) noexcept nogil
# The message behind an unacked delivery: a counted reference. NULL when it is not in memory (`*message_id` says what to load), or when
# there is nothing to read behind the delivery at all (a stream's; `*message_id` is 0). The only way from a delivery to its content.
cdef content_t *unacked_content(unacked_t *item, uint64_t *message_id) noexcept nogil
cdef void unacked_free(unacked_map_t *map) noexcept nogil
