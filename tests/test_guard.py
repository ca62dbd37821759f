"""A loop over many objects goes past the one that fails, counts it, and the log is not flooded."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flintmq.guard import Guard


def boom(text: str) -> None:
    raise ValueError(text)


def test_one_failure_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    guard = Guard(10, lambda: now[0])
    done: list[int] = []
    with caplog.at_level(logging.ERROR, "flintmq.guard"):
        for number in range(10):
            assert guard.run("place", number, boom if number % 2 else done.append, number) is (number % 2 == 0)
        assert done == [0, 2, 4, 6, 8]
        assert guard.counts == {"place": 5}
        assert [one.getMessage() for one in caplog.records] == ["place: 1 failed, the others go on"]
        now[0] += 10
        guard.run("place", "x", boom, "again")
        guard.run("other", "y", boom, "first there")
    assert [one.getMessage() for one in caplog.records][1:] == [
        "place: x failed, the others go on (4 more like it were not logged)",
        "other: y failed, the others go on",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_no_failure(error: Any) -> None:
    def end() -> None:
        raise error

    with pytest.raises(error):
        Guard().run("place", "x", end)
