# Weighted rendezvous hashing: of several places each key chooses one, by weight, and keeps it while that place is there.
#
# No ring and no table: a choice costs one logarithm for each place. Called with the virtual host's lock held.
cimport cython
from libc.stdint cimport uint32_t, uint64_t

cdef struct seat_t:
    uint64_t seed             # of the place: the same in each run
    double weight             # above 0

@cython.final
cdef class Rendezvous:
    cdef seat_t *seats
    cdef uint32_t count
    cdef uint32_t room
