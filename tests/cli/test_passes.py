"""`flintmq perf trace`: percentiles and tables of a report."""

from __future__ import annotations

from typing import Any

from flintmq.cli.passes import percentile, tables


def test_a_percentile_is_the_end_of_the_step_that_reaches_it() -> None:
    """Of 100 passes half are at the first step, and the longest is at the last one."""
    steps = [(10, 50), (20, 49), (1000, 1)]
    assert [percentile(steps, share) for share in (0.5, 0.51, 0.99, 0.999, 1.0)] == [10, 20, 20, 1000, 1000]
    assert percentile([], 0.5) == 0


def _thread(name: str) -> dict[str, Any]:
    one = {"began_ns": 1, "total_ns": 50_000, "late_ns": 7_000, "delayed_ns": 0, "faults": 3, "slept": 1, "preempted": 2}
    phases = {"wait": 9_000_000, "read": 30_000, "log": 20_000, "deliver": 999, "send": 0, "gil": 0, "python": 0, "rest": 0}
    times = {"pass": [(40_000, 9), (50_000, 1)], "late": [(0, 9), (7_000, 1)], "gil": [(0, 10)]}
    return {"name": name, "passes": 10, "times": times, "longest": [{**one, "phases": phases}]}


def test_the_table_has_each_thread_with_its_own_words() -> None:
    """A phase is named by what its thread does in it; one that took no time has no line; the longest pass says what it was spent with."""
    lines = tables({"threads": [_thread("loop"), _thread("log writer")]})
    assert [line for line in lines if "passes" in line] == ["loop 0: 10 passes; us", "log writer: 10 passes; us"]
    (whole, _) = [line.split() for line in lines if line.startswith("a whole pass")]
    assert whole[-4:] == ["40.0", "50.0", "50.0", "50.0"]
    assert not any("interpreter" in line for line in lines)
    longest = [line for line in lines if "read 30.0, log 20.0" in line]
    assert len(longest) == 2 and longest[0].split()[:6] == ["7.0", "50.0", "0.0", "3", "1", "2"]
