# The last messages that one exchange passed on (x-recent-history), remembered without Python.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.routing.kept cimport kept_bounds_t, kept_user_t

cdef enum:
    RECENT_COPY_MAX = 65536   # bytes of a message that is copied: a larger one has its memory for itself, and a reference pins no others
    RECENT_BYTES = 320        # bytes of memory that a message takes beside its octets, rounded up

cdef struct recent_message_t:
    uint32_t refs             # atomic
    uint16_t route_len
    uint32_t header_len
    uint32_t body_len
    uint64_t size             # bytes that it counts for
    kept_user_t *user         # counted; NULL: nobody's
    recent_message_t *next    # the next newer one; of those that left: the next one to go
    content_t *content        # counted: where its bytes are; NULL: route, header and body stand behind it, or behind `source`
    recent_message_t *source  # counted: the same message of another exchange, which has the bytes; NULL: there is none

cdef struct recent_t:         # of an exchange
    uint32_t refs             # atomic
    uint32_t lock             # spin lock over what follows
    uint64_t count
    uint64_t count_max        # 0: nothing is remembered any more
    uint64_t bytes
    uint64_t bytes_max
    kept_bounds_t bounds
    recent_message_t *oldest
    recent_message_t *newest

cdef void recent_incref(recent_t *recent) noexcept nogil
cdef void recent_decref(recent_t *recent) noexcept nogil
# So many exchanges remember a message, unless its header x-recent-history-no-store is true. user: who published it, NULL: the broker.
# O(bytes of the message + exchanges), but for the messages that it pushes out.
cdef void recent_keep(recent_t **recents, uint32_t count, content_t *content, kept_user_t *user) noexcept nogil

cdef class Recent:
    cdef recent_t *recent
