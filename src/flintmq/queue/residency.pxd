# What of a queue is in memory: loads, who waits for the head. Re-exported by queue_core.pxd.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t, waiter_t

cdef enum:
    # Unacked messages in consumers' hands don't fill the window, or a slow consumer would send every message over the disk; but above so
    # many windows they do, so that memory has a bound: arrivals go cold from there on.
    HELD_WINDOWS = 8

# The content of an available, not resident entry is there: takes its own reference, wakes whoever asked for this entry. `content` NULL: it
# could not be loaded now; the next pull asks again.
cdef void queue_content_loaded(queue_t *queue, uint64_t position, content_t *content) noexcept nogil
# The same for some entries, from the last to the first, under the list's lock once; 64 at most, each with a content. O(count).
cdef void queue_contents_loaded(queue_t *queue, uint64_t *positions, content_t **contents, uint32_t count) noexcept nogil
# The next available, not resident entries at or after `position`, `most` at most: their positions and message ids. A shell comes alone: the id
# has MESSAGE_STUB_BIT. Returns how many, 0: there is none. O(entries passed).
cdef uint32_t queue_cold_run(queue_t *queue, uint64_t position, uint64_t *positions, uint64_t *message_ids, uint32_t most) noexcept nogil
# The first of them; false when there is none. O(entries passed).
cdef bint queue_next_cold(queue_t *queue, uint64_t position, uint64_t *position_out, uint64_t *message_id) noexcept nogil
cdef uint64_t queue_cold_count(queue_t *queue) noexcept nogil         # not resident; without failed ones and those in doubt
cdef uint64_t queue_resident_bytes(queue_t *queue) noexcept nogil     # bodies in memory, of acquired and held entries too
# Bytes of bodies that a queue which is read has in memory: log_port_t.hot_bytes; while contents in memory take more than `content_bytes`,
# `rest_bytes`. ALL_HOT: no limit.
cdef uint64_t queue_load_window(queue_t *queue) noexcept nogil
# Bytes of bodies that may come into memory now: that window less the available ones that are there; 0 when those in consumers' hands are
# many windows large. A loader stops when it has brought that much. O(consumers).
cdef uint64_t queue_load_room(queue_t *queue) noexcept nogil

# The window of a queue without cold entries, for a body of `body_len` bytes that arrives now: all of it while contents in memory take less
# than the node's log_port_t.content_bytes, or while those that fill the window are in consumers' hands; else `hot_bytes`, or `rest_bytes`
# where many queues share. A queue that has more than `rest_least` is on log_port_t.wide from then on, and is seen to (sweep.pxd). O(1) below
# content_bytes, else O(consumers).
cdef uint64_t queue_window(queue_t *queue, uint32_t body_len, uint64_t hot_bytes) noexcept nogil
# Takes the available ones of `count` entries from `position` on out of memory, as far as the queue's window (log_port_t.hot_bytes) is passed:
# entries with a message id, of which somebody has another copy. O(count), in sections of some microseconds.
cdef void queue_cool(queue_t *queue, uint64_t position, uint32_t count) noexcept nogil
# A basic.get whose head is cold: add the waiter, pull again, wait if it is still cold; `wake` is called (any thread) when the head
# may have changed. After the removal it is not called any more.
cdef void queue_add_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil
cdef void queue_remove_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil
