# What of a queue's bodies stays in memory when they were delivered, came back, or keep a chunk for themselves (see sweep.py).
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport queue_t

cdef struct sweep_t:
    arena_t *arena            # where copies go
    map64_t moved             # of contents that several entries share: old one -> its copy, both counted until sweep_end
    uint64_t kept             # bytes of available bodies that were passed in this queue: the head of the window
    uint64_t evicted          # figures since the beginning: bodies, and bytes of them
    uint64_t evicted_bytes
    uint64_t copied
    uint64_t copied_bytes

# Sweeps up to `most` entries from `position` (1: the first) on. `low`: memory is short. Returns where to go on; 0: the end. Any thread, one
# at a time for a sweep_t; no other thread waits for it longer than for a few instructions. O(entries).
cdef uint64_t queue_sweep(queue_t *queue, sweep_t *sweep, uint64_t position, uint32_t most, bint low) noexcept nogil
# Evicts up to `most` available bodies behind the first `window` bytes of them, transient ones by way of the page log; looks at entries from
# `position` (1: the first) on, SLICE of them. Returns where to go on; 0: the end, or the page log takes no more.
cdef uint64_t queue_narrow(queue_t *queue, sweep_t *sweep, uint64_t window, uint64_t position, uint32_t most) noexcept nogil
# Moves contents out of thin chunks, of up to `most` entries; as queue_sweep.
cdef uint64_t queue_thicken(queue_t *queue, sweep_t *sweep, uint64_t position, uint32_t most) noexcept nogil
# Forgets which contents were moved; contents that nobody else holds go.
cdef void sweep_end(sweep_t *sweep) noexcept nogil

cdef class Sweeper:
    cdef sweep_t sweep
    cdef bint _narrow(self, queue_t *queue, uint32_t *most)
