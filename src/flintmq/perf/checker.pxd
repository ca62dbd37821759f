# Which messages came out of which queue: loss, repetition, disorder, wrong queue, damage.
#
#   body    0  u64  id: producer << 48 | key << 32 | sequence      big endian; sequence counts from 0 per (producer, key)
#           8  u64  time it was due to be sent, CLOCK_MONOTONIC ns
#          16  filler
#        n-8  u64  id ^ TAIL_MASK, in bodies of 24 bytes and more
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct lane_t:         # messages of one (producer, key) that came out of one queue
    uint64_t *seen            # bit per sequence number
    uint32_t words

cdef struct queue_t:
    lane_t *lanes         # index: producer * keys per queue + key / queues
    uint64_t distinct         # messages seen at least once

cdef struct check_t:
    queue_t *queues
    uint32_t queue_count
    uint32_t producer_count
    uint32_t key_count
    uint32_t keys_per_queue
    bint fans_out             # every queue gets every message
    uint64_t duplicates
    uint64_t disordered
    uint64_t corrupt
    uint64_t misrouted
    uint64_t redelivered      # flagged by the broker: not an error

cdef uint64_t tail_of(uint64_t identity) noexcept nogil
cdef bint check_start(check_t *check, uint32_t queues, uint32_t producers, uint32_t keys, bint fans_out) noexcept nogil
cdef void check_end(check_t *check) noexcept nogil
# Per lane the sequence that is due next on one consumer (free() it); NULL without memory.
cdef uint32_t *check_consumer(check_t *check, uint32_t queue) noexcept nogil
# False: out of memory. `tail` is the last 8 bytes of the body, `size` its length.
cdef bint check_message(check_t *check, uint32_t queue, uint32_t *highest, uint64_t size, uint64_t identity, uint64_t tail, bint redelivered) noexcept nogil
cdef uint64_t check_distinct(check_t *check) noexcept nogil
