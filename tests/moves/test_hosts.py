"""Hosts that links may reach."""

from __future__ import annotations

import pytest

from flintmq.errors import OperatorError
from flintmq.moves.hosts import HostRules


def test_names_and_addresses() -> None:
    rules = HostRules(["rabbit.example.com", "*.corp", "10.0.0.0/8", "fd00::1"])
    assert all(map(rules.allow_name, ["rabbit.example.com", "RABBIT.example.com.", "a.corp", "b.a.corp"]))
    assert not any(map(rules.allow_name, ["example.com", "corp", "xcorp", "rabbit.example.com.evil.org", "10.1.2.3"]))
    assert all(map(rules.allow_address, ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"]))
    assert not any(map(rules.allow_address, ["11.0.0.1", "127.0.0.1", "::1", "169.254.169.254", "rabbit.example.com", "::ffff:127.0.0.1"]))


def test_any_is_every_other_machine() -> None:
    rules = HostRules(["*"])
    assert rules.allow_address("169.254.169.254") and rules.allow_address("fd00::1")
    assert not any(map(rules.allow_address, ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]))
    assert not rules.allow_name("localhost")  # its address decides
    listed = HostRules(["*", "127.0.0.1", "localhost"])
    assert listed.allow_address("127.0.0.1") and listed.allow_name("localhost")


@pytest.mark.parametrize("pattern", ["", "*.", "a*b", "10.0.0.0/99", "h:1", "a/b"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(OperatorError, match="is no host"):
        HostRules([pattern])
