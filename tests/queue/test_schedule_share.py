"""What one user's messages are of a schedule: never less than wait, and not for much longer than they wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.core.clock import stand_at
from flintmq.core.memory_account import bytes_by_kind
from flintmq.queue.schedule_share import ScheduleShare
from tests.support.standing import StandingClock


@pytest.fixture
def clock() -> Iterator[StandingClock]:
    with StandingClock() as standing:
        yield standing


DELAYS = st.one_of(st.integers(1, 40), st.integers(41, 5_000), st.integers(5_001, 3_600_000), st.integers(3_600_001, 2**32 - 1))
STEPS = st.lists(st.tuples(DELAYS, st.integers(0, 1_000), st.one_of(st.just(0), DELAYS)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_message_counts_until_its_time_and_a_sixteenth_longer_at_most(steps: list[tuple[int, int, int]]) -> None:
    with StandingClock() as clock:
        share, sent = ScheduleShare(), []
        for delay, size, pause in steps:
            now = clock.wall_ms()
            share.note(now + delay, size)
            sent.append((now + delay, now + delay + max(delay // 16, 16), size))
            clock.advance(ms=pause)
            now = clock.wall_ms()
            messages, total = share.figures()
            waits = [size for due, _, size in sent if due > now]
            may = [size for _, over, size in sent if over > now]
            assert len(waits) <= messages <= len(may)
            assert sum(waits) <= total <= sum(may)
        clock.advance(ms=2**33)
        assert share.figures() == (0, 0)


def test_at_the_limit_none_is_taken_until_some_are_due(clock: StandingClock) -> None:
    share = ScheduleShare()
    share.limit(3, 1_000)
    for delay in (100, 5_000, 5_000):
        assert share.takes(10)
        share.note(clock.wall_ms() + delay, 10)
    assert not share.takes(10)
    clock.advance(ms=116)
    assert share.takes(980) and not share.takes(981)
    share.note(clock.wall_ms() + 50, 980)
    share.limit(10, 1_000)
    assert share.takes(0) and not share.takes(1)
    share.forget()
    assert share.takes(1_000) and share.figures() == (0, 0)


def test_what_is_due_already_does_not_count_and_the_memory_comes_back(clock: StandingClock) -> None:
    before = bytes_by_kind()["entries"]
    share = ScheduleShare()
    share.note(clock.wall_ms(), 5)
    assert share.figures() == (0, 0) and not share.known() and bytes_by_kind()["entries"] == before
    for bit in range(33):
        share.note(clock.wall_ms() + 2**bit, 5)
    assert share.figures() == (33, 165) and before < bytes_by_kind()["entries"] <= before + 29 * 64 * 24
    del share
    assert bytes_by_kind()["entries"] == before


def test_a_clock_that_is_set_back_leaves_nothing_behind_for_ever(clock: StandingClock) -> None:
    share, now = ScheduleShare(), clock.wall_ms()
    for number in range(100):
        stand_at(now - 977 * number)
        share.note(now - 977 * number + 1_000, 1)
    stand_at(now + 2_000)
    assert share.figures() == (0, 0)
