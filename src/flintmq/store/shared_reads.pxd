# Contents that were read back lately and wait in several queues: see shared_reads.py. A zeroed shared_reads_t is an empty one. Any thread.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.core.hash64 cimport map64_t

cdef enum:
    SHARED_READS_MAX = 65536    # contents

cdef struct shared_reads_t:
    uint32_t lock               # a spin lock; innermost
    uint32_t first              # of the ring: the one that was read longest ago
    uint32_t count
    bint used                   # since the last shared_reads_rest
    uint64_t bytes              # of their bodies and headers
    uint64_t bytes_max          # 0: nothing is kept
    uint64_t hits
    map64_t map                 # message id -> place in the ring + 1
    content_t **ring            # NULL while nothing is kept

# The content of this message, a reference for the caller; NULL: it is not kept. O(1).
cdef content_t *shared_reads_get(shared_reads_t *reads, uint64_t message_id) noexcept nogil
# Keeps a content for the other queues that it waits in; those that were read longest ago go. Without memory it is not kept. O(1), amortised.
cdef void shared_reads_put(shared_reads_t *reads, content_t *content) noexcept nogil
# Lets go of the contents when nobody asked for one since the last call. O(contents), some 3 ms, the lock for 0.05 ms at a time.
cdef void shared_reads_rest(shared_reads_t *reads) noexcept nogil
cdef void shared_reads_free(shared_reads_t *reads) noexcept nogil
