# What of a queue is in memory: eviction, loads, what can't be loaded, who waits for the head. Re-exported by queue_core.pxd.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t, waiter_t

# An available entry that the store knows gives up its content. False when it is not available, not known, or cold already.
cdef bint queue_evict_content(queue_t *queue, uint64_t position) noexcept nogil
# The content of an available, not resident entry is there: takes its own reference, wakes whoever asked for this entry. O(1) when
# nobody did, so a loader calls it for a run of entries. `content` NULL: it could not be loaded now; the next pull asks again.
cdef void queue_content_loaded(queue_t *queue, uint64_t position, content_t *content) noexcept nogil
# The content can't be read, ever: the broker acquires the entry and leaves it where it is, out of the way; whoever was parked on
# it goes on behind it. queue_release(owner 0) tries it again, queue_settle(owner 0) ends it. False when it is not there or not cold.
cdef bint queue_content_failed(queue_t *queue, uint64_t position) noexcept nogil
# The same for an entry that the broker acquired already (queue_take_head).
cdef bint queue_acquired_failed(queue_t *queue, uint64_t position) noexcept nogil
# The next available, not resident entry at or after `position`; false when there is none. O(entries passed).
cdef bint queue_next_cold(queue_t *queue, uint64_t position, uint64_t *found, uint64_t *message_id) noexcept nogil
cdef uint64_t queue_cold_count(queue_t *queue) noexcept nogil         # not resident; without failed ones and those in doubt
cdef uint64_t queue_resident_bytes(queue_t *queue) noexcept nogil     # bodies in memory, of acquired and held entries too
# Bytes of bodies that may come into memory now: the window (log_port_t.hot_bytes) less the available ones that are there; 0 when
# those in consumers' hands are many windows large. A loader stops when it has brought that much. O(consumers).
cdef uint64_t queue_load_room(queue_t *queue) noexcept nogil
cdef uint64_t queue_failed_count(queue_t *queue) noexcept nogil

# A basic.get whose head is cold: add the waiter, pull again, wait if it is still cold; `wake` is called (any thread) when the head
# may have changed. After the removal it is not called any more.
cdef void queue_add_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil
cdef void queue_remove_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil
