# Arrays that grow: plain C, no GIL.
from libc.stdint cimport uint64_t

cdef struct vector_t:
    void *data
    uint64_t count
    uint64_t room

# A zeroed element at the end; NULL: no memory, or 2^32 of them. O(1) in the mean.
cdef void *vector_add(vector_t *vector, size_t size) noexcept nogil
# A number at the end. False: no memory.
cdef bint vector_add_number(vector_t *vector, uint64_t number) noexcept nogil
# Gives the memory back: an empty one.
cdef void vector_free(vector_t *vector) noexcept nogil

cdef inline uint64_t vector_number(const vector_t *vector, uint64_t place) noexcept nogil:
    return (<const uint64_t *>vector.data)[place]
