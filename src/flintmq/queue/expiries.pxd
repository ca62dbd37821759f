# When the entries of a list expire, the earliest first: the segment's slots in each segment, and a heap of segments in the list.
#
# The slots of a segment stand in a line while each one that comes expires after the others (one time to live for all): the first one
# leaves at the front, whatever their number. The first one that comes out of order makes a heap of them, until the segment has none.
#
# It costs 10 bytes for each slot of a segment in which something expires, and goes with the segment. Every function with the list locked,
# but list_take_expired, which takes the lock itself.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport list_t, segment_t, slot_t

cdef enum:
    DUE_HEAP = 0xFFFF           # segment_t.due_first

# The entry at `index` of this segment expires at that time (wall clock, milliseconds, not 0). False: no memory. O(log entries) at most,
# O(1) for one that expires after the others.
cdef bint expiry_set(list_t *entries, segment_t *segment, uint64_t index, int64_t expires_at_ms) noexcept nogil
# An entry came back to its place: it is looked at again if a take met it meanwhile.
cdef void expiry_came_back(list_t *entries, segment_t *segment, uint64_t index) noexcept nogil
# The segment is empty and leaves the list.
cdef void expiry_unlinked(list_t *entries, segment_t *segment) noexcept nogil
# The segment has no times any more.
cdef void expiry_free(segment_t *segment) noexcept nogil
# The segment becomes a shell: its column, which the caller keeps or frees; its place in the list's heap stays. NULL: nothing expires.
cdef int64_t *expiry_detach(segment_t *segment) noexcept nogil
# It became none, or is one no more: its column (of its `count` slots, from expiry_column) is back. O(slots).
cdef void expiry_attach(list_t *entries, segment_t *segment, int64_t *column) noexcept nogil
# A zeroed column of `count` slots; NULL: no memory.
cdef int64_t *expiry_column(uint32_t count) noexcept nogil
cdef void expiry_column_free(int64_t *column, uint32_t count) noexcept nogil
# A shell whose first entry expires at that time comes into the list's heap (again). False: no memory.
cdef bint expiry_shell(list_t *entries, segment_t *segment, int64_t expiry_min) noexcept nogil
# The list has no entries (any more): its heap is given back.
cdef void expiry_list_free(list_t *entries) noexcept nogil

# Acquires (owner 0) the available entry that expired first (expires_at <= now_ms); of those of one millisecond the lowest position. False
# with `*position` not 0: the entries of the shell there have expired; the caller asks for them (log_port_t.load), and nothing behind it is
# taken until they are back, or expiry_shell put it back.
cdef bint list_take_expired(list_t *entries, int64_t now_ms, uint64_t *position, slot_t **slot) noexcept nogil
