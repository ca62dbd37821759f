# What consumers leave of a queue that waited for them above its length limit (queue/limits.pxd).
from flintmq.queue.types cimport queue_t
from flintmq.session.types cimport connection_t, subscription_t

# A consumer of the queue had its turn and takes no more for now: the queue goes back to its limit, unless others are still to have theirs.
cdef void limit_after_turn(connection_t *connection, subscription_t *subscription, queue_t *queue) noexcept nogil
