"""`flintmq serve`: one ready line, a graceful end on SIGTERM whatever the clients do, and exit codes with one clear line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.rawamqp import RawConnection

COMMAND = [sys.executable, "-m", "flintmq.cli.main", "serve"]
QUIET = ["--memory", "--port", "0", "--http-port", "off", "--flight-port", "off"]


@contextmanager
def serving(*extra: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen([*COMMAND, *QUIET, *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] is True
        yield process, ready["amqp_port"]
    finally:
        process.kill()
        process.communicate()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_sigterm_closes_every_client_with_320(threads: str) -> None:
    with serving("--io-threads", threads) as (process, port):
        clients = [RawConnection("127.0.0.1", port).open() for _ in range(4)]
        for client in clients:
            client.channel().queue(exclusive=True)
        half = RawConnection("127.0.0.1", port)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.expect_close(320, "CONNECTION_FORCED")
        half.recv_until_closed()
        assert process.wait(30) == 0
        assert process.stdout is not None and process.stdout.read() == "", "the ready line is the only line"


def test_client_that_never_answers_does_not_hold_the_stop() -> None:
    with serving() as (process, port):
        client = RawConnection("127.0.0.1", port).open()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert client.expect(0, "connection.close").reply_code == 320
        assert process.wait(30) == 0
        assert time.monotonic() - began < 30


def test_second_sigterm_means_now() -> None:
    with serving() as (process, port):
        client = RawConnection("127.0.0.1", port).open()
        process.send_signal(signal.SIGTERM)
        client.expect(0, "connection.close")  # the stop is under way and waits for us
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_sigint_is_graceful_too() -> None:
    with serving() as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_ready_line_has_the_agreed_fields() -> None:
    process = subprocess.Popen([*COMMAND, *QUIET], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and rest == "", errors
    assert {"ready", "amqp_port", "http_port", "flight_port", "store_dir"} <= set(ready)
    assert ready["http_port"] is None and ready["flight_port"] is None


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_port_in_use_is_69() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one_line(run(*QUIET, "--port", str(port)), 69, f"127.0.0.1:{port}", "Address already in use", "--port")


def test_tls_port_in_use_is_69_too(tmp_path: Path) -> None:
    from tests.support.broker import self_signed_certificate

    with socket.create_server(("127.0.0.1", 0)) as taken, self_signed_certificate() as (cert, key):
        port = taken.getsockname()[1]
        one_line(run(*QUIET, "--tls-cert", cert, "--tls-key", key, "--tls-port", str(port)), 69, str(port))


@pytest.mark.parametrize("arguments", [["--prot", "1"], ["--port", "many"], ["--port", "70000"], ["--io-threads", "0"], ["--no-data-dir"]])
def test_wrong_use_is_64(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 64, done.stderr
    assert arguments[0] in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 5\n", ["prot", "did you mean 'port'"]),
        ("something-else-entirely = 5\n", ["something-else-entirely"]),
        ("port = \n", ["line 1"]),
        ('port = "many"\n', ["port", "many"]),
        ('io-threads = "x"\n', ["io-threads", "x"]),
        ("io_threads = 1000\n", ["io-threads", "1000"]),
        ('memory = "yes please"\n', ["memory", "yes please"]),
    ],
)
def test_wrong_configuration_is_78(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "flintmq.toml"
    path.write_text(text)
    one_line(run(*QUIET, "--config", str(path)) if not text.startswith("port") else run("--config", str(path)), 78, str(path), *words)


def test_missing_configuration_file_is_78(tmp_path: Path) -> None:
    one_line(run("--config", str(tmp_path / "absent.toml")), 78, "absent.toml", "No such file")


def test_configuration_file_counts_and_the_command_line_wins(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "flintmq.toml"
        path.write_text(f'port = {taken.getsockname()[1]}\nhttp-port = "off"\nio_threads = 2\n')
        assert run("--memory", "--config", str(path)).returncode == 69
        with serving("--config", str(path)) as (_, port):
            RawConnection("127.0.0.1", port).open().close()
