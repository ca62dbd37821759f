"""The Flight service as a child: started, restarted, told to end, gone when the broker is gone; a broker does without it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Config
from flintmq.dataplane.node_part import DataPlane
from flintmq.dataplane.supervisor import Supervisor
from flintmq.dataplane.wire import Channel, ChannelClosed

from .rig import Rig

FAKE = Path(__file__).with_name("fake_flight.py")
COMMAND = [sys.executable, str(FAKE)]


def until(happens: Callable[[], Any], seconds: float = 60) -> Any:
    """Waits for another process; fails when it does not happen."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, "it did not happen in time"
        pause.wait(0.01)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the look, or in its middle
        return False


class Served:
    """Answers calls of the child as a service would: {"ok": the call's name}."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def serve(self, channel: Channel) -> None:
        try:
            while True:
                head, payload = channel.receive()
                self.calls.append(head["call"])
                channel.send({"ok": head["call"]}, payload)
        except ChannelClosed:
            pass


@pytest.fixture
def supervise() -> Iterator[Callable[..., tuple[Supervisor, Served]]]:
    made: list[Supervisor] = []

    def start(
        *options: str, command: list[str] | None = None, port: int = 0, when: str = "at-once", **limits: Any
    ) -> tuple[Supervisor, Served]:
        config = Config(flight_port=port, flight_start=when).with_limits(
            **{"dataplane_channels": 3, "flight_restart_ms": 10, "flight_start_s": 60, **limits}
        )
        served = Served()
        supervisor = Supervisor(config, "store", served.serve, command or [*COMMAND, *options])
        made.append(supervisor)
        supervisor.start()
        return supervisor, served

    yield start
    for supervisor in made:
        supervisor.stop()


def test_the_child_says_its_port_and_calls_on_every_channel(supervise: Any) -> None:
    supervisor, served = supervise()
    assert supervisor.wait_ready(60) == supervisor.port is not None
    until(lambda: len(served.calls) == 3)
    assert sorted(served.calls) == ["hello 0", "hello 1", "hello 2"]
    pid = supervisor.status()["pid"]
    supervisor.stop()
    supervisor.stop()
    assert not alive(pid) and supervisor.port is None


def test_a_child_that_dies_is_started_again_with_the_same_port(supervise: Any) -> None:
    supervisor, served = supervise()
    port = supervisor.wait_ready(60)
    until(lambda: len(served.calls) == 3)
    first = supervisor.status()["pid"]
    os.kill(first, signal.SIGKILL)
    again = until(lambda: (pid := supervisor.status()["pid"]) not in (None, first) and pid)
    assert supervisor.wait_ready(60) == port
    until(lambda: len(served.calls) == 6)
    assert again != first and supervisor.status()["failed_starts"] == 0


def test_a_channel_that_ends_takes_the_child_with_it(supervise: Any) -> None:
    supervisor, served = supervise("--drop-last-channel")
    supervisor.wait_ready(60)
    # It lives for a moment only: its pid is shown too briefly to be seen for sure, what it asked stays.
    until(lambda: served.calls.count("hello 0") >= 2)


@pytest.mark.parametrize("option", ["--exit", "--wrong-frame", "--garbage", "--elsewhere"])
def test_a_child_that_does_not_come_up_is_tried_again_and_costs_only_log_lines(
    supervise: Any, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    supervisor, _ = supervise(option)
    assert supervisor.wait_ready(20) is None
    until(lambda: supervisor.status()["failed_starts"] >= 3)
    assert "is started again in" in caplog.text and supervisor.port is None


def test_a_command_that_is_not_there_is_told(supervise: Any, caplog: pytest.LogCaptureFixture) -> None:
    supervisor, _ = supervise(command=["/nonexistent/flight"])
    assert supervisor.wait_ready(20) is None
    assert "could not be started" in caplog.text


def test_a_silent_child_does_not_keep_the_broker_and_is_ended(supervise: Any) -> None:
    supervisor, _ = supervise("--silent", flight_start_s=0.2)
    assert supervisor.wait_ready(0.2) is None
    until(lambda: supervisor.status()["failed_starts"] >= 1)
    began = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < 60


def test_lines_of_the_child_come_out_with_a_prefix(supervise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not capfd, which loses what another thread writes between its reading and its emptying of the file.
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    supervisor, _ = supervise()
    supervisor.wait_ready(60)
    until(lambda: "flight: the fake is up\n" in said.getvalue())


def test_a_stubborn_child_is_killed(supervise: Any) -> None:
    supervisor, _ = supervise("--stubborn", flight_end_ms=300, flight_term_ms=300)
    supervisor.wait_ready(60)
    pid = supervisor.status()["pid"]
    supervisor.stop()
    assert not alive(pid)


def test_the_child_ends_when_the_broker_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys, time
from flintmq.config import Config
from flintmq.dataplane.supervisor import Supervisor
from tests.dataplane.test_supervisor import Served
config = Config(flight_port=0, flight_start="at-once").with_limits(flight_start_s=60)
supervisor = Supervisor(config, "store", Served().serve, {COMMAND!r})
supervisor.start()
supervisor.wait_ready(60)
print(supervisor.status()["pid"], flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=FAKE.parents[2]) as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        assert alive(pid)
        broker.kill()
    until(lambda: not alive(pid))


# --- on demand --------------------------------------------------------------------------------------------------------------


def asked(port: int) -> int:
    """The number of the process that serves a new connection; 0: the connection ended."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        try:
            return int(connection.recv(100) or 0)
        except ConnectionResetError:
            return 0


def is_up(supervisor: Supervisor, pid: int) -> bool:
    """Whether that child is the supervisor's: it answers connections a moment before the supervisor hears that it is up."""
    return bool(pid and until(lambda: supervisor.status()["pid"] == pid) and supervisor.status()["state"] == "up")


def test_the_first_connection_starts_the_child_and_is_served(supervise: Any) -> None:
    supervisor, served = supervise(when="on-demand")
    port = supervisor.wait_ready(60)
    assert port and supervisor.status() == {"port": port, "pid": None, "failed_starts": 0, "state": "waiting"}
    first = asked(port)
    assert is_up(supervisor, first)
    assert asked(port) == first and supervisor.port == port
    until(lambda: len(served.calls) == 3)
    supervisor.stop()
    assert not alive(first) and supervisor.port is None
    with pytest.raises(OSError):
        asked(port)


def test_nobody_who_comes_while_the_child_starts_is_refused_and_there_is_one_child(supervise: Any) -> None:
    supervisor, served = supervise(when="on-demand")
    port = supervisor.wait_ready(60)
    with ThreadPoolExecutor(64) as clients:
        found = set(clients.map(asked, [port] * 64))
    assert len(found) == 1 and is_up(supervisor, *found)
    until(lambda: len(served.calls) >= 3)
    assert served.calls.count("hello 0") == 1


def test_who_connects_while_a_child_is_dead_waits_for_the_next_one(supervise: Any) -> None:
    supervisor, _ = supervise(when="on-demand")
    port = supervisor.wait_ready(60)
    first = asked(port)
    assert is_up(supervisor, first)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    second = asked(port)
    assert second != first and is_up(supervisor, second)
    os.kill(second, signal.SIGKILL)
    # the next one comes without a client: sessions may wait for it
    until(lambda: supervisor.status()["pid"] not in (None, second))


@pytest.mark.parametrize("option", ["--exit", "--shut-down"])
def test_who_waits_for_a_child_that_does_not_come_up_is_told_and_the_next_one_tries_again(
    supervise: Any, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    supervisor, _ = supervise(option, when="on-demand")
    port = supervisor.wait_ready(60)
    for failed in (1, 2):
        assert asked(port) == 0
        until(lambda failed=failed: supervisor.status()["failed_starts"] == failed and supervisor.status()["state"] == "waiting")
    assert "when somebody connects, but not within" in caplog.text and supervisor.port == port


def test_a_port_in_use_is_told_and_taken_when_it_is_free(supervise: Any, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        supervisor, _ = supervise(when="on-demand", port=port, flight_port_ms=10)
        assert supervisor.wait_ready(60) is None and supervisor.status()["state"] == "down"
        assert f"can't listen on 127.0.0.1:{port}: Address already in use (choose another --flight-port" in caplog.text
    until(lambda: supervisor.port == port)
    assert is_up(supervisor, asked(port))


def test_a_port_that_is_free_soon_is_waited_for(supervise: Any) -> None:
    """The service of a broker that was killed has it for a moment longer than the broker: the ready line of the next one says the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        supervisor, _ = supervise(when="on-demand", port=port, flight_port_ms=60_000)
    assert supervisor.wait_ready(60) == port


def test_a_child_that_can_not_take_the_socket_over_binds_its_port_itself(supervise: Any, caplog: pytest.LogCaptureFixture) -> None:
    supervisor, _ = supervise("--not-adopted", when="on-demand")
    port = supervisor.wait_ready(60)
    assert asked(port) == 0
    until(lambda: supervisor.status()["state"] == "up")
    assert supervisor.port == port and "LD_PRELOAD has no effect" in caplog.text
    with socket.create_server(("127.0.0.1", port)):
        pass  # the broker has let it go


def test_without_the_library_the_child_starts_at_once(
    supervise: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flintmq.dataplane.supervisor.adopting_library", lambda: None)
    supervisor, _ = supervise(when="on-demand")
    assert supervisor.wait_ready(60) == 40_000 and "can't be preloaded" in caplog.text


def test_a_stop_does_not_wait_for_somebody_to_connect_nor_for_a_child_that_starts(supervise: Any) -> None:
    supervisor, _ = supervise(when="on-demand")
    supervisor.wait_ready(60)
    supervisor.stop()
    starting, _ = supervise("--silent", when="on-demand")
    with socket.create_connection(("127.0.0.1", starting.wait_ready(60)), 60) as client:
        until(lambda: starting.status()["state"] == "starting")
        began = time.monotonic()
        starting.stop()
        assert time.monotonic() - began < 60 and starting.status()["state"] == "down"
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


# --- the node's part --------------------------------------------------------------------------------------------------------


def test_a_node_answers_its_flight_service_and_takes_it_down(rig: Rig) -> None:
    config = Config(flight_port=0, flight_start="at-once").with_limits(dataplane_channels=2, flight_start_s=60)
    part = DataPlane(config, rig.broker, rig.node.store.logs, [*COMMAND, "--status"])  # type: ignore[union-attr]
    part.start()
    assert part.wait_ready() == part.flight_port is not None
    status = until(lambda: part.service.calls >= 2 and rig.service.plane and part.service.flight())
    assert status["port"] == part.flight_port
    part.stop()
    assert part.flight_port is None and not alive(status["pid"])


def test_a_broker_without_pyarrow_says_so_and_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("flintmq.dataplane.node_part.flight_is_installed", lambda: False)
    part = DataPlane(Config(flight_port=0), rig.broker, rig.node.store.logs)  # type: ignore[union-attr]
    part.start()
    assert part.wait_ready() is None
    assert "pyarrow is not installed" in caplog.text
    part.stop()


def test_serve_reports_null_when_flight_is_off_or_nothing_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "off"]
    for options in (["--flight-port", "off", "--data-dir", str(tmp_path / "data")], ["--memory", "--flight-port", "0"]):
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
            assert broker.stdout is not None
            assert json.loads(broker.stdout.readline())["flight_port"] is None
            broker.terminate()
            assert broker.wait(60) == 0


def test_the_broker_never_imports_the_pipeline() -> None:
    program = "import sys, flintmq.node, flintmq.dataplane.supervisor as s; s.flight_is_installed(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in modules if name.split(".")[0] in ("pyarrow", "pyspark", "pandas") or name.startswith("flintmq.pipeline")]
