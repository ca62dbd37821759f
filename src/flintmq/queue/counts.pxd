# Counting entries and bytes of a list. All under list_t.lock; figures are atomic for readers without it.
#
# I1  Bodies in memory and cold entries: an entry leaves a sum once, and came into it before. No sum falls below zero.
from libc.stdint cimport int64_t, uint64_t
from flintmq.core.atomics cimport at_store64
from flintmq.core.check cimport check
from flintmq.queue.slot cimport slot_body_len
from flintmq.queue.types cimport BEHIND_RING, consumer_t, list_t, slot_t

# An entry became available for the first time.
cdef inline void count_arrival(list_t *entries, uint64_t body_len) noexcept nogil:
    at_store64(&entries.enqueued_bytes, entries.enqueued_bytes + body_len)
    at_store64(&entries.enqueued, entries.enqueued + 1)

# Body bytes came into memory.
cdef inline void count_resident(list_t *entries, uint64_t body_len) noexcept nogil:
    at_store64(&entries.resident_bytes, entries.resident_bytes + body_len)

# Body bytes left memory.
cdef inline void count_evicted(list_t *entries, uint64_t body_len) noexcept nogil:
    check(entries.resident_bytes >= body_len, b"counts I1 a body that leaves memory was counted", entries.resident_bytes, body_len)
    at_store64(&entries.resident_bytes, entries.resident_bytes - body_len)

cdef inline void count_cold(list_t *entries, int64_t change) noexcept nogil:
    check(<int64_t>(entries.cold_count + <uint64_t>change) >= 0, b"counts I1 an entry that is no longer cold was counted", entries.cold_count, change)
    at_store64(&entries.cold_count, entries.cold_count + <uint64_t>change)

# The broker acquired an entry.
cdef inline void count_taken(list_t *entries, uint64_t body_len) noexcept nogil:
    at_store64(&entries.taken, entries.taken + 1)
    at_store64(&entries.taken_bytes, entries.taken_bytes + body_len)

# Entries from `position` on became available where readers may have passed already. After they did.
cdef inline void count_behind(list_t *entries, uint64_t position) noexcept nogil:
    at_store64(&entries.behind_ring[entries.behind % BEHIND_RING], position)
    at_store64(&entries.behind, entries.behind + 1)

# A consumer acquired an entry. Under its send_lock.
cdef inline void count_acquired(consumer_t *consumer, slot_t *slot) noexcept nogil:
    at_store64(&consumer.acquired, consumer.acquired + 1)
    at_store64(&consumer.acquired_bytes, consumer.acquired_bytes + slot_body_len(slot))
