"""The ledger of the campaign with queues that come and go sees what a wrong broker would do."""

from __future__ import annotations

import pytest

from tools.faults.churn import Ledger, Owner


def ledger(must: set[int] = frozenset(), may: set[int] = frozenset(), never: set[int] = frozenset()) -> Ledger:  # type: ignore[assignment]
    return Ledger(set(must), set(may), set(never))


@pytest.mark.parametrize(
    ("known", "found", "verdict"),
    [
        (ledger({1, 2}), [1, 2], []),
        (ledger({1, 2}, {3}), [1, 2, 3], []),
        (ledger({1, 2}, {3}), [1, 2], []),
        (ledger({1, 2}), [2], ["lost"]),
        (ledger({1}), None, ["lost", "lost"]),
        (ledger({3}, set(), {1, 2}), [1, 3], ["resurrected"]),
        (ledger({1}), [1, 9], ["phantom"]),
        (ledger({1}), [1, 1], ["duplicate"]),
    ],
)
def test_verdicts(known: Ledger, found: list[int] | None, verdict: list[str]) -> None:
    expected = verdict[:1] if found is None else verdict  # a queue that is gone is said once
    assert [text.partition(":")[0] for text in known.judge(found)] == expected


def test_a_purge_that_was_answered_is_never_taken_back_one_that_was_not_may_be() -> None:
    known = ledger({1, 2})
    known.emptying()
    assert known.judge([1]) == []
    known = ledger({1, 2})
    known.emptying()
    known.emptied()
    assert known.judge([1]) == ["resurrected: 1 was purged or deleted"]


def test_a_queue_whose_deletion_was_under_way_may_be_gone() -> None:
    known = ledger({1, 2})
    known.going = True
    known.emptying()
    assert known.judge(None) == []


def test_a_queue_that_nobody_could_declare_yet_is_not_missed_one_that_was_found_is() -> None:
    """A kill that comes before the first declare-ok, of a start on a slow machine, took nothing from anybody."""
    owner = Owner("q", 1, auto_delete=False)
    assert owner.ledger.judge(None) == []
    assert owner.ledger.judge(None) == []
    assert owner.ledger.judge([]) == []
    assert owner.ledger.judge(None) == ["lost: the queue itself is gone"]
