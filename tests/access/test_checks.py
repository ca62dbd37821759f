"""The line of password checks: bounded, fair by source, those who were right lately first, and left by those who are gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from flintmq.access.checks import Check, Checks, source_of
from flintmq.clock import ManualClock
from flintmq.config import Limits


class Desk:
    """A line with one worker, which checks one password for each `serve()`. The right password is "right"."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.done: list[str] = []  # user@source... of checks that ran, in order
        self.answers: dict[str, list[bool | None]] = {}
        self._go = threading.Semaphore(0)
        self._began = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        self.line = Checks(self._check, lambda user, password: None, self.clock, Limits(password_checks_max=1, **limits))
        self.ask("first", "here", "plug")  # the worker is busy with this one: what comes later stands in line
        self._began.acquire()

    def _check(self, user: str, password: str) -> bool:
        self._began.release()
        self._go.acquire()
        self.done.append(user)
        return password == "right"

    def ask(self, user: str, source: str, password: str = "wrong", name: str | None = None) -> Check:
        told = self.answers.setdefault(name or user, [])

        def answer(good: bool | None) -> None:
            told.append(good)
            if good is not None:
                self._answered.release()

        return self.line.submit(user, password, f"{user}:{password}".encode(), source, answer)

    def serve_all(self) -> list[str]:
        """Everything in the line is checked; the users in the order of their checks, the plug left out."""
        answers = 1 + sum(len(job.waiters) for job in self.line._by_credentials.values())
        self._go.release(self.line.waiting + 1)
        for _ in range(answers):
            self._answered.acquire()
        while self._began.acquire(blocking=False):
            pass
        return self.done[1:]


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    made: list[Desk] = []
    yield made
    for desk in made:
        desk.line.close()
        desk._go.release(1000)


def test_sources_are_served_in_turn_and_in_them_users(desks: list[Desk]) -> None:
    desks.append(desk := Desk())
    for number in range(4):
        desk.ask(f"flood{number}", "bad", f"p{number}")
    for number in range(3):
        desk.ask("x", "worse", f"p{number}")
    desk.ask("y", "worse")
    desk.ask("me", "home")
    assert desk.serve_all() == ["flood0", "x", "me", "flood1", "y", "flood2", "x", "flood3", "x"]


def test_a_flood_of_one_source_is_refused_and_pushed_out_for_others(desks: list[Desk]) -> None:
    desks.append(desk := Desk(password_waiting_max=6, password_waiting_source_max=5))
    for number in range(2000):
        desk.ask("evil", "bad", f"p{number}", f"evil{number}")
    assert desk.line.waiting == 5
    assert [name for name, told in desk.answers.items() if told == [None]] == [f"evil{number}" for number in range(5, 2000)]
    for number in range(3):
        desk.ask(f"me{number}", f"home{number}", "right")
    assert desk.line.waiting == 6  # evil's newest two made room
    assert desk.answers["evil4"] == desk.answers["evil3"] == [None]
    desk.ask("other", "bad", "right")  # another user behind the flood's address
    assert desk.answers["evil2"] == [None]
    assert desk.serve_all() == ["evil", "me0", "me1", "me2", "other", "evil"]
    assert desk.answers["me0"] == desk.answers["me2"] == desk.answers["other"] == [True]


def test_a_full_line_of_equals_refuses_the_newcomer(desks: list[Desk]) -> None:
    desks.append(desk := Desk(password_waiting_max=3))
    for number in range(3):
        desk.ask(f"u{number}", f"s{number}")
    desk.ask("late", "s9")
    assert desk.answers["late"] == [None] and desk.line.refused == 1
    assert desk.serve_all() == ["u0", "u1", "u2"]


def test_who_leaves_is_not_checked(desks: list[Desk]) -> None:
    desks.append(desk := Desk())
    flood = [desk.ask("evil", "bad", f"p{number}") for number in range(100)]
    desk.ask("me", "home", "right")
    for check in flood:
        check.cancel()
        check.cancel()
    assert desk.line.waiting == 1
    assert desk.serve_all() == ["me"]
    assert desk.answers["evil"] == []


def test_who_was_right_lately_from_there_goes_first(desks: list[Desk]) -> None:
    desks.append(desk := Desk(password_recent_ms=1000))
    desk.ask("me", "home", "right")
    assert desk.serve_all() == ["me"]
    desk.ask("plug", "here")
    desk._began.acquire()
    for number in range(3):
        desk.ask(f"evil{number}", "home")
    desk.ask("me", "home", "guessed")  # not this password
    desk.ask("me", "elsewhere", "right")  # not from there: stands in line
    desk.ask("me", "home", "right")  # and is moved to the front with it
    desk.done.clear()
    assert desk.serve_all() == ["me", "evil0", "evil1", "evil2", "me"]
    desk.clock.advance(ms=1000)
    desk.clock.advance(ms=1000)
    desk.ask("plug", "here")
    desk._began.acquire()
    desk.ask("evil", "home")
    desk.ask("me", "home", "right")
    desk.done.clear()
    assert desk.serve_all() == ["evil", "me"]


def test_equal_credentials_share_a_check_wherever_they_come_from(desks: list[Desk]) -> None:
    """A fleet that comes back after a restart is one check, in the line that is served first."""
    desks.append(desk := Desk(password_waiting_max=4, password_waiting_source_max=2))
    for number in range(2):
        desk.ask(f"evil{number}", "bad")
    checks = [desk.ask("app", f"10.0.0.{number}", "right", f"app{number}") for number in range(50)]
    desk.ask("app", "bad", "right", "behind")  # its source's line is full; it waits with the others
    checks[0].cancel()
    assert desk.line.waiting == 3
    assert desk.serve_all() == ["evil0", "app", "evil1"]
    assert desk.answers["behind"] == desk.answers["app49"] == [True] and desk.answers["app0"] == []


def test_an_error_in_an_answer_does_not_stop_the_others(desks: list[Desk]) -> None:
    desks.append(desk := Desk())

    def fail(good: bool | None) -> None:
        raise RuntimeError("the loop has ended")

    desk.line.submit("a", "x", b"a", "s", fail)
    desk.ask("a", "s", "x")
    desk.line.submit("a", "x", b"a:x", "s", fail)
    desk.ask("b", "s", "right")
    desk._go.release(4)
    desk._answered.acquire()
    desk._answered.acquire()
    desk._answered.acquire()
    assert desk.answers["b"] == [True]


def test_nothing_is_checked_or_answered_after_close(desks: list[Desk]) -> None:
    desks.append(desk := Desk())
    check = desk.ask("a", "s")
    desk.line.close()
    check.cancel()
    assert desk.line.waiting == 0 and desk.answers["a"] == []
    with pytest.raises(RuntimeError, match="closed"):
        desk.ask("b", "s")


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("", ""),
        ("flight", "flight"),
    ],
)
def test_a_source_is_an_address_or_an_ipv6_network(address: str, source: str) -> None:
    assert source_of(address) == source
