# A hash table from uint64 to uint64 in plain C: open addressing, linear probing, removal by backward shift (no tombstones).
# A zeroed map64_t is an empty map. Key 0 marks a free place and can't be stored. Not thread safe.
from libc.stdint cimport uint64_t

cdef struct map64_cell_t:
    uint64_t key
    uint64_t value

cdef struct map64_t:
    map64_cell_t *cells         # NULL while nothing was ever stored
    uint64_t mask               # places - 1; a power of two
    uint64_t count              # keys stored

# The place that a key would like to have in a table of mask + 1 places.
cdef uint64_t map64_home(uint64_t key, uint64_t mask) noexcept nogil
cdef void map64_init(map64_t *map) noexcept nogil
cdef void map64_free(map64_t *map) noexcept nogil            # the map is empty and usable again
cdef uint64_t map64_count(map64_t *map) noexcept nogil
# The value in `*value`. False: not there, `*value` is left alone. O(1).
cdef bint map64_get(map64_t *map, uint64_t key, uint64_t *value) noexcept nogil
# Stores or replaces. False: no memory (or key 0), the map is unchanged. O(1), amortised.
cdef bint map64_put(map64_t *map, uint64_t key, uint64_t value) noexcept nogil
# False: it was not there. O(1).
cdef bint map64_remove(map64_t *map, uint64_t key) noexcept nogil
# Room for `count` keys in total without growing. False: no memory.
cdef bint map64_reserve(map64_t *map, uint64_t count) noexcept nogil
# Fewer places, when at most an eighth of them is taken. Without memory for it the map stays as it is.
cdef void map64_trim(map64_t *map) noexcept nogil
# Iteration in no particular order: start with *cursor = 0; False: no more. The map must not change meanwhile.
cdef bint map64_next(map64_t *map, uint64_t *cursor, uint64_t *key, uint64_t *value) noexcept nogil
# For a walk in pieces, between which the map may change: the cells of those keys that have their home in [first, end) of a table of
# mask + 1 places (a power of two that stays the same for the walk), wherever they stand now. At most `room` are written; returns how many there are.
cdef uint64_t map64_slice(map64_t *map, uint64_t mask, uint64_t first, uint64_t end, map64_cell_t *cells, uint64_t room) noexcept nogil
