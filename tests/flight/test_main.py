"""The child process: it says where it listens, lives as long as its first channel, and names what is wrong with its options."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.dataplane.wire import Channel
from flintmq.flight.__main__ import no_core_file
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from tests.support.broker import self_signed_certificate
from tests.support.hasty import hasty

READY_S = 120


class Child:
    """A service started as the broker starts it. Attributes: channels (our ends), process, port (0 when it ended first)."""

    def __init__(self, store: Path, *arguments: str, channels: int = 2) -> None:
        pairs = [socket.socketpair() for _ in range(channels)]
        self.channels = [Channel(ours) for ours, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        command = [
            sys.executable,
            "-m",
            "flintmq.flight",
            "--channels",
            ",".join(map(str, numbers)),
            "--store-dir",
            str(store),
            *arguments,
        ]
        self.process = subprocess.Popen(command, pass_fds=numbers, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _, theirs in pairs:
            theirs.close()

    def ready(self) -> int:
        self.channels[0].socket.settimeout(READY_S)
        head, _ = self.channels[0].receive()
        self.channels[0].socket.settimeout(None)
        assert head["call"] == "ready"
        return int(head["port"])

    def end(self) -> tuple[int, str]:
        """Waits for the child; its exit code and what it wrote."""
        _, text = self.process.communicate(timeout=READY_S)
        return self.process.returncode, text.decode()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def make(*arguments: str, **options: Any) -> Child:
        started.append(Child(tmp_path, *arguments, **options))
        return started[-1]

    yield make
    for one in started:
        for channel in one.channels:
            channel.close()
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def answer_one(channel: Channel, answer: dict[str, Any]) -> dict[str, Any]:
    """Answers the next request on the channel; returns its head."""
    head, _ = channel.receive()
    channel.send(answer)
    return head


def test_it_ends_with_its_first_channel(child: Callable[..., Child]) -> None:
    """Ready frame, then exit code 0 as soon as the broker closes the first channel; a refused client leaves no password in the log."""
    one = child("--log-level", "debug")
    port = one.ready()
    import threading

    # the last channel that was given is the first one that is used
    thread = threading.Thread(target=answer_one, args=(one.channels[-1], {"error": "UNAUTHENTICATED", "text": "no"}))
    thread.start()
    with pytest.raises(PlaneError) as caught:
        DataPlane("127.0.0.1", port, user="ann", password="hunter2").status()
    thread.join(60)
    assert caught.value.code == "UNAUTHENTICATED"
    one.channels[0].close()
    code, text = one.end()
    assert code == 0
    assert "hunter2" not in text
    assert "ann" in text


def test_it_does_not_outlive_a_broker_that_is_killed(child: Callable[..., Child]) -> None:
    """kill -9 closes all channels at once; SIGINT, which a terminal sends to all, changes nothing."""
    one = child()
    one.ready()
    one.process.send_signal(signal.SIGINT)
    for channel in one.channels:
        channel.socket.shutdown(socket.SHUT_RDWR)
    assert one.end()[0] == 0


def test_sigterm_ends_it(child: Callable[..., Child]) -> None:
    """Exit code 0, as the supervisor expects."""
    one = child()
    one.ready()
    one.process.send_signal(signal.SIGTERM)
    assert one.end()[0] == 0


def test_it_gives_way_to_the_broker(child: Callable[..., Child]) -> None:
    """Its priority is lower than that of who started it."""
    one = child()
    one.ready()
    assert os.getpriority(os.PRIO_PROCESS, one.process.pid) > os.getpriority(os.PRIO_PROCESS, 0) or os.nice(0) == 19


def test_a_port_in_use_is_one_line(child: Callable[..., Child]) -> None:
    """Two services never share a port; the second says so and ends with 69."""
    first = child()
    port = first.ready()
    code, text = child("--port", str(port)).end()
    assert code == 69
    assert f"can't listen on 127.0.0.1:{port}" in text
    assert "Traceback" not in text


def test_wrong_files_are_one_line(child: Callable[..., Child], tmp_path: Path) -> None:
    """A certificate that is not there: 78; one that is none: not ready, no trace."""
    code, text = child("--tls-cert", str(tmp_path / "none.pem")).end()
    assert code == 78
    assert "none.pem" in text
    (tmp_path / "bad.pem").write_text("nonsense")
    code, text = child("--tls-cert", str(tmp_path / "bad.pem")).end()
    assert code == 69
    assert "Traceback" not in text


def test_tls(child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a certificate it speaks TLS and nothing else."""
    with self_signed_certificate() as (certificate, key):
        one = child("--tls-cert", certificate, "--tls-key", key)
        port = one.ready()
        import threading

        thread = threading.Thread(target=answer_one, args=(one.channels[-1], {"error": "UNAUTHENTICATED", "text": "no"}))
        thread.start()
        with pytest.raises(PlaneError, match="UNAUTHENTICATED"):
            DataPlane("127.0.0.1", port, tls_ca=certificate).status()
        thread.join(60)
        hasty(monkeypatch)
        with pytest.raises(PlaneError, match="UNAVAILABLE"):
            DataPlane("127.0.0.1", port, timeout_s=30.0).status()


def test_descriptors_that_are_none(tmp_path: Path) -> None:
    """78, in one line."""
    command = [sys.executable, "-m", "flintmq.flight", "--channels", "987", "--store-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    assert done.returncode == 78
    assert "Traceback" not in done.stderr


def test_a_crash_leaves_no_core_file() -> None:
    """The process holds the certificate's key and messages of all tenants."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        no_core_file()
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
