"""Asking for Debian packages never installs without right or need: what is there is left alone, a missing one gives a reason."""

from __future__ import annotations

import pytest

from tests.support import servers


def test_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "package_installed", lambda package: True)
    monkeypatch.setattr(servers.subprocess, "run", lambda *_, **__: pytest.fail("ran a command"))
    assert servers.ensure_debian_packages(["rabbitmq-server"]) is None


def test_forbidden_gives_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINTMQ_NO_APT", "1")
    monkeypatch.setattr(servers, "package_installed", lambda package: package == "have")
    monkeypatch.setattr(servers.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(servers.subprocess, "run", lambda *_, **__: pytest.fail("ran a command"))
    reason = servers.ensure_debian_packages(["have", "lack"])
    assert reason is not None
    assert "apt-get install --no-install-recommends lack" in reason


def test_free_ports_differ() -> None:
    assert len(set(servers.free_ports(20))) == 20
