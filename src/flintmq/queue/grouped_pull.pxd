# What consumers and basic.get take from a queue with message groups, or a sorted one. Called by pull.py.
from libc.stdint cimport uint32_t
from flintmq.queue.types cimport consumer_t, delivery_t, queue_t

# queue_deliver_single of such a consumer. Called with, and gives up, its send_lock.
cdef bint deliver_grouped(queue_t *queue, consumer_t *consumer, delivery_t *out) noexcept nogil
# queue_pull: what is free. Its group is nobody's until the entry is settled. It looks at 512 places at most; False with out.rotate: ask again
# in another pass of the loop.
cdef bint pull_grouped(queue_t *queue, uint32_t owner, delivery_t *out) noexcept nogil
