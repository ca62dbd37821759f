"""What counts as a whole number, a number and a text, for everybody who checks values of somebody else."""

from __future__ import annotations

import pytest

from flintmq.arguments import is_number, is_text, is_whole


@pytest.mark.parametrize(("value", "whole", "number"), [(1, True, True), (1.0, False, True), (True, False, False), ("1", False, False)])
def test_numbers(value: object, whole: bool, number: bool) -> None:
    assert (is_whole(value), is_number(value)) == (whole, number)


def test_the_bounds_are_within() -> None:
    assert [value for value in (-1, 0, 5, 6, 10**400) if is_whole(value, 0, 5)] == [0, 5]
    assert is_whole(10**400, 1) and not is_whole(None) and not is_number(None)


def test_a_text_is_measured_in_bytes_of_utf_8() -> None:
    assert [text for text in ("", "é", "aé", "\ud800", b"a") if is_text(text, 1, 2)] == ["é"]
