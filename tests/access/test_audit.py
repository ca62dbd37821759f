"""Lines of the log that peers cause are bounded for each of them, and what is left out is said."""

from __future__ import annotations

from flintmq.access.audit import LineBound
from flintmq.clock import ManualClock


def test_each_cause_has_its_lines_and_the_next_one_says_what_was_left_out() -> None:
    clock = ManualClock()
    bound, said = LineBound(clock, 3, 100), []

    def say(text: str, *values: object) -> None:
        said.append(text % values)

    for number in range(10):
        bound.say(say, "eve", "line %d", number)
    bound.say(say, "ann", "hers")
    assert said == ["line 0", "line 1", "line 2", "hers"] and bound.left_out_total == 7
    clock.advance(ms=1_000)
    bound.say(say, "eve", "line %d", 10)
    assert said[-1] == "line 10 (7 more lines about 'eve' were left out)"


def test_causes_that_are_counted_are_bounded() -> None:
    """The one unused for longest makes room: names that nobody uses twice take no memory."""
    bound = LineBound(ManualClock(), 1, 2)
    assert [bound.take(cause) for cause in ("a", "b", "a", "c", "a", "b")] == [0, 0, None, 0, None, 0]


def test_a_longer_time() -> None:
    clock = ManualClock(monotonic_ns=20_000_000_000)  # the times begin at multiples of ten seconds
    bound = LineBound(clock, 1, 10, seconds=10)
    assert bound.take("a") == 0
    clock.advance(ms=9_000)
    assert bound.take("a") is None
    clock.advance(ms=1_000)
    assert bound.take("a") == 1
