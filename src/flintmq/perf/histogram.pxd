# Log-linear histogram of durations in ns. Below 128 ns a step is 1 ns; above, 1/128 of its power of two.
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    HISTOGRAM_SIZE = 7552     # 59 groups of 128 steps: every 64-bit value has a place

cdef struct histogram_t:
    uint64_t count
    uint64_t maximum          # ns
    double total              # ns
    uint64_t[7552] buckets

cdef void record(histogram_t *histogram, int64_t ns) noexcept nogil
cdef object histogram_copy(histogram_t *histogram)
