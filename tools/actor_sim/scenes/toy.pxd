# Tests of the simulator itself: small programs with known bugs.
from libc.stdint cimport uint32_t, uint64_t

cdef struct toy_t:
    uint64_t count
    uint32_t lock
    uint32_t word
    uint64_t plain
    int kind
