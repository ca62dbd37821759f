# Unacked deliveries of a channel, and how they are settled.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.channel.types cimport channel_t, connection_t, unacked_map_t, unacked_t

# Delivery tag -> unacked delivery. Tags count up from 1 per channel; memory follows what is unsettled, not the span of tags.
# Room for the next tag, which is `map.last_tag` afterwards; NULL when memory is exhausted. O(1).
cdef unacked_t *unacked_add(unacked_map_t *map) noexcept nogil
cdef unacked_t *unacked_find(unacked_map_t *map, uint64_t tag) noexcept nogil   # NULL: unknown or settled
cdef void unacked_remove(unacked_map_t *map, uint64_t tag) noexcept nogil       # must be live
# First live tag at or after `tag`; 0 when there is none.
cdef uint64_t unacked_next(unacked_map_t *map, uint64_t tag) noexcept nogil
# The message behind an unacked delivery: a counted reference. NULL when it is not in memory (`*message_id` says what to load), or when
# there is nothing to read behind the delivery at all (a stream's; `*message_id` is 0). The only way from a delivery to its content.
cdef content_t *unacked_content(unacked_t *item, uint64_t *message_id) noexcept nogil
cdef void unacked_free(unacked_map_t *map) noexcept nogil


cdef enum:
    SETTLE_AT_ONCE = 256      # deliveries of one `multiple` that are looked at in one piece, some 50 us; what is left goes on in slices
    SETTLE_DONE = 0
    SETTLE_UNKNOWN = -1       # no such delivery tag
    SETTLE_MORE = 1           # the first SETTLE_AT_ONCE are settled: session.settling does the rest
    SETTLE_SLOWLY = 2         # one delivery, whose dead letter is left to Python: nothing was done

cdef struct part_t:           # a part of a settlement of many
    uint64_t at               # first tag to look at; afterwards the first one that is left, 0 = none is
    uint64_t upto             # last tag
    uint32_t most             # deliveries to look at; afterwards what is left of that
    bint in_tx                # those that an open transaction has settled, too: the channel ends
    bint dead                 # afterwards: it stopped at `at`, whose dead letter is left to Python

# Settles one tag, or the first SETTLE_AT_ONCE of all up to it (0 = all). method: BASIC_ACK, BASIC_NACK or
# BASIC_REJECT of ids.pxd. SETTLE_*.
cdef int channel_settle(connection_t *connection, channel_t *channel, uint32_t method, uint64_t tag, bint multiple, bint requeue) noexcept nogil
cdef void channel_settle_item(connection_t *connection, channel_t *channel, uint64_t tag, uint32_t method, bint requeue) noexcept nogil
# The same for a delivery that is no longer in the channel's map (a transaction took it out). `logged_before`: its dequeue is in the
# log already. connection and channel may be NULL (the channel ended): then item.consumer is NULL and item.queue is counted.
cdef void settle_taken(connection_t *connection, channel_t *channel, unacked_t *item, uint32_t method, bint requeue, bint logged_before) noexcept nogil
# The next part of a settlement of many. O(part.most).
cdef void channel_settle_some(connection_t *connection, channel_t *channel, uint32_t method, bint requeue, part_t *part) noexcept nogil
# Deliveries from tag `at` on whose consumer timeout is over at `now_us` go back to their queues, flagged and counted; the channel stays open.
# Looks at `*most` of them at most, and at none that was delivered in the last `least_us`. Returns the first tag that is left, 0 when none is.
cdef uint64_t channel_time_out(connection_t *connection, channel_t *channel, uint64_t first_tag, uint64_t now_us, uint64_t least_us, uint32_t *most, uint32_t *ended) noexcept nogil
# A delivery that is known is settled as far as its consumer goes, and the broker holds its entry. Its position; 0: its time was over.
cdef uint64_t channel_pass_on(connection_t *connection, channel_t *channel, uint64_t tag) noexcept nogil
# Makes the channel's consumers that wait for credit want work again (after a settlement of shared credit, flow, qos).
cdef void channel_resume(channel_t *channel) noexcept nogil
