"""Who may work in the service: shares, order, and what those are told who find no place."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.flight.line import COUNTED_S, FIRST_S, SOONER, Line, Lines, Pass, Turn
from flintmq.flight.plane_error import PlaneError
from tests.support.broker import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def line_of(most: int, clock: Callable[[], float] | None = None, **limits: Any) -> Line:
    """Nobody stands in line unless the test says for how long."""
    changed = Limits(**{"flight_line_ms": 0, **limits})
    return Line("calls", most, changed) if clock is None else Line("calls", most, changed, clock)


def entered(line: Line, user: str, query: str, most: int = 1000) -> list[Pass]:
    """As many places as it gets."""
    found: list[Pass] = []
    while len(found) < most:
        try:
            found.append(line.enter(user, query))
        except PlaneError as error:
            assert error.code == "BUSY" and error.wait_ms > 0
            break
    return found


def test_a_query_leaves_places_for_others_and_a_user_too() -> None:
    """However many tasks a query has, another query finds a place at once; however many queries a user has, another user does."""
    line = line_of(16)
    assert len(entered(line, "ann", "large")) == 8
    assert entered(line, "ann", "small", 2)
    for number in range(100):
        entered(line, "ann", f"query {number}")
    assert line.running == 12
    assert len(entered(line, "ben", "q", 2)) == 2
    alone = line_of(1)
    assert len(entered(alone, "ann", "q")) == 1


def test_places_come_back_once() -> None:
    line = line_of(4)
    for _ in range(100):
        for one in entered(line, "ann", "q"):
            one.release()
            one.release()
    assert line.running == 0 and not line._in._users and not line._in._queries


class Waiters:
    """Threads that stand in a line, in the order in which they were added. entered: names, as they got their place."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.entered: list[str] = []
        self.passes: list[Pass] = []
        self._threads: list[threading.Thread] = []

    def add(self, user: str, query: str, name: str, goes_on: bool = False) -> None:
        before = self._line._waiting.taken

        def wait() -> None:
            one = self._line.enter(user, query, goes_on)
            self.entered.append(name)
            self.passes.append(one)

        thread = threading.Thread(target=wait)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: self._line._waiting.taken > before, what=f"{name} stands in line")

    def let(self, one: Pass) -> str:
        """Gives a place back. Returns: who got it."""
        count = len(self.entered)
        one.release()
        wait_until(lambda: len(self.passes) > count, what="the next one is in")
        return self.entered[count]

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)


def test_users_and_queries_get_places_in_turn_and_those_that_go_on_first() -> None:
    """One user with two queries and one with one: user by user, query by query, the first of each first."""
    line = line_of(1, flight_line_ms=60_000, flight_line_max=1_000)
    (first,) = entered(line, "ann", "x", 1)
    waiters = Waiters(line)
    for name in ("a1", "a2", "a3"):
        waiters.add("ann", "a", name)
    waiters.add("ann", "b", "b1")
    waiters.add("ben", "c", "c1")
    waiters.add("ben", "c", "c2 goes on", goes_on=True)
    order = [waiters.let(first)]
    while len(order) < 6:
        order.append(waiters.let(waiters.passes[-1]))
    assert order == ["a1", "c2 goes on", "b1", "c1", "a2", "a3"]
    waiters.passes[-1].release()
    waiters.join()
    assert line.running == 0 and not line._users and line._waiting.taken == 0


def test_a_free_place_is_not_kept_for_those_who_may_not_have_it() -> None:
    """A query at its limit waits; another one, that comes later, does not wait behind it."""
    line = line_of(4, flight_line_ms=60_000)
    held = entered(line, "ann", "large", 2)
    waiters = Waiters(line)
    waiters.add("ann", "large", "third")
    (other,) = entered(line, "ben", "small", 1)
    other.release()
    assert waiters.entered == []
    assert waiters.let(held[0]) == "third"
    waiters.join()


def test_the_line_has_an_end_for_one_query_too() -> None:
    """A query whose tasks fill its part of the line leaves places in it for others."""
    line = line_of(1, flight_line_ms=60_000, flight_line_max=4)
    (first,) = entered(line, "ann", "x", 1)
    waiters = Waiters(line)
    for number in range(2):
        waiters.add("ann", "large", f"a{number}")
    with pytest.raises(PlaneError, match="BUSY: 1 calls run and 2 stand in line"):
        line.enter("ann", "large")
    waiters.add("ann", "small", "b")
    waiters.let(first)
    for _ in range(2):
        waiters.let(waiters.passes[-1])
    waiters.join()


def test_who_stood_in_line_for_long_is_told_to_come_again() -> None:
    line = line_of(1, flight_line_ms=1)
    (first,) = entered(line, "ann", "q", 1)
    with pytest.raises(PlaneError, match="BUSY") as caught:
        line.enter("ann", "q")
    assert caught.value.wait_ms > 0 and caught.value.may_retry
    assert line._waiting.taken == 0 and not line._users and line.refused == 1
    first.release()
    assert line.enter("ann", "q") is not None


def test_a_crowd_is_told_to_come_one_behind_the_other() -> None:
    """Waits grow by the time between two places, from the shortest to the longest; when nobody is left they begin anew."""
    clock = Clock()
    line = line_of(1, clock, flight_busy_ms=20, flight_busy_ms_max=1_000)
    (first,) = entered(line, "ann", "q", 1)
    waits = []
    for _ in range(300):
        with pytest.raises(PlaneError) as caught:
            line.enter("ann", "q")
        waits.append(caught.value.wait_ms)
    assert waits[:3] == [20, 20, 20]
    steps = [after - before for before, after in itertools.pairwise(waits[6:101])]
    assert all(abs(step - FIRST_S * SOONER * 1000) <= 1 for step in steps)
    assert max(waits) <= 1_000 and min(waits[200:]) >= 500 and len(set(waits[200:])) > 10
    assert line.crowded
    clock.now += 2
    assert not line.crowded
    first.release()
    (first,) = entered(line, "ann", "q", 1)
    with pytest.raises(PlaneError) as caught:
        line.enter("ann", "q")
    assert caught.value.wait_ms == 20


def test_waits_follow_how_fast_places_become_free() -> None:
    """Work of 100 ms each: the next crowd is spread out so."""
    clock = Clock()
    line = line_of(1, clock, flight_busy_ms_max=3_600_000)
    for _ in range(200):
        (one,) = entered(line, "ann", "q", 1)
        entered(line, "ann", "q")
        clock.now += 0.1
        one.release()
    assert COUNTED_S / 8 < 0.1 and abs(line._between_s - 0.1) < 0.01
    (one,) = entered(line, "ann", "q", 1)
    waits = []
    for _ in range(50):
        with pytest.raises(PlaneError) as caught:
            line.enter("ann", "q")
        waits.append(caught.value.wait_ms)
    assert abs((waits[-1] - waits[0]) / 49 - 100 * SOONER) < 10


def test_actions_of_writers_are_where_their_rows_are() -> None:
    lines = Lines(Limits())
    assert lines.of_action("stage.begin") == (lines.writes, False)
    assert lines.of_action("stage.prepare") == (lines.writes, True)
    assert lines.of_action("stage.commit") == lines.of_action("whatever") == (lines.actions, False)
    assert set(lines.counts()) == {"actions", "reads", "writes", "waits", "busy"}


def test_all_places_together_leave_room_at_the_gate() -> None:
    """What one user can fill, in and in line, is less than all calls of the service: strangers and others still come to the door."""
    limits = Limits()
    places = (limits.flight_actions_max, limits.flight_reads_max, limits.flight_writes_max, limits.flight_waits_max)
    assert sum(3 * one // 4 for one in places) + 4 * 3 * limits.flight_line_max // 4 < limits.flight_calls_max - limits.flight_waiting_max


def test_a_turn_ends_when_others_wait_and_stays_ended() -> None:
    clock = Clock()
    line = line_of(1, clock)
    turn, endless = Turn(line), Turn()
    assert not turn.is_over()
    line.busy("x")
    assert turn.is_over() and turn.ended
    clock.now += 100
    assert turn.is_over() and not Turn(line).is_over()
    assert not endless.is_over() and not endless.ended


@pytest.mark.parametrize("seed", range(5))
def test_any_history_keeps_the_bounds_and_serves_all(seed: int) -> None:
    """Threads of some users and queries come and go: never more are in than may be, and each gets its place."""
    generator = random.Random(seed)
    line = Line("calls", generator.randint(1, 6), Limits(flight_line_ms=60_000, flight_line_max=10_000))
    inside, most, lock = [0], [0], threading.Lock()
    done: list[int] = []

    def work(number: int, user: str, query: str) -> None:
        for goes_on in (False, True, True):
            one = line.enter(user, query, goes_on)
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1
            one.release()
        done.append(number)

    names = [(f"u{generator.randint(0, 2)}", f"q{generator.randint(0, 3)}") for _ in range(60)]
    threads = [threading.Thread(target=work, args=(number, *name)) for number, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 60 and most[0] <= line._in.most
    assert line.running == 0 and line._waiting.taken == 0 and not line._users
