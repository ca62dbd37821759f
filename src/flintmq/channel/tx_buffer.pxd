# The open transaction of a channel (tx class): publishes and settlements that wait for the client's commit.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.routing.route_cache cimport route_t
from flintmq.channel.types cimport channel_t, connection_t

cdef enum:                    # what tx_add_publish and tx_add_settle answer
    TX_TAKEN = 0
    TX_UNKNOWN_TAG = 1        # unknown, or settled in this transaction already
    TX_TOO_LARGE = 2          # above Limits.tx_bytes_max; it was taken all the same
    TX_NO_MEMORY = 3

# Takes both references, also when it fails.
cdef int tx_add_publish(connection_t *connection, channel_t *channel, route_t *route, content_t *content) noexcept nogil
# One record for each delivery that the settlement names now; those that come later are not meant.
cdef int tx_add_settle(connection_t *connection, channel_t *channel, uint32_t method, uint64_t tag, bint multiple, bint requeue) noexcept nogil
# Before a commit: a message whose route names a queue that is deleted by now gets a route of now.
cdef void tx_route_anew(connection_t *connection, channel_t *channel) noexcept nogil
# Publishes and settles everything now; nothing of it is logged as a transaction. Connection.take_refused and the policies are due.
cdef void tx_apply(connection_t *connection, channel_t *channel) noexcept nogil
# Forgets everything; deliveries are unsettled again.
cdef void tx_rollback(channel_t *channel) noexcept nogil
# Drops the records after somebody else has taken over what they name; marks of deliveries stay.
cdef void tx_clear(channel_t *channel) noexcept nogil
# Drops the latest messages of the transaction, `most` at most, for a channel that ends. Returns what is left of `most`.
cdef uint32_t tx_drop_some(channel_t *channel, uint32_t most) noexcept nogil
cdef int64_t expiration_of(content_t *content) noexcept nogil   # the expiration property, milliseconds; -1 = none
