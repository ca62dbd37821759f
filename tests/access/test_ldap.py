"""Trouble with a directory is said, and does not fill the log."""

from __future__ import annotations

from typing import Any

from flintmq.access.ldap import Directory
from flintmq.access.throttle import Throttle
from flintmq.clock import ManualClock
from flintmq.config import Config


def test_a_directory_that_is_away_has_some_lines_whoever_tries_to_log_in(caplog: Any) -> None:
    """Forty logins while nobody listens: five lines, and after ten seconds the next one says how many had none."""
    clock = ManualClock()
    config = Config(ldap_urls=("ldap://127.0.0.1:1",), ldap_user_dn="uid=${username},dc=example")
    directory = Directory(config, clock, lambda name: None, Throttle(clock, config.limits))
    try:
        assert not any(directory.check(f"user{number}", "secret") for number in range(40))
        lines = [one for one in caplog.messages if "may log in" in one]
        assert len(lines) == config.limits.ldap_lines == 5
        clock.advance(ms=10_000)
        assert not directory.check("ann", "secret")
        assert "(35 more lines about 'no answer' were left out)" in caplog.messages[-1]
    finally:
        directory.close()
