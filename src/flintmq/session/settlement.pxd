# Settling deliveries of a channel.
from libc.stdint cimport uint64_t
from flintmq.session.types cimport channel_t, connection_t, unacked_t

# Settles one tag (or all up to it; 0 = all). method: 80 ack, 90 reject, 120 nack. 0 = done, -1 = unknown delivery tag.
cdef int channel_settle(connection_t *connection, channel_t *channel, int method, uint64_t tag, bint multiple, bint requeue) noexcept nogil
cdef void channel_settle_item(connection_t *connection, channel_t *channel, uint64_t tag, int method, bint requeue) noexcept nogil
# The same for a delivery that is no longer in the channel's map (a transaction took it out). `logged_before`: its dequeue is in the
# log already. connection and channel may be NULL (the channel ended): then item.consumer is NULL and item.queue is counted.
cdef void settle_taken(connection_t *connection, channel_t *channel, unacked_t *item, int method, bint requeue, bint logged_before) noexcept nogil
# basic.recover: everything unacked goes back to its place.
cdef void channel_recover(connection_t *connection, channel_t *channel) noexcept nogil
# Makes the channel's consumers that wait for credit want work again (after a settlement of shared credit, flow, qos).
cdef void channel_resume(channel_t *channel) noexcept nogil
