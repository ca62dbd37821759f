"""The checker of the shared campaign: each rule has a story that breaks it, and one that only looks like it."""

from __future__ import annotations

from tools.faults.shared_checker import Seen, Sent, longest_gap_s, violations

ONE, TWO, THREE = (0, 1), (1, 1), (2, 1)


def story(*sent: Sent, seen: list[tuple[tuple[int, int], bool]], drained: list[tuple[int, int]] | None = None) -> list[str]:
    records = [Seen(key, redelivered, 0, 9.0) for key, redelivered in seen]
    return [found.split()[0].strip(":(),") for found in violations(sent, records, drained or [])]


def test_a_confirmed_message_that_nobody_saw_is_lost_and_another_one_is_not() -> None:
    assert story(Sent(ONE, 1, 2), Sent(TWO, 1, None), seen=[]) == ["lost"]
    assert story(Sent(ONE, 1, 2), seen=[(ONE, True)]) == []


def test_what_comes_twice_is_flagged_but_for_once() -> None:
    sent = Sent(ONE, 1, 2)
    assert story(sent, seen=[(ONE, False), (ONE, True), (ONE, True)]) == []
    assert len(story(sent, seen=[(ONE, False), (ONE, False)])) == 1


def test_a_message_that_was_never_sent_is_seen() -> None:
    assert len(story(seen=[(ONE, False)])) == 1


def test_enqueues_that_did_not_overlap_stand_in_their_order() -> None:
    early, late, beside = Sent(ONE, 1, 2), Sent(TWO, 3, 4), Sent(THREE, 1.5, 3.5)
    everything = [(ONE, False), (TWO, False), (THREE, False)]
    for drained in ([ONE, TWO, THREE], [ONE, THREE, TWO], [THREE, ONE, TWO]):
        assert story(early, late, beside, seen=everything, drained=drained) == []
    assert story(early, late, beside, seen=everything, drained=[TWO, THREE, ONE]) == ["swapped"]


def test_one_that_was_never_confirmed_may_stand_anywhere_before_what_came_later() -> None:
    doubtful, late = Sent(ONE, 1, None), Sent(TWO, 3, 4)
    assert story(doubtful, late, seen=[(ONE, False), (TWO, False)], drained=[TWO, ONE]) == []


def test_confirmed_messages_of_one_publisher_keep_their_order_while_many_are_under_way() -> None:
    first, second = Sent((0, 1), 1, 3), Sent((0, 2), 1, 3)
    both = [((0, 1), False), ((0, 2), False)]
    assert story(first, second, seen=both, drained=[(0, 1), (0, 2)]) == []
    assert story(first, second, seen=both, drained=[(0, 2), (0, 1)]) == ["order"]
    assert story(first, Sent((0, 2), 1, None), seen=both, drained=[(0, 2), (0, 1)]) == []


def test_a_consumer_gets_what_is_not_flagged_in_the_order_of_its_publisher() -> None:
    sent = [Sent((0, number), number, number + 0.5) for number in (1, 2)]
    assert story(*sent, seen=[((0, 2), False), ((0, 1), False)]) == ["order"]
    assert story(*sent, seen=[((0, 2), False), ((0, 1), True)]) == []
    other = [Seen((0, 2), False, 0, 9.0), Seen((0, 1), False, 1, 9.0)]
    assert violations(sent, other, []) == []


def test_the_longest_gap_counts_both_ends() -> None:
    assert longest_gap_s([3.0, 4.0], 0.0, 5.0) == 3.0
    assert longest_gap_s([], 0.0, 5.0) == 5.0
    assert longest_gap_s([1.0, 9.0], 0.0, 5.0) == 4.0
