# Upkeep of entry lists. Every function takes list_t.lock itself.
from flintmq.queue.types cimport list_t, log_port_t, segment_t

# Frees everything, contents included, and tells the port (may be NULL) of spilled content that goes; nobody may be inside.
cdef void list_destroy(list_t *entries, log_port_t *port) noexcept nogil

# Frees an unused tail segment and the spare when nothing was added since the last call.
cdef void list_shrink(list_t *entries) noexcept nogil
# Detaches the retired segments; list_free_retired frees them once nobody can be inside
# (`keep_spare`: one stays for the next growth), list_put_back_retired keeps them.
cdef segment_t *list_take_retired(list_t *entries) noexcept nogil
cdef void list_free_retired(list_t *entries, segment_t *retired, bint keep_spare) noexcept nogil
cdef void list_put_back_retired(list_t *entries, segment_t *retired) noexcept nogil
