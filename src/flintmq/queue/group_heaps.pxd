# Heaps of message groups: positions in a group, groups in the order in which they are served. All under message_groups_t.lock.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport group_heap_t, message_group_t, message_groups_t

cdef enum:
    FEW = 2                     # positions that a group has without memory of their own

# --- positions
cdef void places_rise(uint64_t *heap, uint32_t place) noexcept nogil
cdef void places_sink(uint64_t *heap, uint32_t count, uint32_t place) noexcept nogil
# False: no memory.
cdef bint group_push(message_groups_t *groups, message_group_t *group, uint64_t position) noexcept nogil
# Takes a position out; memory of an empty heap is given back.
cdef void group_drop(message_groups_t *groups, message_group_t *group, uint32_t place) noexcept nogil

# --- groups
cdef bint group_before(message_group_t *left, message_group_t *right) noexcept nogil
# The group that is served next; NULL: none.
cdef message_group_t *heap_top(group_heap_t *heap) noexcept nogil
# Brings a group that has positions to its place in the heap; it comes from any other one. heap NULL: it is in none then.
cdef void group_list(group_heap_t *heap, message_group_t *group) noexcept nogil
# Takes it out of the heap in which it is, if any.
cdef void group_delist(message_group_t *group) noexcept nogil
# Room for `most` groups. False: no memory.
cdef bint heap_room(group_heap_t *heap, uint32_t most) noexcept nogil
cdef void heap_empty(group_heap_t *heap) noexcept nogil
