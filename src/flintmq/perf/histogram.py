"""Log-linear histogram of durations: exact to 0.8 %, constant size, no allocation per value (see histogram.pxd).

in: durations in ns from the compiled workers. out: a plain dictionary, which `percentile` and `merge` read.
"""

from __future__ import annotations

from cython import cast, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.perf.native import log2_floor
from cython.cimports.libc.stdint import int64_t, uint64_t


def record(histogram: pointer[histogram_t], ns: int64_t) -> void:
    value: uint64_t = cast(uint64_t, ns) if ns > 0 else 0
    index: uint64_t = value
    power: c_int
    if value >= 128:
        power = log2_floor(value)
        index = (cast(uint64_t, power - 6) << 7) + ((value >> (power - 7)) & 127)
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


def histogram_copy(histogram: pointer[histogram_t]) -> object:
    index: c_int
    buckets = {}
    for index in range(HISTOGRAM_SIZE):
        if histogram.buckets[index]:
            buckets[index] = histogram.buckets[index]
    return {"count": histogram.count, "max_ns": histogram.maximum, "total_ns": histogram.total, "buckets": buckets}
