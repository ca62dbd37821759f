# The route of a complete message that its key alone does not decide: headers exchanges, CC and BCC, x-random.
from libc.stdint cimport uint32_t, uint8_t
from flintmq.channel.types cimport channel_t, connection_t
from flintmq.routing.route_cache cimport exchange_t, route_t

cdef enum:
    DECIDING_ROOM = 2560      # bytes: a route's key, and Limits.content_key_bytes_max

# The route of the message in channel.content (SLOWLY_BY_CONTENT, SLOWLY_BY_CHANCE), with a reference for the caller; BCC is cut out of the
# message. NULL: Python finds it (session/publishing.py). O(bytes of the headers); with BCC O(bytes of the message).
cdef route_t *channel_decide(connection_t *connection, channel_t *channel) noexcept nogil
# What the route of that message is found by in the contents of its exchange; `out`: DECIDING_ROOM bytes. Returns the size; 0: it is not kept.
cdef uint32_t channel_found_by(channel_t *channel, uint8_t *out) noexcept nogil
# The route that all messages with a key (exchange and routing key shortstrs) have, a choice by chance made, with a reference for the caller.
# NULL: it is not cached (*how 0), or more than the key decides it (*how: route_t.how). O(1).
cdef route_t *route_by_key(exchange_t *exchange, const uint8_t *key, uint32_t key_len, uint8_t *how) noexcept nogil
# The exchange of the channel's route, which its user is authorized for; NULL: not any more.
cdef exchange_t *channel_exchange(channel_t *channel) noexcept nogil
