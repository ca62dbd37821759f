# Queues that keep each value of x-deduplication-header once (x-message-deduplication). See deduplication.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport once_t, queue_t

cdef struct arrival_t:          # between once_begin and once_end
    uint64_t first              # hashes of the value; 0: the message has none
    uint64_t second
    bint taken                  # another value has its place in the maps
    bint known                  # its place is there

# Takes the gate of a queue that has `once`. The position of the message that has the value of this one, with the gate free again, and *lsn
# raised to the LSN that makes that one durable; 0: there is none, and the caller puts the message on the queue and calls once_end.
cdef uint64_t once_begin(queue_t *queue, content_t *content, arrival_t *arrival, uint64_t *lsn) noexcept nogil
# position: 0: it did not come in. lsn: of its record, 0: none.
cdef void once_end(queue_t *queue, arrival_t *arrival, uint64_t position, uint64_t lsn) noexcept nogil
# list_ops_t.upkeep of what the queue remembers.
cdef bint once_upkeep(queue_t *queue, uint64_t entries, uint32_t most) noexcept nogil
# most: values that it remembers. NULL: no memory.
cdef once_t *once_new(uint64_t most) noexcept nogil
cdef void once_free(once_t *once) noexcept nogil
