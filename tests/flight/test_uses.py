"""The service rests once after its last transfer, never during one, and then keeps nothing for the next."""

from __future__ import annotations

from flintmq.flight.batches import Readers
from flintmq.flight.uses import Uses


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_service_that_was_never_used_has_nothing_to_rest_from() -> None:
    clock = Clock()
    uses = Uses(clock)
    clock.s += 1_000
    assert not uses.over(2)


def test_it_rests_once_after_each_last_transfer() -> None:
    clock = Clock()
    uses = Uses(clock)
    for _ in range(2):
        with uses:
            clock.s += 5
        assert not uses.over(2), "it has just ended"
        clock.s += 2
        assert uses.over(2)
        assert not uses.over(2), "there is nothing more to give back"


def test_a_transfer_that_runs_is_no_rest_however_long() -> None:
    clock = Clock()
    uses = Uses(clock)
    with uses:
        with uses:
            clock.s += 60
        clock.s += 60
        assert not uses.over(2), "the outer one runs"
    assert not uses.over(2)
    clock.s += 2
    assert uses.over(2)


def test_a_transfer_that_fails_has_ended() -> None:
    clock = Clock()
    uses = Uses(clock)
    try:
        with uses:
            raise ValueError
    except ValueError:
        clock.s += 2
    assert uses.over(2)


def test_readers_that_were_closed_are_made_anew() -> None:
    class Reader:
        closed = False

        def close(self) -> None:
            self.closed = True

    readers = Readers(Reader, 2)
    first = readers.take()
    readers.give_back(first)
    assert readers.take() is first
    readers.give_back(first)
    readers.close()
    assert first.closed
    second = readers.take()
    assert second is not first and not second.closed
