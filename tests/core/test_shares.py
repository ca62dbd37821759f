"""core/shares: whoever asks, and however many, something is left for who comes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.core.memory_account import bytes_by_kind
from flintmq.core.shares import Pool, Who


def fill(pool: Pool, who: Who) -> int:
    count = 0
    while pool.take(who):
        count += 1
    return count


def test_one_alone_has_its_share_and_more_have_less() -> None:
    assert fill(Pool(100, 0.5, 1.0), Who("a", "1")) == 50
    pool = Pool(100, 0.5, 1.0)
    for _ in range(100):
        for user in ("a", "b"):
            pool.take(Who(user, "1"))
    assert pool.of_user("a") == pool.of_user("b") == 33


@given(users=st.integers(1, 15), limit=st.integers(100, 600))
def test_fifteen_users_do_not_fill_it(users: int, limit: int) -> None:
    pool = Pool(limit, 0.5, 0.75)
    for number in range(users):
        fill(pool, Who(f"u{number}", f"{number}"))
    assert pool.take(Who("newcomer", "elsewhere")) is not None


def test_a_source_without_a_login_leaves_room() -> None:
    pool = Pool(100, 0.5, 0.75)
    assert fill(pool, Who("", "stranger")) == 75
    assert fill(pool, Who("", "other")) > 0
    assert pool.take(Who("guest", "stranger")) is not None  # somebody else behind the same address has one


def test_who_has_nothing_gets_the_last_one() -> None:
    pool = Pool(2, 0.5, 0.75)
    first = pool.take(Who("a", "1"))
    assert first is not None and pool.take(Who("a", "1")) is None
    assert pool.take(Who("b", "1")) is not None and pool.take(Who("c", "2")) is None and pool.refused == 2
    first.release()
    first.release()
    assert pool.held == 1 and pool.take(Who("c", "2")) is not None


def test_one_user_of_a_broker_may_have_all() -> None:
    pool = Pool(10, 0.5, 0.5, None, lambda: True)
    assert fill(pool, Who("guest", "1")) == 10
    assert Pool(10, 0.5, 0.5, None, lambda: True).take(Who("", "1"), 6) is None  # nobody yet


def test_a_holding_grows_while_there_is_room_and_is_in_the_account() -> None:
    before = bytes_by_kind()["input"]
    pool = Pool(1_000, 0.5, 1.0, "input")
    with pytest.raises(ZeroDivisionError):
        with pool.take(Who("a", "1"), 400) as holding:  # type: ignore[union-attr]
            assert holding.grow(100) and not holding.grow(1)
            assert bytes_by_kind()["input"] - before == pool.held == 500
            raise ZeroDivisionError
    assert bytes_by_kind()["input"] == before and pool.held == 0
