# The readers of the cold reader: at most one worker at a time uses one, and who read a queue last reads on, since its window and its open
# file are there.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    COLD_READERS_MAX = 32       # readers at most; as many as the actor system has workers

cdef struct readers_t:
    uint32_t lock               # a spin lock; innermost
    uint32_t count
    uint64_t uses
    void *readers[COLD_READERS_MAX]             # ContentReader, borrowed
    uint64_t last_queue[COLD_READERS_MAX]
    uint64_t last_used[COLD_READERS_MAX]
    bint busy[COLD_READERS_MAX]

# A reader that is free: the one that read this queue last, else the one that rested longest. -1: none is free.
cdef int readers_take(readers_t *readers, uint64_t queue_id) noexcept nogil
cdef void readers_give(readers_t *readers, int number) noexcept nogil
