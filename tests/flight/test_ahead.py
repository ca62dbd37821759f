"""Reading ahead changes neither items nor order nor errors, is bounded, and ends with its taker; what the taker has is passed over."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.flight.ahead import ahead, behind
from tests.support.broker import wait_until


class Source:
    """Counts; fails at `bad`. Attributes: made, closed."""

    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad
        self.made = 0
        self.closed = threading.Event()

    def items(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                if number == self.bad:
                    raise KeyError(number)
                self.made += 1
                yield number
        finally:
            self.closed.set()


@given(st.integers(0, 20), st.integers(1, 4), st.integers(-1, 20))
def test_items_order_and_errors_stay(count: int, depth: int, bad: int) -> None:
    """All items before the error, then the error; all items, then the end."""
    source, got = Source(count, bad), []
    fails = 0 <= bad < count
    try:
        for item in ahead(source.items(), depth):
            got.append(item)
    except KeyError:
        assert fails
    else:
        assert not fails
    assert got == list(range(bad if fails else count))
    assert source.closed.wait(60)


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_and_one(depth: int) -> None:
    """With one item taken, depth wait and one more is made; a taker that leaves closes the source."""
    source = Source(1000)
    taker: Any = ahead(source.items(), depth)
    assert next(taker) == 0
    wait_until(lambda: source.made == depth + 2, what="as many as fit are made")
    taker.close()
    assert source.closed.wait(60)
    assert source.made <= depth + 3


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 30))
def test_rows_behind_what_the_taker_has(sizes: list[int], skip: int) -> None:
    """Every row but the first `skip`, in order, in no batch that is empty; the source is closed, also when the taker leaves early."""
    closed = threading.Event()

    def batches() -> Generator[Any, None, None]:
        at = 0
        try:
            for size in sizes:
                yield pa.record_batch({"n": list(range(at, at + size))})
                at += size
        finally:
            closed.set()

    got = [batch.column("n").to_pylist() for batch in behind(batches(), skip)]
    assert [row for rows in got for row in rows] == list(range(skip, sum(sizes)))
    assert all(got) and closed.is_set()
    closed.clear()
    taker = behind(batches(), skip)
    if next(taker, None) is not None:
        assert not closed.is_set()
        taker.close()
    assert closed.is_set()
