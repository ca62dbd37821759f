# Last value queues: of the entries with the same value of one header the newest stays.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport values_t

cdef struct last_value_t:       # list_t.kind of such a queue
    uint32_t lock               # of the maps
    void *log                   # the LogPort, which the queue keeps (port_owner); NULL: in memory only
    values_t values
    uint64_t most               # values
    map64_t replaced            # positions of entries that are to end when they come back
    uint64_t replaced_cursor
