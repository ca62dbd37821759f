# A connection's way out: the work it schedules for its consumers (seed 004, steps 4-12), and its face towards the handlers.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.queue.types cimport target_t
from flintmq.session.types cimport channel_t, connection_t, subscription_t

cdef enum:
    WORK_DONE = 0
    WORK_MORE = 1             # the turn is over, not the work: back of the run queue
    WORK_FULL = 2             # the output buffer is above its high mark: flush, then come back

# Gives every target that wants to work one turn. `budget` messages at most for the whole connection.
cdef int connection_work(connection_t *connection, uint32_t budget) noexcept nogil
# The transport takes no more: consumers become not interested, so that queues look for others. And back.
cdef void connection_block_output(connection_t *connection) noexcept nogil
cdef void connection_unblock_output(connection_t *connection) noexcept nogil

cdef class Connection:
    cdef connection_t connection
    cdef public object handler          # session.handlers.ConnectionHandler
    cdef public object peer             # what the listener knows of the peer
    cdef subscription_t *graves         # cancelled subscriptions, freed by reap()
    cdef channel_t *channel(self, uint16_t number) except NULL
    cdef void _check_generation(self, channel_t *channel)
    cdef subscription_t *_find(self, channel_t *channel, bytes tag)
    cdef void _remove(self, channel_t *channel, subscription_t *subscription)
