# The values of x-deduplication-header that one exchange passed on (x-message-deduplication), remembered without Python.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.routing.kept cimport kept_bounds_t, kept_user_t

cpdef enum:
    SEEN_VALUE_BYTES = 96     # bytes of memory that a value takes, with its share of the table

cdef struct seen_value_t:
    seen_value_t *next        # of its bucket
    seen_value_t *older       # of all: in the order in which they came
    seen_value_t *newer
    uint64_t first            # keyed hashes of the value
    uint64_t second
    int64_t until_ns          # monotonic; 0: it has no time
    kept_user_t *user         # counted; NULL: nobody's

cdef struct seen_t:           # of an exchange
    uint32_t refs             # atomic
    uint32_t lock             # spin lock over what follows
    uint64_t count
    uint64_t count_max        # 0: nothing is remembered any more
    uint64_t ttl_ms           # 0: none
    uint64_t dropped          # messages
    kept_bounds_t bounds
    seen_value_t *oldest
    seen_value_t *newest
    uint64_t mask             # buckets less one
    uint64_t old_mask         # of the smaller table that is emptied into the present one
    uint64_t moved            # its buckets that are empty already
    seen_value_t **buckets    # NULL: there are none yet
    seen_value_t **old_buckets

cdef struct seen_mark_t:      # of a message whose value came first
    uint64_t first
    uint64_t second
    bint noted                # its value is remembered from now on, for seen_forget

cdef void seen_incref(seen_t *seen) noexcept nogil
cdef void seen_decref(seen_t *seen) noexcept nogil
# Whether a message (its content header payload) is the first one with its value; it is remembered then, if there is room. True as well for one
# without a value. now_ns: monotonic. O(bytes of the headers).
cdef bint seen_is_new(seen_t *seen, const uint8_t *header, uint32_t size, kept_user_t *user, int64_t now_ns, seen_mark_t *mark) noexcept nogil
# No queue took the message of the mark: its publisher may send it again.
cdef void seen_forget(seen_t *seen, const seen_mark_t *mark) noexcept nogil

cdef class Seen:
    cdef seen_t *seen
