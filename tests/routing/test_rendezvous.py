"""Weighted rendezvous hashing: shares follow the weights, a change moves just the keys that it must, the choice is the same for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.routing.rendezvous import Rendezvous

_CHANCE = random.Random(7)
KEYS = [_CHANCE.getrandbits(64) for _ in range(20_000)]


def places(weights: list[int]) -> Rendezvous:
    made = Rendezvous()
    for number, weight in enumerate(weights):
        made.add(0x1234567 * (number + 1), weight)
    return made


# The value that chi-square exceeds with probability 0.0001, by degrees of freedom: the keys above are fixed, so this either holds or not.
CHI_SQUARE_MAX = {2: 18.42, 4: 23.51, 9: 33.72, 63: 111.1}


@pytest.mark.parametrize("weights", [[1] * 10, [1, 2, 3, 4, 10], [1, 1, 1000], [3] * 64], ids=str)
def test_shares_follow_the_weights(weights: list[int]) -> None:
    made = places(weights)
    counts = [0] * len(weights)
    for key in KEYS:
        counts[made.choose(key)] += 1
    expected = [len(KEYS) * weight / sum(weights) for weight in weights]
    distance = sum((count - wanted) ** 2 / wanted for count, wanted in zip(counts, expected, strict=True))
    assert distance < CHI_SQUARE_MAX[len(weights) - 1], counts


def test_keys_in_a_row_are_spread_as_evenly_as_any() -> None:
    made = places([1] * 10)
    counts = [0] * 10
    for key in range(20_000):
        counts[made.choose(key)] += 1
    assert sum((count - 2000) ** 2 / 2000 for count in counts) < CHI_SQUARE_MAX[9]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12), st.data())
def test_a_place_that_goes_moves_only_its_keys_and_one_that_comes_only_takes(weights: list[int], data: st.DataObject) -> None:
    made = places(weights)
    before = [made.choose(key) for key in KEYS[:500]]
    gone = data.draw(st.integers(0, len(weights) - 1))
    made.remove(gone)
    last = len(weights) - 1  # it has the number of the one that went
    for key, chosen in zip(KEYS, before, strict=False):
        if chosen != gone:
            assert made.choose(key) == (gone if chosen == last else chosen)
    made.add(0x1234567 * (gone + 1), weights[gone])
    names = {gone: last} | ({last: gone} if last != gone else {})
    assert [made.choose(key) for key in KEYS[:500]] == [names.get(chosen, chosen) for chosen in before]


def test_more_weight_only_takes_keys_and_less_only_gives() -> None:
    made = places([2, 2, 2])
    before = [made.choose(key) for key in KEYS[:3000]]
    made.set_weight(1, 3)
    after = [made.choose(key) for key in KEYS[:3000]]
    assert all(now in (then, 1) for then, now in zip(before, after, strict=True)) and before != after
    made.set_weight(1, 2)
    assert [made.choose(key) for key in KEYS[:3000]] == before


def test_the_choice_never_changes_between_versions() -> None:
    made = places([1, 2, 3])
    assert [made.choose(key) for key in (0, 1, 2, 2**63, 2**64 - 1, 12345, 67890, 424242)] == EXPECTED


EXPECTED = [1, 1, 2, 1, 2, 2, 2, 1]


def test_no_place_and_wrong_numbers() -> None:
    made = Rendezvous()
    assert made.choose(1) == -1 and len(made) == 0
    for call in (lambda: made.remove(0), lambda: made.set_weight(0, 1)):
        with pytest.raises(IndexError):
            call()
