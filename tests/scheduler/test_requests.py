"""Every accepted request gets exactly one answer, the right one, at the right time; what is not accepted is told at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("flintmq.scheduler.system")

from flintmq.scheduler.outcomes import AGAIN, PARK, Outcome
from tests.scheduler.conftest import Bench, Store


def test_requests_of_an_actor_run_in_order(bench: Bench) -> None:
    """One actor is first in, first out."""
    for number in range(50):
        assert bench.ask(number)
    bench.run()
    assert bench.looks == list(range(50))
    assert bench.answers == [(number, Outcome.MESSAGES) for number in range(50)]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_process_returns_is_answered(bench: Bench, outcome: Outcome) -> None:
    """Each outcome that process() gives reaches the answer."""
    bench.ask("x", result=outcome)
    bench.run()
    assert bench.answers == [("x", outcome)]
    assert bench.gauges[f"outcome_{outcome.name.lower()}_total"] == 1


def test_full_mailbox_says_busy(make_bench: Callable[..., Bench]) -> None:
    """The mailbox never holds more than its limit, and the request above it is refused, not lost."""
    bench = make_bench(actor_mailbox_max=3)
    assert [bench.ask(number) for number in range(5)] == [True, True, True, False, False]
    assert bench.gauges["mailboxes"] == 3
    assert bench.gauges["dropped_busy_total"] == 2
    bench.run()
    assert [name for name, _ in bench.answers] == [0, 1, 2]
    assert bench.ask("again")


def test_unfinished_request_comes_first_and_does_not_fill_the_mailbox(make_bench: Callable[..., Bench]) -> None:
    """AGAIN keeps its place before later requests, and the mailbox's limit counts only those that wait in it."""
    bench = make_bench(actor_mailbox_max=2)
    turns = iter([AGAIN, AGAIN, Outcome.MESSAGES])
    bench.ask("long", result=lambda: next(turns))
    bench.ask("short")
    bench.actors.step()
    assert bench.ask("third")
    assert not bench.ask("fourth")
    bench.run()
    assert bench.looks == ["long", "long", "long", "short", "third"]
    assert [name for name, _ in bench.answers] == ["long", "short", "third"]


def test_deadline_in_the_mailbox_is_expired_in_time(bench: Bench) -> None:
    """A request that nobody looks at is answered EXPIRED at its deadline, not before, and is never processed."""
    bench.ask("x", deadline_ms=30)
    bench.later(29)
    assert bench.answers == []
    bench.later(2)
    assert bench.answers == [("x", Outcome.EXPIRED)]
    bench.run()
    assert bench.looks == []


def test_deadline_is_kept_while_the_actor_is_suspended(bench: Bench) -> None:
    """A suspended actor does not silence its requests."""
    bench.ask("first")
    bench.run()
    token = bench.actors.suspend(0, 1, 0)
    bench.ask("x", deadline_ms=10)
    bench.run()
    bench.later(11)
    assert bench.answers[1:] == [("x", Outcome.EXPIRED)]
    assert bench.actors.resume(0, 1, 0, token)


def test_hold_ends_empty(bench: Bench) -> None:
    """A parked request is answered EMPTY when its hold is over, and its actor is idle meanwhile."""
    bench.ask("x", result=PARK, hold_ms=100)
    bench.run()
    assert bench.gauges["parked"] == 1
    bench.later(99)
    assert bench.answers == []
    bench.later(2)
    assert bench.answers == [("x", Outcome.EMPTY)]
    assert bench.gauges["parked"] == 0
    assert bench.gauges["holds_ended_total"] == 1
    assert bench.looks == ["x"]


def test_deadline_of_a_parked_request_is_empty(bench: Bench) -> None:
    """With a deadline only, a parked request waits until then and is answered EMPTY: somebody did look."""
    bench.ask("x", result=PARK, deadline_ms=20)
    bench.run()
    bench.later(21)
    assert bench.answers == [("x", Outcome.EMPTY)]


def test_pull_once_never_parks(bench: Bench) -> None:
    """hold below 0: PARK is answered EMPTY at once."""
    bench.ask("x", result=PARK, hold_ms=-1)
    bench.run()
    assert bench.answers == [("x", Outcome.EMPTY)]
    assert bench.gauges["parked"] == 0


def test_long_hold_delays_nobody(bench: Bench) -> None:
    """Requests behind a parked one are looked at at once, and end by their own holds (the head-of-line defect of the original)."""
    bench.ask("long", result=PARK, hold_ms=60_000)
    bench.ask("short", result=PARK, hold_ms=10)
    bench.ask("now")
    bench.run()
    assert bench.answers == [("now", Outcome.MESSAGES)]
    bench.later(11)
    assert bench.answers[1:] == [("short", Outcome.EMPTY)]
    bench.later(60_000)
    assert bench.answers[2:] == [("long", Outcome.EMPTY)]


def test_answers_at_deadlines_come_in_their_order(bench: Bench) -> None:
    """Holds that end in one tick of the clock's owner are answered earliest first."""
    for number in (5, 3, 9, 1, 7):
        bench.ask(number, result=PARK, hold_ms=number * 10)
    bench.run()
    bench.later(1_000)
    assert [name for name, _ in bench.answers] == [1, 3, 5, 7, 9]


def test_wake_serves_the_oldest_first(bench: Bench) -> None:
    """After a wake of all, waiters look again in the order of arrival, before newer requests."""
    store = Store()
    for number in range(4):
        bench.ask(number, result=store.take, hold_ms=1_000)
    bench.run()
    store.items = 3
    bench.ask("new", result=store.take, hold_ms=1_000)
    bench.actors.wake(0, 1, 0)
    bench.run()
    assert bench.answers == [(number, Outcome.MESSAGES) for number in range(3)]
    assert bench.gauges["parked"] == 2


def test_wake_next_looks_once_too_often_at_most(bench: Bench) -> None:
    """wake_next lets the oldest look, then the next while something is found: 2 items cost 3 looks, whatever the number of waiters."""
    store = Store()
    for number in range(100):
        bench.ask(number, result=store.take, hold_ms=1_000)
    bench.run()
    bench.looks.clear()
    store.items = 2
    bench.actors.wake(0, 1, 0, next_only=True)
    bench.run()
    assert bench.looks == [0, 1, 2]
    assert [name for name, _ in bench.answers] == [0, 1]
    # The one that looked in vain kept its place.
    store.items = 1
    bench.actors.wake(0, 1, 0, next_only=True)
    bench.run()
    assert bench.answers[-1] == (2, Outcome.MESSAGES)
    assert bench.gauges["wakes_spurious_total"] == 2


def test_wake_between_look_and_park_is_not_lost(bench: Bench) -> None:
    """What appears after the look and is announced before the request parks is looked at."""
    store = Store()

    def late() -> int:
        found = store.take()
        if found == PARK and len(bench.looks) == 1:
            store.items += 1
            bench.actors.wake(0, 1, 0)
        return found

    bench.ask("x", result=late, hold_ms=1_000)
    bench.run()
    assert bench.answers == [("x", Outcome.MESSAGES)]
    assert bench.gauges["wakes_raced_total"] == 1


def test_late_wake_does_not_touch_a_later_request(bench: Bench) -> None:
    """The end of one hold leaves the next request of the actor alone."""
    bench.ask("one", result=PARK, hold_ms=50)
    bench.run()
    bench.later(25)
    bench.ask("two", result=PARK, hold_ms=50)
    bench.run()
    bench.later(26)
    assert bench.answers == [("one", Outcome.EMPTY)]
    bench.run()
    assert bench.looks == ["one", "two"]


def test_too_many_parked_are_busy(make_bench: Callable[..., Bench]) -> None:
    """Above the limit of parked requests the next one is answered BUSY, not kept."""
    bench = make_bench(actors_parked_max=2)
    for number in range(3):
        bench.ask(number, key=number, result=PARK, hold_ms=1_000)
    bench.run()
    assert bench.answers == [(2, Outcome.BUSY)]
    assert bench.gauges["dropped_parked_total"] == 1


def test_deadline_nearer_than_the_usual_service_is_dropped_with_an_answer(bench: Bench) -> None:
    """What can't be done before its deadline is answered EXPIRED without a look; the estimate recovers when the actor is fast again."""
    for number in range(8):
        bench.ask(number, cost_ms=50)
    bench.run()
    bench.ask("hopeless", deadline_ms=20)
    bench.ask("patient", deadline_ms=500)
    bench.run()
    assert bench.answers[8:] == [("hopeless", Outcome.EXPIRED), ("patient", Outcome.MESSAGES)]
    assert bench.gauges["dropped_estimate_total"] == 1
    for _ in range(100):
        bench.ask("hurried", deadline_ms=20)
        bench.run()
        if "hurried" in bench.looks:
            break
    assert "hurried" in bench.looks


def test_failed_request_is_answered_and_the_actor_pauses(bench: Bench) -> None:
    """A poison request is answered FAILED once; its actor pauses while others go on, and those behind it come after the pause."""
    bench.ask("poison", result=ValueError("broken"))
    bench.ask("behind")
    bench.ask("other", key=2)
    bench.run()
    assert bench.answers == [("poison", Outcome.FAILED), ("other", Outcome.MESSAGES)]
    bench.later(9)
    bench.run()
    assert len(bench.answers) == 2
    bench.later(2)
    bench.run()
    assert bench.answers[2:] == [("behind", Outcome.MESSAGES)]
    assert bench.gauges["paused_total"] == 1


def test_pauses_double_and_success_ends_the_series(bench: Bench) -> None:
    """Failures in a row make the actor wait 10, 20, 40 ms; after a request that went well the next failure costs 10 ms again."""
    for expected_ms, result in ((10, ValueError()), (20, ValueError()), (40, ValueError()), (0, None), (10, ValueError())):
        bench.ask("x", result=result)
        bench.run()
        if not expected_ms:
            continue
        bench.later(expected_ms - 1)
        assert bench.actors.groups()[0]["paused"]
        bench.later(2)
        assert not bench.actors.groups()[0]["paused"]
        bench.run()


def test_pause_is_capped(make_bench: Callable[..., Bench]) -> None:
    """However often a request fails, the pause stays under its limit."""
    bench = make_bench(actor_pause_ms=10, actor_pause_ms_max=50)
    for _ in range(10):
        bench.ask("poison", result=ValueError("broken"))
    for _ in range(9):
        bench.run()
        bench.later(51)
    bench.run()
    assert len(bench.answers) == 10


def test_closing_answers_everything(bench: Bench) -> None:
    """Parked, waiting and unfinished requests are answered CLOSED; the key is free for a new actor afterwards."""
    bench.ask("parked", result=PARK, hold_ms=1_000)
    bench.run()
    bench.ask("long", result=AGAIN)
    bench.actors.step()
    bench.ask("mailed")
    assert bench.actors.close(0, 1, 0)
    assert sorted(bench.answers) == [("long", Outcome.CLOSED), ("mailed", Outcome.CLOSED), ("parked", Outcome.CLOSED)]
    bench.run()
    assert bench.gauges["actors"] == 0
    assert bench.ask("new")
    bench.run()
    assert bench.answers[-1] == ("new", Outcome.MESSAGES)


def test_closed_during_its_slice(bench: Bench) -> None:
    """A request that runs while its actor is closed goes on to its end; parking then is CLOSED; the key is free only afterwards."""

    def close() -> int:
        bench.actors.close(0, 1, 0)
        assert not bench.ask("too early")
        return PARK

    bench.ask("x", result=close, hold_ms=1_000)
    bench.ask("behind")
    bench.run()
    assert sorted(bench.answers) == [("behind", Outcome.CLOSED), ("x", Outcome.CLOSED)]
    assert bench.ask("later")


def test_stop_answers_what_waits(bench: Bench) -> None:
    """Stopping the system leaves no request without its answer, and accepts no more."""
    bench.ask("parked", result=PARK, hold_ms=1_000)
    bench.run()
    bench.ask("mailed")
    bench.ask("poison", key=2, result=ValueError("broken"))
    bench.actors.step()
    bench.actors.step()
    bench.ask("paused", key=2)
    bench.actors.stop()
    assert {name: outcome for name, outcome in bench.answers if name != "poison"}["parked"] == Outcome.CLOSED
    assert len(bench.answers) == 4
    assert not bench.ask("more")
    assert bench.gauges["actors"] == 0


def test_actors_max(make_bench: Callable[..., Bench]) -> None:
    """One actor too many is refused; those that exist go on."""
    bench = make_bench(actors_max=2)
    assert [bench.ask(key, key=key) for key in range(3)] == [True, True, False]
    assert bench.ask("again", key=1)
    bench.run()
    assert len(bench.answers) == 3
