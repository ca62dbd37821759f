# Small histograms, and the index of fairness.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport histogram_t

cdef void histogram_add(histogram_t *histogram, int64_t ns) noexcept nogil
# The value under which `share` (0..1) of the recent values lie, nanoseconds (upper end of its bucket, at most 41 % too much); 0: no values.
cdef int64_t histogram_quantile(histogram_t *histogram, double share) noexcept nogil
# Jain's index of `count` values with that sum and sum of squares: 1 all equal, 1/count one has everything. 1 for none.
cdef double jain_index(double total, double squares, uint32_t count) noexcept nogil
