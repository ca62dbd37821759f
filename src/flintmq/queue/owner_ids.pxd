# Ids under which entries are acquired: one for each consumer, each channel's basic.get, each session of a transaction.
# 32 bits, because the state word of a slot has no more room (`types.pxd` ENTRY_OWNER_SHIFT). All functions are thread safe.
from libc.stdint cimport uint32_t
from flintmq.core.hash64 cimport map64_t

cdef struct owner_ids_t:
    uint32_t lock
    uint32_t last               # the id given out last
    map64_t used                # id -> 1

# An id that nobody uses, never 0 (0 is the broker). 0: no memory. O(1), amortised.
cdef uint32_t owner_ids_take(owner_ids_t *ids) noexcept nogil
# The id may be given out again once the others had their turn. The caller owns no entry under it any more. 0 is ignored.
cdef void owner_ids_give_back(owner_ids_t *ids, uint32_t id) noexcept nogil

# The same, for the ids of this process.
cdef uint32_t owner_id_new() noexcept nogil
cdef void owner_id_free(uint32_t id) noexcept nogil
