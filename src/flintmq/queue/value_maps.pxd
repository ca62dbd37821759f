# Values of one header and the entries that have them: what last value queues, deduplication and message groups have in common. The memory
# of the maps is in the account (MEMORY_ENTRIES). Nothing here takes a lock but that of the entry list: who has the maps locks them.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport queue_t, slot_t, values_t
from flintmq.selectors.program cimport program_t, value_t

cdef enum:                      # of values_find
    VALUE_NEW = 0
    VALUE_KNOWN = 1
    VALUE_OTHER = 2             # another value with the same first hash has the place

# --- maps -----------------------------------------------------------------------------------------------------------------------
# map64_put, map64_reserve and map64_free of a map that is in the account.
cdef bint map_put(map64_t *map, uint64_t key, uint64_t value) noexcept nogil
cdef bint map_reserve(map64_t *map, uint64_t count) noexcept nogil
cdef void map_free(map64_t *map) noexcept nogil
# Gives memory back that the map needs no more. O(places), when they are mostly free.
cdef void map_trim(map64_t *map) noexcept nogil

# --- entries --------------------------------------------------------------------------------------------------------------------
# The state of an entry and its slot; 0 and NULL: there is none.
cdef uint64_t entry_state(queue_t *queue, uint64_t position, slot_t **slot) noexcept nogil
# Whether it is ready, or in somebody's hands.
cdef bint entry_is_there(queue_t *queue, uint64_t position) noexcept nogil

# --- values ---------------------------------------------------------------------------------------------------------------------
# The value of the header `name` of a message.
cdef void header_value(program_t *name, content_t *content, value_t *value) noexcept nogil
# 64 bits of a value, odd: of no other one but by chance.
cdef uint64_t value_hash(value_t *value) noexcept nogil
# Two hashes of the header's value. False: the message has none.
cdef bint values_hashes(values_t *values, content_t *content, uint64_t *first, uint64_t *second) noexcept nogil
# position: of the entry that was noted for the value (or for the other one).
cdef int values_find(values_t *values, uint64_t first, uint64_t second, uint64_t *position) noexcept nogil
# False: no memory, nothing was noted.
cdef bint values_note(values_t *values, uint64_t first, uint64_t second, uint64_t position) noexcept nogil
# Passes over `most` places, and forgets values whose entry is gone.
cdef void values_sweep(queue_t *queue, values_t *values, uint32_t most) noexcept nogil
# values_sweep while there are more values than `entries`, else map_trim. True: there is more to do.
cdef bint values_upkeep(queue_t *queue, values_t *values, uint64_t entries, uint32_t most) noexcept nogil
cdef void values_free(values_t *values) noexcept nogil
