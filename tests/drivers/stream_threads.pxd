# Threads on one stream, for stress tests and the bench.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.streams.control cimport StreamQueue
from tests.twins.memory_stream cimport MemoryStream

cdef struct lane_t:               # what became of one group's messages
    uint32_t *seen                # per offset: acks that counted; NULL: not kept
    uint64_t done                 # atomic
    uint64_t delivered            # atomic
    uint64_t redelivered          # atomic
    uint64_t disorder             # atomic: first deliveries to one consumer out of order
    uint64_t twice                # atomic: offsets in two hands at once
    uint32_t *hands

cdef struct threads_t:
    uint32_t stop                 # atomic
    uint64_t total
    uint32_t lanes
    lane_t *lane

cdef class StreamThreads:
    cdef threads_t state
    cdef StreamQueue stream
    cdef MemoryStream log
