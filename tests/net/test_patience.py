"""A loop polls only where requests come one by one and at once, and what it polls in vain is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flintmq.net.patience import Patience

POLL_US = 50
SHORT, LONG = 20_000, 101_000
LEAST, MOST = 16, 1024


def short_waits(patience: Patience, count: int) -> None:
    for _ in range(count):
        patience.polls(SHORT)
        patience.waited(SHORT, False)


def test_it_polls_after_so_many_short_waits_in_a_row() -> None:
    patience = Patience(POLL_US)
    short_waits(patience, LEAST - 1)
    assert not patience.polls(SHORT)
    short_waits(patience, 1)
    assert patience.polls(SHORT)
    short_waits(patience, 1000)
    assert patience.polls(SHORT)


def test_a_paced_client_is_never_polled_for() -> None:
    patience = Patience(POLL_US)
    for _ in range(100):
        short_waits(patience, LEAST - 1)
        assert not patience.polls(SHORT)
        patience.waited(LONG, False)


def test_events_that_are_there_already_are_no_reason_to_poll() -> None:
    patience = Patience(POLL_US)
    for _ in range(100):
        patience.waited(600, False)
    assert not patience.polls(SHORT)


def test_a_loop_with_much_work_does_not_poll() -> None:
    patience = Patience(POLL_US)
    short_waits(patience, 2 * LEAST)
    assert not patience.polls(LONG)
    assert not patience.polls(SHORT)


def test_no_time_is_no_poll() -> None:
    patience = Patience(0)
    for _ in range(100):
        assert not patience.polls(0)
        patience.waited(1, False)


def test_polls_that_pay_bring_back_what_a_poll_in_vain_took() -> None:
    patience = Patience(POLL_US)
    short_waits(patience, LEAST)
    patience.waited(LONG, True)
    assert patience.needed == 2 * LEAST
    short_waits(patience, 2 * LEAST + LEAST)
    assert patience.needed == LEAST


def test_one_in_vain_among_many_that_pay_changes_nothing() -> None:
    patience = Patience(POLL_US)
    for _ in range(10):
        short_waits(patience, 2 * LEAST)
        assert patience.polls(SHORT)
        patience.waited(LONG, True)
    assert patience.needed == LEAST


@given(st.lists(st.booleans(), max_size=200))
def test_a_poll_in_vain_is_paid_for(rounds: list[bool]) -> None:
    """However the polls end: one in vain comes after `needed` short waits, and `needed` doubles unless enough polls paid before it."""
    patience = Patience(POLL_US)
    paid = 0
    for pays in rounds:
        needed, count = patience.needed, 0
        while not patience.polls(SHORT):
            patience.waited(SHORT, False)
            count += 1
        assert count in (0, needed)
        if pays:
            patience.waited(SHORT, False)
            paid += 1
            continue
        patience.waited(LONG, True)
        assert patience.needed == (needed if paid >= LEAST else min(2 * needed, MOST))
        assert not patience.polls(SHORT)
        paid = 0
