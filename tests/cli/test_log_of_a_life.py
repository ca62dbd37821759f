"""What the log of a broker says of its life: one line when it is ready, one for each end of a connection, nothing about nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from flintmq import __version__
from flintmq.config.units import amount


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("life")
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off"]
    with open(folder / "log", "w") as errors:
        broker = subprocess.Popen([*command, "--data-dir", str(folder / "data")], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        parameters = pika.ConnectionParameters("127.0.0.1", ready["amqp_port"], client_properties={"connection_name": "orders-7"})
        pika.BlockingConnection(parameters).close()
        ctl = [sys.executable, "-m", "flintmq.cli.main", "ctl", "--uri", f"http://127.0.0.1:{ready['http_port']}"]
        for verb in ("trace_on", "trace_off"):
            subprocess.run([*ctl, verb], check=True, capture_output=True, timeout=60)
    finally:
        broker.terminate()
        assert broker.wait(60) == 0
    text = Path(folder / "log").read_text()
    return [f"pid {broker.pid}, port {ready['amqp_port']}, data {folder / 'data'}", *text.splitlines()]


def test_a_line_says_what_is_ready(lines: list[str]) -> None:
    facts = re.fullmatch(r"pid (\d+), port (\d+), data (.*)", lines[0])
    assert facts is not None
    (line,) = [one for one in lines if f"FlintMQ {__version__} on Python" in one]
    assert f"process {facts[1]}: amqp on 127.0.0.1:{facts[2]}, http on 127.0.0.1:" in line
    assert f"store {facts[3]}; at most" in line
    assert re.search(r"publishers are blocked above [\d.]+ [KMGT]iB held for clients and below [\d.]+ MiB of free disk", line)


def test_a_connection_that_its_client_closes_has_a_first_and_a_last_line(lines: list[str]) -> None:
    (first,) = [one for one in lines if "client-provided name 'orders-7'" in one]
    name = re.search(r"connection (\S+ -> \S+):", first)
    assert name is not None and "user 'guest' authenticated and granted access to vhost '/'" in first
    (last,) = [one for one in lines if f"connection {name[1]}: closed by its client" in one]
    assert lines.index(last) > lines.index(first)
    assert "[INFO]" in first and "[INFO]" in last


def test_turning_the_firehose_says_what_becomes_of_messages(lines: list[str]) -> None:
    assert [one for one in lines if "tracing of vhost '/' is on" in one and "copied to exchange 'amq.rabbitmq.trace'" in one]
    assert [one for one in lines if "tracing of vhost '/' is off: no more copies" in one]


def test_a_start_and_a_stop_have_nothing_to_warn_of_and_count_nothing(lines: list[str]) -> None:
    noise = [one for one in lines[1:] if "[WARNING]" in one or "[ERROR]" in one or "actors:" in one]
    assert noise == []
    assert [one for one in lines if "stopping on SIGTERM" in one]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (15 << 30, "15.0 GiB"), (2**70, "1024.0 EiB")],
)
def test_bytes_have_a_unit(count: int, shown: str) -> None:
    assert amount(count) == shown
