# Arrivals in lists that are not in order: priorities, kinds from outside.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t

# An entry is available, perhaps before what readers have seen (the list has counted that for them): its kind and consumers are told.
# `wanted`: consumers that the list knew of when it came.
cdef void arrived_between(queue_t *queue, uint64_t position, content_t *content, uint32_t wanted) noexcept nogil
