# Leases: what was handed out by pulls and not settled, by number and by the time it goes back. Not thread-safe: under its owner's lock.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport slot_t

cdef enum:                    # lease_t.state
    LEASE_FREE = 0
    LEASE_HELD = 1            # a client has it: it may ack, nack and extend
    LEASE_DELAYED = 2         # given back with a delay: nobody has it, it is available again when its time comes

cdef struct lease_t:
    uint64_t number           # serial << 24 | place; what a client's lease id says. Never reused
    slot_t *slot              # stable while the entry is acquired
    uint64_t position
    uint64_t until_ns         # monotonic: when the message goes back to its queue
    uint64_t delivered_us     # wall clock of the delivery, for the log; 0: nothing is logged
    uint32_t heap_at          # where it stands in lease_table_t.heap; of a free one: the next free place
    uint32_t state            # LEASE_*

cdef struct lease_table_t:
    lease_t *items
    uint32_t *heap            # places, by until_ns
    uint32_t capacity         # of both
    uint32_t count
    uint32_t free             # first free place; PLACE_NONE: all are used
    uint64_t serial           # of the last lease

cdef enum:
    PLACE_BITS = 24
    PLACE_NONE = 0xFFFFFFFF

cdef void leases_init(lease_table_t *table) noexcept nogil
cdef void leases_free(lease_table_t *table) noexcept nogil
# A new lease, LEASE_HELD; its number, 0 when memory is exhausted. O(log n). Pointers from leases_find are not good after it.
cdef uint64_t leases_add(lease_table_t *table, slot_t *slot, uint64_t position, uint64_t until_ns, uint64_t delivered_us) noexcept nogil
# NULL: settled, gone back, or never given. O(1).
cdef lease_t *leases_find(lease_table_t *table, uint64_t number) noexcept nogil
# O(log n).
cdef void leases_move(lease_table_t *table, lease_t *lease, uint64_t until_ns) noexcept nogil
cdef void leases_remove(lease_table_t *table, lease_t *lease) noexcept nogil
# The lease that goes back first; NULL: there is none.
cdef lease_t *leases_first(lease_table_t *table) noexcept nogil
