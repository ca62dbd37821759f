# Messages that wait before they are delivered again, in heaps: see waits.py and retries.py.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport queue_t

cdef struct wait_t:
    int64_t due_ns              # monotonic
    uint64_t number             # those of one time come back in the order in which they began to wait
    uint64_t position

cdef struct waits_t:            # of one queue: a heap, the next one first
    queue_t *queue              # counted
    wait_t *items
    uint64_t count
    uint64_t room
    uint64_t place              # its own in retries_t.queues

cdef struct retries_t:
    uint32_t lock               # no lock of a queue is taken inside of it
    waits_t **queues            # a heap of the queues of which something waits, by their next one
    uint64_t count
    uint64_t room
    uint64_t number             # the last one given
    uint64_t total              # messages
    int64_t manual_ns           # atomic: what its clock says, below 0: it is the monotonic clock. Tests set it

# An entry that the broker holds waits after its `count`th return, from now_ns (monotonic; below 0: now) on, 139 years at most. False: the
# caller has to see to it: the queue has no index of a broker, or is deleted, or there is no memory. O(log of those that wait).
cdef bint retries_wait(queue_t *queue, uint64_t position, uint32_t count, int64_t now_ns) noexcept nogil

# --- with the lock held
# Takes the first one out; it is not the only one. waits_sift is due.
cdef void waits_pop(waits_t *waits) noexcept nogil
# The first one of this queue is another one than before.
cdef void waits_sift(retries_t *retries, waits_t *waits) noexcept nogil
# Nothing of the queue waits any more, or it is deleted. The caller frees it, outside of the lock.
cdef void waits_take_out(retries_t *retries, waits_t *waits) noexcept nogil
