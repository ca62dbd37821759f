# A connection's way out: the work it schedules for its consumers, and their turns.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t, target_t
from flintmq.channel.types cimport channel_t, connection_t, subscription_t

cdef enum:
    WORK_DONE = 0
    WORK_MORE = 1             # the turn is over, not the work: back of the run queue
    LAG_QUEUES = 16           # queues of a route that connection_outruns looks at
    WORK_FULL = 2             # the output buffer is above its high mark: flush, then come back

# Step 3: what queues call (target_t.notify_work). Any thread.
cdef void target_notify(target_t *target) noexcept nogil
# Gives every target that wants to work one turn. `budget` messages at most for the whole connection.
cdef int connection_work(connection_t *connection, uint32_t budget) noexcept nogil
# Takes a target whose consumer is detached off its channel's list. O(1) when it is not there, else O(targets that want to work).
cdef void forget_target(connection_t *connection, channel_t *channel, target_t *target) noexcept nogil
# A channel ends: nothing of it is delivered any more, whatever its consumers are told. O(channels that want to work).
cdef void forget_channel(connection_t *connection, channel_t *channel) noexcept nogil
# The same for the whole connection. O(1).
cdef void connection_leave(connection_t *connection) noexcept nogil
# The transport takes no more: consumers become not interested, so that queues look for others. And back.
cdef void connection_block_output(connection_t *connection) noexcept nogil
cdef void connection_unblock_output(connection_t *connection) noexcept nogil
# The handler is asked to make the request that waits (handler.head_came) again in the next pass of the loop. Any thread.
cdef void ask_again(connection_t *connection) noexcept nogil
# Takes expired messages out of a queue before it is read from, for a slice at most; false: there are more, so nothing is to be read yet.
# Takes the GIL: only when queue_next_expiry says that it is due.
cdef bint expire_now(connection_t *connection, queue_t *queue) noexcept nogil
# `suspended` False has no effect on a subscription that waits to become the active one (x-single-active-consumer).
cdef void suspend_subscription(subscription_t *subscription, bint suspended) noexcept nogil
# A queue that its last publish went to and of which much waits (queue_lags), when it consumes nothing itself; else NULL. The queue is good
# as long as nothing of the connection is fed. O(LAG_QUEUES), and O(channels) when there is one.
cdef queue_t *connection_lagging(connection_t *connection, uint64_t most_bytes, uint64_t most) noexcept nogil
# True when some channel has consumers or unacked deliveries.
cdef bint connection_consumes(connection_t *connection) noexcept nogil


# What consumers leave of a queue that waited for them above its length limit (queue/limits.pxd).
# A consumer of the queue had its turn and takes no more for now: the queue goes back to its limit, unless others are still to have theirs.
cdef void limit_after_turn(connection_t *connection, subscription_t *subscription, queue_t *queue) noexcept nogil
