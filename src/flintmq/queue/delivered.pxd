# How far deliveries of a durable queue went, as a crash will know it: after one, what a mark in the log covers counts as delivered
# before, and nothing else. The mark is reserved ahead, so that a delivery waits for no disk.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t

# Shorter steps, for tests: entries of one at least, and those between two looks (a power of two). Before the first queue.
cdef void delivered_set_steps(uint32_t step, uint32_t grant) noexcept nogil
# The queue got its log or durability: whether it keeps a mark. Before anyone uses it.
cdef void delivered_begin(queue_t *queue) noexcept nogil
# An entry above level0.granted, in this state, is to be delivered. False: not before its mark is durable (delivered_wait); the mark is on
# its way. Any thread; consumer, puller and group locks may be held.
cdef bint delivered_grant(queue_t *queue, uint64_t position, uint64_t state) noexcept nogil
# After that: True: consumers and waiters of the queue are woken when the mark is durable. False: look again.
cdef bint delivered_wait(queue_t *queue, uint64_t position) noexcept nogil
# A logged entry gets this position, above level0.ahead; no record of it is in the log yet. Under log_lock.
cdef void delivered_ahead(queue_t *queue, uint64_t position) noexcept nogil
# An entry that the log does not know arrived at this position. Under log_lock.
cdef void delivered_pass(queue_t *queue, uint64_t position) noexcept nogil
# The broker shows the entry, which it holds, to somebody otherwise than by a delivery. The LSN that must be durable first; 0: it is.
cdef uint64_t delivered_show(queue_t *queue, uint64_t position) noexcept nogil
# Upkeep: while nobody consumes, what the mark reserved ahead is given back after some seconds; `stops`: now. Takes log_lock. True: that is
# still to come.
cdef bint delivered_rest(queue_t *queue, bint stops) noexcept nogil

# --- for the store. Nobody uses the queue yet, or any more.
# What the log's mark says of a level; `covered` is below `index` when that is not durable yet.
cdef void delivered_restore(queue_t *queue, uint32_t level, uint64_t index, uint64_t covered) noexcept nogil
# Writes the mark once more: the log will forget the record. Any time; does nothing for a queue that keeps none.
cdef void delivered_write(queue_t *queue) noexcept nogil
