# Entries that come back to a queue that counts their deliveries (x-delivery-limit, x-queue-type quorum): see returns.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t, returned_t

# Before anybody uses the queue. `flags`: RETURNS_*; `limit`: returns that an entry may have, all bits: any number.
cdef void queue_set_returns(queue_t *queue, uint32_t flags, uint32_t limit) noexcept nogil
# `owner` gives a delivered entry back to a queue with RETURNS_COUNTED: notes its count where the control plane has work with it. True: that is one more than the limit allows, or it
# has to wait before its next delivery: the entry is the broker's from now on (as queue_take_at leaves it for owner 0) and not to be
# released. `how`: RETURN_FAILED or RETURN_CALM. O(1).
cdef bint queue_count_return(queue_t *queue, uint64_t position, uint32_t owner, int how) noexcept nogil
# What `owner` holds is the broker's from now on, as queue_take_at leaves it for owner 0. False when `owner` does not hold it.
cdef bint queue_pass_on(queue_t *queue, uint64_t position, uint32_t owner) noexcept nogil
# The oldest note; false when there is none. Any thread.
cdef bint queue_take_return(queue_t *queue, returned_t *out) noexcept nogil
# An entry that recovery put back has come back `count` times. False when it is not there.
cdef bint queue_set_count(queue_t *queue, uint64_t position, uint32_t count) noexcept nogil
cdef void queue_free_returns(queue_t *queue) noexcept nogil
