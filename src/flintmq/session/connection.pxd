# A connection's face towards the method handlers.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport delivery_t, queue_t, target_t, waiter_t
from flintmq.session.types cimport channel_t, connection_t, subscription_t

cdef class Connection:
    cdef connection_t connection
    cdef public object handler          # session.handlers.ConnectionHandler
    cdef public object peer             # what the listener knows of the peer
    cdef LogPort log                    # whose LSNs the confirms wait for, or None
    cdef dict committing                # channel number -> its Transactions that wait for the log, oldest first
    cdef waiter_t waiter                # on the queue whose head a basic.get waits for
    cdef queue_t *waited                # that queue (counted), or NULL
    cdef void _stop_waiting(self)
    cdef bint _pull(self, queue_t *queue, uint32_t getter, delivery_t *delivery)
    cdef subscription_t *graves         # cancelled subscriptions, freed by reap()
    cdef channel_t *channel(self, uint16_t number) except NULL
    cdef void _check_generation(self, channel_t *channel)
    cdef subscription_t *_find(self, channel_t *channel, bytes tag)
    cdef void _remove(self, channel_t *channel, subscription_t *subscription)
    # SLOW_RESOLVE: asks the routing table for the publish under way. False: the exchange is gone, go the long way.
    cdef bint resolve_route(self) except -1
