"""The trace of passes: steps of its histograms."""

from __future__ import annotations

from itertools import pairwise

from flintmq.core.pass_trace import bound_ns


def test_steps_rise_and_are_an_eighth_wide() -> None:
    """Each step ends behind the one before, by an eighth of a power of two at most: a percentile is exact to 12.5 %."""
    ends = [bound_ns(step) for step in range(320)]
    assert ends == sorted(set(ends)) and ends[0] == 0
    assert all(after <= before * 1.13 for before, after in pairwise(ends[16:]))
    assert ends[-1] > 10**11
