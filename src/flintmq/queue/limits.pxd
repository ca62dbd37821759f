# Length limits and ready consumers: what a consumer can be given now does not count against x-max-length. Asked only when a queue is at its
# limit, or above it: nothing here is on the path of a message otherwise.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport delivery_t, queue_t

cdef enum:
    WANTED_VISITS = 64          # consumers that a count for a limit visits: a full queue costs the same beside 10,000 of them
    SHARED_MAX = 16             # channel-wide credits that one count tells apart; a consumer with one more is not counted

# How many ready entries consumers can take now: attached, not suspended, with credit, neither browsers nor choosy (an interest predicate).
# At most `most`. One call visits `visits` consumers at most; when that is not enough, consumers in front of a list that can take nothing
# go to its back, so that the next call visits others.
cdef uint64_t queue_wanted(queue_t *queue, uint64_t most, uint32_t visits) noexcept nogil
# More waits than so many bytes of bodies, or messages, and all of it is in memory.
cdef bint queue_lags(queue_t *queue, uint64_t most_bytes, uint64_t most) noexcept nogil
# Entries that consumers and the broker have acquired so far. O(consumers on NOTIFIED).
cdef uint64_t queue_taken(queue_t *queue) noexcept nogil
# The entry over the limit: the head, or, with drops_lowest, the oldest entry of the last level that has one. As queue_take_head.
cdef bint queue_take_over(queue_t *queue, delivery_t *out) noexcept nogil
# The same for a queue that is over its limit, which no other thread does meanwhile, or two would each take an entry for the same excess.
cdef bint queue_take_excess(queue_t *queue, delivery_t *out) noexcept nogil
# Above its limits.
cdef bint queue_over_limit(queue_t *queue) noexcept nogil
# Above its limits, drop-head: true when consumers have their turn first. The queue is on the index's list from then on, and is looked at
# again soon, whatever they do. False: its head is to be dropped now.
cdef bint queue_limit_waits(queue_t *queue) noexcept nogil
# The index's look: true when nobody takes anything any more, and the head is to be dropped; else all is well, or it is on the list again.
cdef bint queue_limit_due(queue_t *queue) noexcept nogil
# reject-publish: whether a message of `size` bytes is refused. `messages`, `bytes_`: those of the same transaction before it.
cdef bint queue_refuses(queue_t *queue, uint64_t size, uint64_t messages, uint64_t bytes_) noexcept nogil
