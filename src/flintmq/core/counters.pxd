# What one I/O loop counted since it began: sampled by the metrics (admin/metrics.py).
#
# Written on the loop alone, with plain additions; anybody reads, and sees each number as it was a moment ago.
from libc.stdint cimport uint64_t

cdef enum:
    SIZE_BUCKETS = 9          # bodies of up to 100, 1 k, 10 k, 100 k, 1 M, 10 M, 50 M, 100 M bytes, and larger ones (RabbitMQ's buckets)

cdef struct counters_t:
    uint64_t received_confirm # messages from publishers on a channel in confirm mode
    uint64_t confirmed        # of those: answered
    uint64_t routed           # times that one was put on a queue
    uint64_t dropped          # messages that no queue was there for
    uint64_t returned         # and those that went back to their publishers
    uint64_t consumed_auto    # deliveries to consumers that need no ack
    uint64_t consumed_manual  # and to those that ack
    uint64_t got_auto         # the same of basic.get
    uint64_t got_manual
    uint64_t redelivered      # deliveries that carried the flag
    uint64_t acknowledged
    uint64_t received_bytes   # of sockets of clients, as the system gave and took them
    uint64_t received_packets # reads, and below: writes
    uint64_t sent_bytes
    uint64_t sent_packets
    uint64_t publishers       # channels that have published and are open
    uint64_t size_sum         # bytes of bodies
    uint64_t sizes[SIZE_BUCKETS]  # messages from publishers by the size of their bodies

# One message from a publisher with a body of that size.
cdef inline void counters_receive(counters_t *counters, uint64_t size) noexcept nogil:
    cdef int bucket = 0
    counters.size_sum += size
    if size > 10000:
        bucket = 3 if size <= 100000 else 4 if size <= 1000000 else 5 if size <= 10000000 else 6 if size <= 50000000 else 7 if size <= 100000000 else 8
    elif size > 100:
        bucket = 1 if size <= 1000 else 2
    counters.sizes[bucket] += 1
