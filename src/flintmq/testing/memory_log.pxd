# The log port's in-memory twin: gives LSNs, and holds durability back on demand.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.log_port cimport LogPort

cdef struct memory_log_t:
    uint64_t last_lsn         # atomic
    uint64_t durable          # atomic
    uint32_t held             # atomic
    uint64_t enqueues
    uint64_t dequeues

cdef class MemoryLog(LogPort):
    cdef memory_log_t log
