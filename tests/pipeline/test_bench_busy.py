"""The share of the cores that bench/pipeline.py tells is that of the batches whose rate it tells: start and end of a run are not in it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench.pipeline_rows import Metered, steady_busy, steady_rate
from bench.spark_parts import spent

# A query of 40 s: nothing runs for 10 s, then the first batch (10 s, one core), then two more (10 s each, two cores).
LOOKS = [(1000.0, 5.0), (1010.0, 5.0), (1020.0, 15.0), (1040.0, 55.0)]


def batch(begin: float, seconds: float) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(begin, UTC).isoformat().replace("+00:00", "Z")
    return {"timestamp": stamp, "numInputRows": 100, "durationMs": {"triggerExecution": seconds * 1e3}}


def test_cpu_between_two_times_is_interpolated() -> None:
    """What was used between two looks is spread evenly; outside of them nobody knows."""
    assert spent(LOOKS, 1010.0, 1020.0) == pytest.approx(10)
    assert spent(LOOKS, 1005.0, 1015.0) == pytest.approx(5)
    assert spent(LOOKS, 1000.0, 1040.0) == pytest.approx(50)
    for begin, end in ((999.0, 1020.0), (1010.0, 1041.0)):
        with pytest.raises(ValueError, match="nobody looked"):
            spent(LOOKS, begin, end)


@pytest.mark.parametrize(("batches", "cores", "rate"), [([(1010, 10), (1020, 10), (1030, 10)], 2.0, 10), ([(1010, 10)], 1.0, 10)])
def test_busy_and_rate_are_of_the_same_batches(batches: list[tuple[float, float]], cores: float, rate: float) -> None:
    """All but the first one, unless it is the only one."""
    told = [batch(begin, seconds) for begin, seconds in batches]
    assert steady_rate(told) == pytest.approx(rate)
    assert steady_busy(told, Metered(looks=LOOKS)) == pytest.approx(cores / (os.cpu_count() or 1))
