# The kinds of entry lists, and how a list begins.
from flintmq.queue.types cimport list_t

# False when out of memory or when `kind` is reserved.
cdef bint list_init(list_t *entries, int kind, int levels, int level_rule) noexcept nogil
