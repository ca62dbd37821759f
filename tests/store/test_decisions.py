"""The decision table of recovery is total, unambiguous, and says what seed 003 says."""

from __future__ import annotations

from itertools import product

import pytest

from flintmq.store.decisions import ROWS, Content, Dequeue, Enqueue, Outcome, Queue, index, lookup, row_of

EVERYTHING = list(product(Content, Enqueue, Dequeue, (False, True), Queue))


def test_exactly_one_row_matches_every_combination() -> None:
    """Over the whole product of facts: one row matches, never none, never two."""
    for facts in EVERYTHING:
        assert sum(row.matches(*facts) for row in ROWS) == 1, facts


def test_every_row_is_needed() -> None:
    """Each row decides at least one combination, and says why in its own words."""
    assert {id(row_of(*facts)) for facts in EVERYTHING} == {id(row) for row in ROWS}
    assert len({row.why for row in ROWS}) == len(ROWS)


def test_the_lookup_is_the_table() -> None:
    """The bytes that compiled recovery uses: a place of its own for every combination, holding the row's outcome and number."""
    table = lookup()
    assert sorted(index(*facts) for facts in EVERYTHING) == list(range(len(table)))
    for facts in EVERYTHING:
        value = table[index(*facts)]
        assert ROWS[value >> 3] is row_of(*facts) and value & 7 == row_of(*facts).outcome


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.NONE, False, Queue.KNOWN), Outcome.LIVE),
        ((Content.PRESENT, Enqueue.COMMITTED, Dequeue.NONE, False, Queue.KNOWN), Outcome.LIVE),
        ((Content.PRESENT, Enqueue.OPEN, Dequeue.NONE, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.ROLLED_BACK, Dequeue.NONE, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.PREPARED, Dequeue.NONE, False, Queue.KNOWN), Outcome.PENDING),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.OPEN, False, Queue.KNOWN), Outcome.LIVE),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.ROLLED_BACK, False, Queue.KNOWN), Outcome.LIVE),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.COMMITTED, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.PREPARED, False, Queue.KNOWN), Outcome.HELD),
        ((Content.PRESENT, Enqueue.UNKNOWN, Dequeue.NONE, True, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.UNKNOWN, Dequeue.PLAIN, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.UNKNOWN, Dequeue.NONE, False, Queue.KNOWN), Outcome.LOST),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.UNKNOWN, False, Queue.KNOWN), Outcome.LOST),
        ((Content.DAMAGED, Enqueue.PLAIN, Dequeue.NONE, False, Queue.KNOWN), Outcome.LOST),
        ((Content.BELOW_BASE, Enqueue.PLAIN, Dequeue.NONE, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.TORN, Enqueue.PLAIN, Dequeue.NONE, False, Queue.KNOWN), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.NONE, False, Queue.GONE), Outcome.ENDED),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.NONE, False, Queue.ABOVE), Outcome.REFUSE),
        ((Content.PRESENT, Enqueue.PLAIN, Dequeue.PLAIN, True, Queue.ABOVE), Outcome.REFUSE),
    ],
)
def test_the_seed_cases(facts: tuple, outcome: Outcome) -> None:
    """The cases that seed 003 and its recovery notes name have the outcome they name."""
    assert row_of(*facts).outcome == outcome
