# Parts of the load generator by themselves: see perf_parts.py.
from libc.stdint cimport uint32_t
from flintmq.perf.checker cimport check_t

cdef class Checker:
    cdef check_t check
    cdef uint32_t *highest[16]
