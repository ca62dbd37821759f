# Ends what stands in a queue, in slices: a purge (what is available now), or the end of a deleted queue (everything).
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t

cdef struct sweep_t:
    queue_t *queue              # counted reference
    uint64_t *tails             # last index of each level when the sweep began
    uint64_t first_tail[1]      # `tails` of a queue with one level
    uint64_t next               # position that is looked at next
    uint64_t removed            # entries that were available, and are gone
    uint64_t lsn                # the purge is durable when the log is up to here; 0: nothing of it was logged
    bint ending                 # the queue was deleted, and the log knows: entries in consumers' hands lose their place in the log, too
    bint done

# False: out of memory. `ending`: after queue_mark_deleted and the log's record of it.
cdef bint sweep_begin(sweep_t *sweep, queue_t *queue, bint ending) noexcept nogil
# Looks at up to `most` places, about 0.1 us each. True: the sweep is done. Any thread, one at a time.
cdef bint sweep_step(sweep_t *sweep, uint64_t most) noexcept nogil
cdef void sweep_free(sweep_t *sweep) noexcept nogil
# A purge in one go: O(places). Returns how many were removed.
cdef uint64_t queue_purge(queue_t *queue) noexcept nogil
