"""An id that is in use is not given out, also after all 2^32 ids had their turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.drivers.tables import OwnerIds

LAST = 2**32 - 1


def test_ids_rise_and_zero_is_the_brokers() -> None:
    ids = OwnerIds(LAST - 1)
    assert [ids.take(), ids.take(), ids.take()] == [LAST, 1, 2]


def test_an_id_in_use_is_passed_over_after_the_wrap() -> None:
    ids = OwnerIds()
    old = [ids.take() for _ in range(3)]
    ids.give_back(old[1])
    ids.set_last(LAST)
    assert [ids.take(), ids.take()] == [2, 4]


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=60), st.integers(LAST - 10, LAST))
def test_no_two_users_have_one_id(steps: list[int | None], last: int) -> None:
    ids = OwnerIds(last)
    used: list[int] = []
    for step in steps:
        if step is None or not used:
            fresh = ids.take()
            assert fresh not in used
            assert fresh != 0
            used.append(fresh)
        else:
            ids.give_back(used.pop(step % len(used)))
        ids.set_last(last)
