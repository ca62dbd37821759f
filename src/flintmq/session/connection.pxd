# A connection's face towards the method handlers.
from libc.stdint cimport uint32_t
from flintmq.queue.types cimport delivery_t, queue_t, waiter_t
from flintmq.session.connection_base cimport ConnectionBase
from flintmq.session.types cimport channel_t, subscription_t

cdef class Connection(ConnectionBase):
    cdef waiter_t waiter                # on the queue whose head a basic.get waits for
    cdef queue_t *waited                # that queue (counted), or NULL
    cdef subscription_t *graves         # cancelled subscriptions, freed by reap()
    cdef void _stop_waiting(self)
    cdef bint _pull(self, queue_t *queue, uint32_t getter, delivery_t *delivery)
    cdef subscription_t *_find(self, channel_t *channel, bytes tag)
    cdef void _remove(self, channel_t *channel, subscription_t *subscription)
