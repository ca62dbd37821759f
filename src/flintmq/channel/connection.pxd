# A connection's face towards the method handlers.
cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from flintmq.queue.types cimport delivery_t, queue_t, waiter_t
from flintmq.queue.log_port cimport LogPort
from flintmq.channel.types cimport channel_t, connection_t, subscription_t, unacked_t

# (exchange, routing key, content header payload, body) of an unacked delivery, read from `log` when it is not in memory (which may
# block); None when there is none behind it (a stream's). Raises StoreError, KeyError when it can't be read.
cdef tuple unacked_tuple(unacked_t *item, LogPort log)

@cython.final
cdef class Connection:
    cdef connection_t connection
    cdef public object handler          # session.handlers.ConnectionHandler
    cdef public object peer             # what the listener knows of the peer
    cdef uint32_t table_depth_max
    cdef uint32_t table_fields_max
    cdef bytes user                     # whose memory connection.user is
    cdef LogPort log                    # whose LSNs the confirms wait for, or None
    cdef readonly dict committing       # channel number -> its Transactions that wait for the log, oldest first
    cdef waiter_t waiter                # on the queue whose head a basic.get waits for
    cdef queue_t *waited                # that queue (counted), or NULL
    cdef subscription_t *graves         # cancelled subscriptions, freed by reap()
    cdef channel_t *leaving             # channels that end (by next_open), and have consumers perhaps
    cdef channel_t *ending              # those that have none any more, and have unacked deliveries perhaps
    cdef uint64_t ending_at             # first tag of the first of `ending` that may be unacked
    cdef void _leave(self, channel_t *channel)
    cdef void _stop_waiting(self)
    cdef bint _pull(self, queue_t *queue, uint32_t getter, delivery_t *delivery)
    cdef subscription_t *_find(self, channel_t *channel, bytes tag)
    cdef void _remove(self, channel_t *channel, subscription_t *subscription)
    cpdef object write_method(self, uint16_t number, bytes payload)
    cdef channel_t *channel(self, uint16_t number) except NULL
    cdef void _check_generation(self, channel_t *channel)
    # SLOW_RESOLVE: asks the routing table for the publish under way. False: the exchange is gone, go the long way.
    cdef bint resolve_route(self) except -1
