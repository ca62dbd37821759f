# Pulls, offers and returns. The first five are part of the queue's face and re-exported by queue_core.pxd.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, delivery_t, queue_t, slot_t

# AbstractQueue#deliverSingleMessage: run by the consumer's own loop. 1 = `out` holds a message that is acquired (unstealable)
# for this consumer, credit taken; 0 = nothing now, the consumer is back on Interested (or NotInterested when it is out of
# credit or suspended). When its next entry is not resident: 0 with out.position set (else untouched), the content asked for, and the
# consumer notified when it is there. After writing the frames the session calls entry_sent() or, for no-ack, queue_dequeue().
cdef bint queue_deliver_single(queue_t *queue, consumer_t *consumer, delivery_t *out) noexcept nogil
cdef void entry_sent(slot_t *slot) noexcept nogil              # unstealable -> stealable
# basic.get: takes the first available entry for `owner` (an id of owner_id_new()). When that entry is not resident:
# false with out.position set and its content asked for; try again after queue_content_loaded.
cdef bint queue_pull(queue_t *queue, uint32_t owner, delivery_t *out) noexcept nogil
# The broker takes the first available entry (owner 0): purge, drop-head, expiry of the head, queue deletion. Settle with owner 0.
cdef bint queue_take_head(queue_t *queue, delivery_t *out) noexcept nogil
# Acquired by `owner` -> available again, in its old place; pointers of consumers that see requeues go back; one is woken.
# `delivered`: RETURN_*; but for RETURN_UNSENT it reached (or may have reached) a client, so it is flagged redelivered and counted.
cdef bint queue_release(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int delivered) noexcept nogil

# --- for queue_core
# Offers the entry to the ready consumers in turn; true when one took it. Called without locks.
cdef bint queue_offer(queue_t *queue, uint64_t position) noexcept nogil
# The consumer won't send what it was offered: the entry goes back to its place, its credit too. Called without its send_lock, which it
# always takes: an offer that is being made when a consumer is suspended is seen here.
cdef void queue_withdraw_offer(queue_t *queue, consumer_t *consumer) noexcept nogil
