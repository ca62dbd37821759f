"""The uint64 -> uint64 table behaves like a dict, whatever the order of puts and removes and however keys collide."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drivers.tables import Map64

MAX = (1 << 64) - 1
KEYS = st.one_of(st.integers(1, 40), st.integers(1, MAX), st.integers(1, 64).map(lambda n: n << 32))
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "remove", "get"]), KEYS, st.integers(0, MAX)), max_size=300)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_it_behaves_like_a_dict(steps: list[tuple[str, int, int]]) -> None:
    """Every answer and the content after every run equal those of a dict."""
    table, model = Map64(), {}
    for step, key, value in steps:
        if step == "put":
            assert table.put(key, value)
            model[key] = value
        elif step == "remove":
            assert table.remove(key) == (model.pop(key, None) is not None)
        else:
            assert table.get(key) == model.get(key)
        assert len(table) == len(model)
    assert sorted(table.items()) == sorted(model.items())
    assert all(table.get(key) == value for key, value in model.items())


def test_removing_from_a_full_run_keeps_the_others_findable() -> None:
    """Backward shift: with all keys in one run that wraps around the end, each removal leaves exactly the rest."""
    probe = Map64()
    probe.put(1, 0)
    wrapping = [key for key in range(1, 4000) if probe.home(key) in (14, 15)][:10]
    for gone in wrapping:
        table = Map64()
        for key in wrapping:
            table.put(key, key * 3)
        assert table.remove(gone) and not table.remove(gone)
        assert sorted(table.items()) == sorted((key, key * 3) for key in wrapping if key != gone)
        assert all(table.get(key) == (None if key == gone else key * 3) for key in wrapping)


def test_growing_keeps_everything() -> None:
    """100,000 ascending keys as LSNs are: all found again with their values after many growths, and none besides."""
    table = Map64()
    for n in range(1, 100_001):
        table.put(n * 152, n)
    assert len(table) == 100_000
    assert all(table.get(n * 152) == n for n in range(1, 100_001))
    assert table.get(151) is None


def test_key_zero_is_refused() -> None:
    """Key 0 marks free places: it is neither stored nor found nor removed."""
    table = Map64()
    assert not table.put(0, 1) and table.get(0) is None and not table.remove(0)
    table.put(5, 6)
    assert not table.put(0, 1) and table.get(0) is None and not table.remove(0) and len(table) == 1


@pytest.mark.parametrize("count", [0, 1, 12, 13, 1000])
def test_reserve_keeps_content_and_clear_empties(count: int) -> None:
    """Reserving room changes nothing that is seen; clear leaves an empty, usable table."""
    table = Map64()
    table.put(7, 8)
    assert table.reserve(count) and table.items() == [(7, 8)]
    table.clear()
    assert len(table) == 0 and table.get(7) is None
    assert table.put(7, 9) and table.get(7) == 9


@given(STEPS, STEPS, st.sampled_from([1, 2, 8, 64]))
@settings(max_examples=200, deadline=None)
def test_a_walk_in_pieces_meets_all_that_stay(
    before: list[tuple[str, int, int]], meanwhile: list[tuple[str, int, int]], pieces: int
) -> None:
    """Puts and removals between the pieces, growth among them: a key that stays is met once, none is met twice."""
    table, model = Map64(), {}
    for step, key, value in before:
        if step == "put":
            table.put(key, value)
            model[key] = value
    stays = set(model)
    met: list[int] = []
    mask = 1023
    width = (mask + 1) // pieces
    changes = iter(meanwhile)
    for piece in range(pieces):
        met += [key for key, _ in table.slice(mask, piece * width, (piece + 1) * width)]
        for step, key, value in [change for change in (next(changes, None) for _ in range(20)) if change]:
            if step == "put":
                table.put(key, value)
            elif step == "remove":
                table.remove(key)
                stays.discard(key)
    assert stays <= set(met) and len(met) == len(set(met))
