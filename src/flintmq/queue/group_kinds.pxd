# Queues with message groups, and sorted queues: how one is made. (Python face: group_kinds.pyi.)
from libc.stdint cimport uint32_t
from flintmq.queue.types cimport queue_t
from flintmq.selectors.program cimport program_t

# Gives a new queue groups, before anyone uses it; takes the reference on `name`, the program of the header. False: no memory.
cdef bint queue_set_groups(queue_t *queue, int mode, program_t *name, uint32_t groups_max, uint32_t idle_max) noexcept nogil
