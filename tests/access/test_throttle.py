"""Guesses are slowed by user and source; nobody else is; time forgives; the table has an end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flintmq.access.audit import Audit, AuditFile
from flintmq.access.throttle import Throttle
from flintmq.access.users import Users, hash_password
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.ports import UserRecord
from flintmq.store.definitions import MemoryDefinitions

LIMITS = Limits(login_user_failures=3, login_user_failure_s=2, login_source_failures=5, login_source_failure_ms=500, login_failures_max=4)


def test_a_user_is_slowed_at_one_source_and_nowhere_else() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    for _ in range(3):
        assert not throttle.refuses("ann", "a")
        throttle.failed("ann", "a")
    assert throttle.refuses("ann", "a")
    assert not throttle.refuses("ann", "b") and not throttle.refuses("bob", "a")
    clock.advance(ms=2_000)
    assert not throttle.refuses("ann", "a")
    throttle.failed("ann", "a")
    assert throttle.refuses("ann", "a")
    clock.advance(ms=6_000)
    throttle.failed("ann", "a")
    throttle.passed("ann", "a")
    for _ in range(3):
        assert not throttle.refuses("ann", "a")
        throttle.failed("ann", "a")
    assert throttle.refused_total == 2


def test_a_source_is_slowed_whatever_users_it_tries() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    for number in range(5):
        throttle.failed(f"u{number}", "a")
    assert throttle.refuses("new", "a") and not throttle.refuses("new", "b")
    clock.advance(ms=500)
    assert not throttle.refuses("new", "a")


def test_the_table_has_an_end() -> None:
    throttle = Throttle(ManualClock(), LIMITS)
    for number in range(100):
        throttle.failed("u", f"source {number}")
    assert len(throttle._failures) == LIMITS.login_failures_max


def test_the_right_password_is_not_looked_at_either_and_a_verified_one_is_no_guess() -> None:
    """T1: a guess learns nothing; T2: who was verified goes on."""
    clock = ManualClock()
    definitions = MemoryDefinitions()
    definitions.save_user(UserRecord("ann", hash_password("right"), ()))
    users = Users(definitions, clock, LIMITS)
    try:
        for password in ("a", "b", "c"):
            assert ask(users, "ann", password, "10.0.0.1") is False
        assert ask(users, "ann", "right", "10.0.0.1") is None
        assert ask(users, "ann", "right", "10.0.0.2") is True
        assert users.check_cached("ann", "right")
        clock.advance(ms=2_000)
        assert ask(users, "ann", "right", "10.0.0.1") is True
    finally:
        users.close()


def ask(users: Users, user: str, password: str, source: str) -> bool | None:
    import queue

    answers: queue.Queue[bool | None] = queue.Queue()
    users.submit_check(user, password, answers.put, source)
    return answers.get(timeout=30)


def test_one_user_can_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    audit = Audit(clock, Limits(audit_user_lines=2, audit_users_max=3))
    with caplog.at_level(logging.WARNING, "flintmq.audit"):
        for number in range(10):
            audit.refused("eve", f"read access to queue 'q{number}' refused", "192.0.2.1")
        audit.refused("ann", "x")
        clock.advance(ms=1_000)
        audit.refused("eve", "again")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4 and audit.refused_total == 12
    assert lines[0] == "refused: user 'eve' at 192.0.2.1: read access to queue 'q0' refused"
    assert lines[3] == "refused: user 'eve': again (8 more refusals of this user had no line)"
    for number in range(100):
        audit.refused(f"u{number}", "x")
    assert len(audit._bound._causes) == 3


def test_the_file_has_one_line_each_and_follows_a_rotation(tmp_path: Any) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), Limits())
    file.start()
    audit = Audit(ManualClock(), Limits())
    try:
        audit.refused("a\nb\x1b[31m", "what\r\n2026 forged")
        wait_for_text(path, "forged")
        path.rename(tmp_path / "audit.log.1")
        logging.getLogger("flintmq.definitions").warning("user 'x' at 1: refused: y")
        wait_for_text(path, "user 'x'")
    finally:
        file.stop()
    text = (tmp_path / "audit.log.1").read_text()
    assert len(text.splitlines()) == 1 and "\x1b" not in text
    with pytest.raises(OperatorError, match="--audit-log"):
        AuditFile(str(tmp_path / "none" / "audit.log"), Limits())


def wait_for_text(path: Any, text: str) -> None:
    from tests.support.broker import wait_until

    wait_until(lambda: path.exists() and text in path.read_text())
