# Index runs: the entries of one segment as bytes, for the index log (docs/FORMAT.md, Index-Run).
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.types cimport restored_t

cdef enum:
    RUN_HEAD = 32               # bytes before the first group
    RUN_ENTRY_MAX = 48          # bytes that one entry takes at most
    RUN_BYTES_MAX = 66048       # those of LARGE_SLOTS entries and the head

# Writes `count` entries (1 or more, positions rising inside one level) of a queue; returns the bytes written, 0: `room` is too small.
# O(entries).
cdef uint32_t run_encode(uint64_t queue_id, const restored_t *entries, uint32_t count, uint8_t *out, uint32_t room) noexcept nogil
# Reads them again, at most `room`; `*queue_id`: the queue. Returns how many, 0: malformed. The bytes may be anybody's.
cdef uint32_t run_decode(const uint8_t *data, uint32_t length, restored_t *entries, uint32_t room, uint64_t *queue_id) noexcept nogil
