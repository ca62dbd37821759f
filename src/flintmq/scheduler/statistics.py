"""Small histograms, and the index of fairness (see statistics.pxd).

in: durations in nanoseconds. out: quantiles, Jain's index.

Buckets: two an octave from 1 us on; bucket 0 takes everything below, the last one everything above 17 s. Owned by one writer; a reader on
another thread sees counts that may be a moment apart, which is good enough to be shown.
"""

from __future__ import annotations

from cython import cast, cfunc, declare, double, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.scheduler.cpu_clock import highest_bit
from cython.cimports.flintmq.scheduler.types import HISTOGRAM_SIZE, histogram_t
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t

# bit of the first octave: 1,024 ns
FIRST_BIT = declare(c_int, 10)
# counts add up to this at most: then all are halved
TOTAL_MAX = declare(uint32_t, 4096)


@cfunc
@nogil
@exceptval(check=False)
def _bucket(ns: int64_t) -> c_int:
    bit: c_int
    index: c_int
    if ns < 1024:
        return 0
    bit = highest_bit(cast(uint64_t, ns))
    index = (bit - FIRST_BIT) * 2 + 1 + cast(c_int, (ns >> (bit - 1)) & 1)
    return index if index < HISTOGRAM_SIZE else HISTOGRAM_SIZE - 1


@cfunc
@nogil
@exceptval(check=False)
def _upper(bucket: c_int) -> int64_t:
    """Upper end of a bucket: 1,024, 1,536, 2,048, 3,072, ..."""
    octave: c_int = bucket // 2
    start: int64_t = cast(int64_t, 1) << (FIRST_BIT + octave)
    return start + start // 2 if bucket & 1 else start


def histogram_add(histogram: pointer[histogram_t], ns: int64_t) -> void:
    i: c_int
    total: uint32_t = 0
    histogram.counts[_bucket(ns)] += 1
    histogram.total += 1
    if histogram.total >= TOTAL_MAX:
        for i in range(HISTOGRAM_SIZE):
            histogram.counts[i] = cast(uint16_t, histogram.counts[i] >> 1)
            total += histogram.counts[i]
        histogram.total = total


def histogram_quantile(histogram: pointer[histogram_t], share: double) -> int64_t:
    i: c_int
    seen: uint32_t = 0
    wanted: uint32_t
    if histogram.total == 0:
        return 0
    wanted = cast(uint32_t, share * histogram.total)
    for i in range(HISTOGRAM_SIZE):
        seen += histogram.counts[i]
        if seen > wanted:
            return _upper(i)
    return _upper(HISTOGRAM_SIZE - 1)


def jain_index(total: double, squares: double, count: uint32_t) -> double:
    if count == 0 or squares <= 0.0:
        return 1.0
    return total * total / (count * squares)
