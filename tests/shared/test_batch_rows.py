"""Rows of subscriptions and of parts of sets; what becomes of a part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.shared.batch_rows import Fate, PartRow, SealedSet, Subscription, fate, name_key, names_of, runs_max
from flintmq.shared.batches import committed, given_back

SUBSCRIPTION = Subscription("/", "s", "user", "1", ("a", "b"), 0)


@given(st.lists(st.integers(1, 40), unique=True))
def test_a_part_has_its_messages_in_the_order_in_which_they_were_added(positions: list[int]) -> None:
    part = PartRow(3, 1)
    for position in positions:
        part.add(position, 10)
    read = PartRow.unpack(part.pack())
    assert list(read.positions()) == positions
    assert (read.seq, read.round, read.count, read.size) == (3, 1, len(positions), 10 * len(positions))
    assert len(part.runs) <= runs_max(len(part.pack()))


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(24), PartRow(1, 0, [(1, 1)]).pack()[:-1], PartRow(1, 0).pack() + b"x"])
def test_a_damaged_row_of_a_part_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        PartRow.unpack(value)


def test_a_subscription_comes_back_as_it_was_byte_by_byte() -> None:
    sealed = SealedSet(8, 2, 5, {"b": (2, 30)}, 3, True)
    whole = replace(SUBSCRIPTION, sealed=sealed, last={"a": (7, 1)}, drain={"a": 4}, names={"a": "q"}, is_deleted=True)
    for one in (SUBSCRIPTION, whole):
        assert Subscription.unpack(one.pack()) == one
        assert Subscription.unpack(one.pack()).pack() == one.pack()


def test_names_of_one_virtual_host_stand_together() -> None:
    begin, end = names_of("a")
    assert begin <= name_key("a", "x") < end
    for vhost, name in (("ab", "x"), ("", "ax"), ("b", "")):
        assert not begin <= name_key(vhost, name) < end
        assert names_of()[0] <= name_key(vhost, name) < names_of()[1]


STEPS = st.lists(st.sampled_from(["seal", "seal a", "commit", "give back", "queues a", "queues ab", "delete"]), max_size=12)


@given(STEPS)
def test_a_part_that_ends_or_goes_back_does_so_for_ever(steps: list[str]) -> None:
    """B2: whatever becomes of its subscription, until another set has messages of the same queue, which waits for this part's end (B3)."""
    one = SUBSCRIPTION
    part, verdict = PartRow(1, 0), Fate.WAITS
    for step in steps:
        match step.split():
            case ["seal", *queues] if one.sealed is None:
                members = queues or [queue for queue in one.queues if verdict is Fate.WAITS or queue != "b"]
                one = replace(one, sealed=SealedSet(one.committed + 1, one.round, 0, dict.fromkeys(members, (1, 1))))
            case ["commit"] if one.sealed is not None:
                one = committed(one, one.sealed.seq)
            case ["give", "back"]:
                one = given_back(one)
            case ["queues", queues] if set(queues) != set(one.queues):
                one = replace(one, queues=tuple(queues), round=one.round + (one.sealed is None))
            case ["delete"]:
                one = replace(given_back(one), is_deleted=True)
        now = fate(one, "b", part)
        assert verdict is Fate.WAITS or now is verdict, step
        verdict = now
