"""systemd's conventions, without systemd: sockets that it opened are served, it hears of each state; what the files of deploy/ say is
understood by the command line."""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.cli.serve import serve
from flintmq.cli.systemd import Notifier, inherited
from flintmq.errors import OperatorError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# a shell's `exec` with the variable that names the process itself
_BOOT = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@contextlib.contextmanager
def broker(names: str, sockets: list[socket.socket], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    high = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 100) for one in sockets]

    def place() -> None:
        for index, fd in enumerate(high):
            os.dup2(fd, 3 + index)

    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _BOOT,
            "-m",
            "flintmq.cli.main",
            "serve",
            "--memory",
            "--port",
            "0",
            "--http-port",
            "0",
            "--flight-port",
            "off",
        ],
        env={**os.environ, "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[3 + index for index in range(len(sockets))],
        preexec_fn=place,
    )
    try:
        yield process
    finally:
        for fd in high:
            os.close(fd)
        if process.poll() is None:
            process.kill()
        process.communicate()


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_sockets_are_served_and_states_are_told(tmp_path: Path) -> None:
    """A client that came before the broker is served by it; READY, RELOADING, WATCHDOG and STOPPING are told in their time."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    heard: list[str] = []

    def hear(state: str) -> None:
        while state not in heard:
            heard.extend(manager.recv(4096).decode().split("\n"))

    with listener() as amqp, listener() as http:
        early = socket.create_connection(amqp.getsockname())
        early.sendall(b"AMQP\0\0\x09\x01")
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        with broker("amqp:http", [amqp, http], **environment) as process:
            hear("READY=1")
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert (ready["amqp_port"], ready["http_port"]) == (amqp.getsockname()[1], http.getsockname()[1])
            early.settimeout(60)
            assert early.recv(1) == b"\x01"  # a method frame: connection.start
            early.close()
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ready["amqp_port"]))
            channel: Any = connection.channel()
            channel.queue_declare("q", exclusive=True)
            channel.basic_publish("", "q", b"x")
            assert channel.basic_get("q", auto_ack=True)[2] == b"x"
            connection.close()
            with urllib.request.urlopen(f"http://127.0.0.1:{ready['http_port']}/readyz", timeout=60) as answer:
                assert answer.status == 200
            hear("WATCHDOG=1")
            heard.clear()
            process.send_signal(signal.SIGHUP)
            hear("RELOADING=1")
            hear("READY=1")
            process.send_signal(signal.SIGTERM)
            hear("STOPPING=1")
            assert process.wait(60) == 0
    manager.close()


def test_what_is_passed_is_looked_at() -> None:
    with listener() as one, listener() as two, broker("amqp:amqp", [one, two]) as process:
        _, text = process.communicate(timeout=60)
        assert process.returncode == 78 and b"FileDescriptorName=" in text
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with datagrams, broker("amqp", [datagrams]) as process:
        _, text = process.communicate(timeout=60)
        assert process.returncode == 78 and b"does not listen on a TCP port" in text


def test_what_is_not_for_this_process_is_nothing() -> None:
    for environment in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}):
        assert inherited(dict(environment)) == ()
    with pytest.raises(OperatorError):
        inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})
    variables = {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    nobody = Notifier(variables)
    assert not nobody.tell("READY=1") and nobody.watchdog_s is None and not variables
    assert not Notifier({}).tell("READY=1")


def test_the_files_of_deploy_start_a_broker_as_it_is() -> None:
    """Options are those of `flintmq serve`; probes are paths that there are."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "flintmq.service")
    commands = [shlex.split(unit["Service"]["ExecStart"].replace("%S", "/var/lib"))[2:]]
    container = (DEPLOY / "Containerfile").read_text()
    commands.append(json.loads(re.search(r"^CMD (.*)$", container, re.M)[1])[1:])  # type: ignore[index]
    manifest = (DEPLOY / "kubernetes" / "flintmq.yaml").read_text()
    arguments = re.search(r"args: \[(.*)\]", manifest)[1]  # type: ignore[index]
    commands.append([one.strip().strip('"') for one in arguments.split(",")][1:])
    for command in commands:
        context = serve.make_context("serve", list(command))
        assert context.params["data_dir"] == "/var/lib/flintmq" and context.params["flight_port"] is None
    assert set(re.findall(r"path: (/\S+z),", manifest)) == {"/healthz", "/readyz"}
    assert "USER 10001" in container and "readOnlyRootFilesystem: true" in manifest and unit["Service"]["Type"] == "notify"
