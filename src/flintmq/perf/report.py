"""Histograms to percentiles, and a run's counters to the verdict and the JSON line.

in: plain dictionaries from the compiled workers. out: plain dictionaries with units in their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flintmq.perf.histogram import bucket_value
from flintmq.perf.process import Usage

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
# The faults of a run, in the order in which it is told.
FAULTS = ("lost", "duplicates", "disordered", "corrupt", "misrouted", "nacked", "returned", "unconfirmed")


def merge(histograms: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One histogram of several."""
    count = total = largest = 0
    buckets: dict[int, int] = {}
    for histogram in histograms:
        count += histogram["count"]
        total += histogram["total_ns"]
        largest = max(largest, histogram["max_ns"])
        for index, number in histogram["buckets"].items():
            buckets[index] = buckets.get(index, 0) + number
    return {"count": count, "total_ns": total, "max_ns": largest, "buckets": buckets}


def percentile(histogram: Mapping[str, Any], share: float) -> float:
    """The duration in ns that `share` (0 to 1) of the values do not exceed; 0 for an empty histogram.

    Nearest rank: with 4 values, 0.5 is the second. Exact to half a bucket (0.4 %), never above the maximum.
    """
    rank = max(1, -(-share * histogram["count"] // 1))
    seen = 0
    for index in sorted(histogram["buckets"]):
        seen += histogram["buckets"][index]
        if seen >= rank:
            return min(bucket_value(index), float(histogram["max_ns"]))
    return 0.0


def microseconds(histogram: Mapping[str, Any]) -> dict[str, float] | None:
    """Percentiles, mean and maximum in microseconds; None for an empty histogram."""
    if not histogram["count"]:
        return None
    result = {name: round(percentile(histogram, share) / 1000, 2) for name, share in PERCENTILES.items()}
    result["mean"] = round(histogram["total_ns"] / histogram["count"] / 1000, 2)
    result["max"] = round(histogram["max_ns"] / 1000, 2)
    result["n"] = histogram["count"]
    return result


def faults(result: Mapping[str, Any]) -> list[str]:
    """The faults of a run, as `3 lost`; empty when nothing is."""
    return [f"{result[name]:,} {name}" for name in FAULTS if result.get(name)]


def broker_figures(before: Usage, after: Usage, peak: int, *, published: int, delivered: int) -> dict[str, Any]:
    """CPU per million messages and per million deliveries, memory in bytes."""
    cpu = after.cpu_s - before.cpu_s
    return {
        "cpu_s": round(cpu, 3),
        "user_s": round(after.user_s - before.user_s, 3),
        "system_s": round(after.system_s - before.system_s, 3),
        "cpu_s_per_million": round(cpu / published * 1e6, 4) if published else None,
        "cpu_s_per_million_deliveries": round(cpu / delivered * 1e6, 4) if delivered else None,
        "rss_start": before.rss,
        "rss_end": after.rss,
        "rss_peak": peak,
        "written": after.written - before.written,
    }


def rate(count: int, start_ns: int, end_ns: int) -> float:
    """Per second; 0 when it can't be told."""
    return round(count / (end_ns - start_ns) * 1e9, 1) if start_ns and end_ns > start_ns else 0.0
