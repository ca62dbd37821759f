# The offsets of a group that were delivered and are not done. All under the group's lock. Progress as ranges: whatever is below the
# group's `next` and not in this list is done, so the gaps between its entries are the acked ranges and cost nothing.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.streams.types cimport open_list_t, open_t

# Appends; `offset` is above all that are there. NULL: no memory. Good until the next push.
cdef open_t *open_push(open_list_t *opens, uint64_t offset) noexcept nogil
cdef open_t *open_find(open_list_t *opens, uint64_t offset) noexcept nogil        # NULL: done. O(log n)
# Changes the state; counts and hints follow. OPEN_DONE takes it off.
cdef void open_become(open_list_t *opens, open_t *item, uint8_t state, int64_t due_ms) noexcept nogil
cdef open_t *open_first_ready(open_list_t *opens) noexcept nogil                  # NULL: none. Amortised O(1)
# Takes off what is at or above `offset`: the stream lost its end. O(what goes).
cdef void open_cut(open_list_t *opens, uint64_t offset) noexcept nogil
# The lowest open offset, or `next`: everything below is done.
cdef uint64_t open_base(open_list_t *opens, uint64_t next) noexcept nogil
cdef void open_free(open_list_t *opens) noexcept nogil
