# Housekeeping and figures of a queue. Re-exported by queue_core.pxd.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport delivery_t, flows_t, list_t, log_port_t, queue_t, segment_t, slot_t

# Lower bound of the next expiry (ms on the wall clock), 0 when nothing expires: before it queue_take_expired finds nothing.
cdef int64_t queue_next_expiry(queue_t *queue) noexcept nogil
# Advances idle pointers, frees segments behind them; the asynchronous delivery job: wakes a consumer for whatever is available.
cdef void queue_housekeeping(queue_t *queue) noexcept nogil
cdef uint64_t queue_ready_count(queue_t *queue) noexcept nogil
cdef uint64_t queue_unacked_count(queue_t *queue) noexcept nogil
cdef uint64_t queue_ready_bytes(queue_t *queue) noexcept nogil                         # of bodies, resident or not
cdef uint64_t queue_unacked_bytes(queue_t *queue) noexcept nogil                       # of bodies in consumers' hands; 0 of a stream
cdef void queue_flows(queue_t *queue, flows_t *flows) noexcept nogil                    # O(consumers)
cdef uint32_t queue_consumer_count(queue_t *queue) noexcept nogil
cdef int queue_priorities(queue_t *queue) noexcept nogil                               # the seed's getPriorities
cdef uint64_t queue_enqueued_total(queue_t *queue) noexcept nogil
cdef uint64_t queue_delivered_total(queue_t *queue) noexcept nogil
# Position and flags of the first entry at or after `position` that is available or acquired; false at the end. For browse/cursor;
# `out.content` is a counted reference the caller drops, NULL when it is not resident (`out.message_id` says what to load).
cdef bint queue_peek(queue_t *queue, uint64_t position, delivery_t *out) noexcept nogil
# Frees unlinked segments, unless someone is inside the list: then they wait for the next call. `keep_spare`: one stays for growth.
cdef void queue_reclaim(queue_t *queue, bint keep_spare) noexcept nogil

# The content can't be read, ever: the broker acquires the entry and leaves it where it is, out of the way; whoever was parked on
# it goes on behind it. queue_release(owner 0) tries it again, queue_settle(owner 0) ends it. False when it is not there or not cold.
cdef bint queue_content_failed(queue_t *queue, uint64_t position) noexcept nogil
# The same for an entry that the broker acquired already (queue_take_head).
cdef bint queue_acquired_failed(queue_t *queue, uint64_t position) noexcept nogil
cdef uint64_t queue_failed_count(queue_t *queue) noexcept nogil


# --- entry lists. Every function takes list_t.lock itself.
# Frees everything, contents included, and tells the port (may be NULL) of spilled content that goes; nobody may be inside.
cdef void list_destroy(list_t *entries, log_port_t *port) noexcept nogil

# Frees an unused tail segment and the spare when nothing was added since the last call.
cdef void list_shrink(list_t *entries) noexcept nogil
# Detaches the retired segments, and the slots of shells; list_free_retired frees them once nobody can be inside
# (`keep_spare`: one stays for the next growth), list_put_back_retired keeps them.
cdef segment_t *list_take_retired(list_t *entries, slot_t **slots) noexcept nogil
cdef void list_free_retired(list_t *entries, segment_t *retired, bint keep_spare) noexcept nogil
cdef void list_put_back_retired(list_t *entries, segment_t *retired, slot_t *slots) noexcept nogil
