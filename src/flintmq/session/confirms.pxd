# Publisher confirms of a channel.
from libc.stdint cimport uint64_t
from flintmq.session.types cimport channel_t, connection_t

# The next tag's message is on its queues (or was refused): a confirm must wait for `lsn` of the log and `ticket` of the streams, 0 = nothing.
cdef void channel_note_confirm(connection_t *connection, channel_t *channel, uint64_t lsn, uint64_t ticket, bint refused) noexcept nogil
# Sends what may be confirmed on all channels of the connection that have something to confirm.
cdef void connection_flush_confirms(connection_t *connection) noexcept nogil
