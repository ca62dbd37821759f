"""Log-linear histogram of durations: exact to 0.8 %, constant size, no allocation per value (see histogram.pxd).

in: durations in ns from the compiled workers. out: a plain dictionary, which `percentile` and `merge` read.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.perf.native import log2_floor
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


def record(histogram, ns):
    value: uint64_t = cython.cast(uint64_t, ns) if ns > 0 else 0
    index: uint64_t = value
    power: cython.int
    if value >= 128:
        power = log2_floor(value)
        index = (cython.cast(uint64_t, power - 6) << 7) + ((value >> (power - 7)) & 127)
    histogram.buckets[index] += 1
    histogram.count += 1
    histogram.total += value
    if value > histogram.maximum:
        histogram.maximum = value


def bucket_value(index: int) -> float:
    """The middle of a histogram bucket in ns: the inverse of `record`."""
    if index < 128:
        return float(index)
    power = (index >> 7) + 6
    low = (128 + (index & 127)) << (power - 7)
    return low + (1 << (power - 7)) / 2


def histogram_copy(histogram):
    index: cython.int
    buckets = {}
    for index in range(HISTOGRAM_SIZE):
        if histogram.buckets[index]:
            buckets[index] = histogram.buckets[index]
    return {"count": histogram.count, "max_ns": histogram.maximum, "total_ns": histogram.total, "buckets": buckets}


def histogram_of(durations_ns: list[int]) -> dict[str, object]:
    """A histogram of the given durations (ns), for tests."""
    histogram: cython.pointer(histogram_t) = cython.cast(cython.pointer(histogram_t), calloc(1, cython.sizeof(histogram_t)))
    for duration in durations_ns:
        record(histogram, duration)
    result = histogram_copy(histogram)
    free(histogram)
    return result
