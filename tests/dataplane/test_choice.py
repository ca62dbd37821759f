"""Patterns of queue names."""

from __future__ import annotations

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from flintmq.dataplane.choice import matches


@given(st.text("ab*?.", max_size=8), st.text("ab.", max_size=8))
def test_patterns_are_stars_and_question_marks(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_takes_no_exponential_time() -> None:
    assert not matches("*a" * 100 + "b", "a" * 5_000)
    assert matches("[a]*", "[a]b"), "nothing but * and ? is special"
