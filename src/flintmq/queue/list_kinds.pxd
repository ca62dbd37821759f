# The kinds of entry lists, and how a list begins.
from libc.stdint cimport uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport list_t, queue_t

cpdef enum:                     # entry-list kinds
    LIST_STANDARD = 0
    LIST_PRIORITY = 1

cpdef enum:                     # how a message priority becomes a level
    LEVEL_RABBITMQ = 0          # x-max-priority m: m+1 levels, min(p, m); absent = 0
    LEVEL_QPID = 1              # x-qpid-priorities n: clamp(p - max(0, 5 - ceil(n/2)), 0, n-1); absent = 4

# False when out of memory, or when `kind` is none of these.
cdef bint list_init(list_t *entries, int kind, int levels, int level_rule) noexcept nogil

# Tells the kind of an entry that is available for the first time; content: NULL when it is not at hand. No lock of the queue is held.
cdef inline void kind_arrived(queue_t *queue, uint64_t position, content_t *content) noexcept nogil:
    if not queue.entries.ops.in_order and queue.entries.ops.arrived != NULL:
        queue.entries.ops.arrived(queue, position, content)

# ... and of one that was given back.
cdef inline void kind_returned(queue_t *queue, uint64_t position) noexcept nogil:
    if not queue.entries.ops.in_order and queue.entries.ops.returned != NULL:
        queue.entries.ops.returned(queue, position)
