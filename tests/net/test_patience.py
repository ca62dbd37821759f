"""A loop polls only where requests come one by one and at once, and what it polls in vain is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flintmq.net.patience import Patience

POLL_US = 50
SHORT, LONG = 20_000, 51_000
LEAST, MOST = 16, 16384


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
    short_waits(patience, 4 * LEAST)
    assert patience.needed == LEAST


@given(st.lists(st.booleans(), max_size=60))
def test_a_poll_in_vain_is_paid_for_with_short_waits(rounds: list[bool]) -> None:
    """However the waits end: before each poll in vain there were `needed` short ones, and in vain after in vain that doubles."""
    patience = Patience(POLL_US)
    for pays in rounds:
        needed, count = patience.needed, 0
        while not patience.polls(SHORT):
            patience.waited(SHORT, False)
            count += 1
        assert count in (0, needed)
        if pays:
            patience.waited(SHORT, False)
            continue
        patience.waited(LONG, True)
        assert patience.needed == min(2 * needed, MOST)
        assert not patience.polls(SHORT)
