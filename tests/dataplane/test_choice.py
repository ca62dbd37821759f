"""Patterns of subscriptions."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.patterns import matches_glob as matches


def _matches(pattern: str, name: str) -> bool:
    """The definition: * stands for any characters, ? for one."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(_matches(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and _matches(pattern[1:], name[1:])


@given(st.text("ab.?*[\n", max_size=7), st.text("ab.[\n", max_size=8))
def test_a_pattern_matches_what_it_says(pattern: str, name: str) -> None:
    assert matches(pattern, name) == _matches(pattern, name)


def test_a_hostile_pattern_runs_no_python_for_each_character() -> None:
    """A look asks it of each queue of the virtual host."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    patterns = ["*" + "a" * 126 + "b", "*a" * 126 + "b", "*?" * 126 + "b"]
    assert not any(matches(pattern, "a" * 254) for pattern in patterns)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = [matches(pattern, "a" * 254) for pattern in patterns]
    finally:
        sys.settrace(before)
    assert not any(found) and lines < 30
