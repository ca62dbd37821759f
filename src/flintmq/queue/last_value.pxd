# Last value queues: of the entries with the same value of one header the newest stays.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t
from flintmq.selectors.program cimport program_t

cdef struct last_value_t:       # list_t.kind of such a queue
    uint32_t lock               # of the two maps
    program_t *name             # the header
    void *log                   # the LogPort, which lives as long as the process; NULL: in memory only
    map64_t positions           # first hash of a value -> position
    map64_t checks              # first hash -> second hash
    map64_t replaced            # positions of entries that are to end when they come back
    uint64_t cursor             # next place of `positions` to pass over
    uint64_t replaced_cursor
