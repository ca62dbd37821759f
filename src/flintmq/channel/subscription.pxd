# One basic.consume: target, consumer and frame prefix, from the first to the last call on its queue.
from libc.stdint cimport int32_t, uint8_t, uint32_t
from flintmq.core.jobs cimport job_t
from flintmq.queue.types cimport consumer_t, queue_t
from flintmq.channel.types cimport channel_t, subscription_t

cdef struct leaving_t:        # a consumer that was removed and gives its message groups back; a job of its loop
    job_t job
    queue_t *queue
    consumer_t *consumer

# flags: CONSUMER_* of queue/types.pxd; a `waiting` one takes nothing until it is activated. NULL when memory is exhausted.
cdef subscription_t *subscription_new(channel_t *channel, queue_t *queue, const uint8_t *tag, uint8_t tag_len, uint32_t flags, int32_t priority, bint waiting) noexcept nogil
# Joins channel and queue. False when exclusivity or the queue's deletion forbids it: then the caller frees it.
cdef bint subscription_attach(subscription_t *subscription) noexcept nogil
# Leaves both; deliveries under way stay unacked. The memory must outlive calls of notify_work that are under way.
cdef void subscription_detach(subscription_t *subscription) noexcept nogil
# NULL when the channel has no such consumer. O(consumers of the channel).
cdef subscription_t *subscription_find(channel_t *channel, const uint8_t *tag, uint8_t tag_len) noexcept nogil
