"""Celery as applications use it, on its current and its previous major line, with processes and with threads.

The previous line (4.4) runs where `make interop` has set it up, and FLINTMQ_CELERY_PREVIOUS names its Python: its own libraries do not know
the Python of today, so it gets one function back that they miss (tools/celery4). Everything else runs with the tests' own Celery.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from tests.support.broker import Broker, unique, wait_until

HERE = Path(__file__).resolve().parent
PREVIOUS = os.environ.get("FLINTMQ_CELERY_PREVIOUS", "")
# All pools with both lines: minutes, which `make interop` takes. Otherwise each scene runs once: test_celery.py has processes.
MUCH = bool(PREVIOUS)
LINES = [pytest.param(sys.executable, id="current")] + ([pytest.param(PREVIOUS, id="previous")] if PREVIOUS else [])


class Gate:
    """One queue, one Celery, one kind of pool."""

    def __init__(self, broker: Broker, python: str, pool: str) -> None:
        self.python, self.pool = python, pool
        self.queue, self.node = unique("gate"), unique("gate") + "@test"
        self.environment = {**os.environ, "CELERY_GATE_URL": broker.url, "CELERY_GATE_QUEUE": self.queue, "C_FORCE_ROOT": "1"}

    def drive(self, *words: str) -> Any:
        command = [self.python, str(HERE / "celery_gate.py"), *words]
        done = subprocess.run(command, env=self.environment, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def worker(self, *options: str, killed: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that is ready. At the end SIGTERM ends it with exit code 0, and its log is free of connection troubles."""
        name = ["-A", "celery_gate"]
        command = [self.python, "-m", "celery", *name, "worker", "-c", "2", "-P", self.pool, "-l", "INFO", "-E", "-n", self.node, *options]
        if self.python == PREVIOUS:
            command = [self.python, "-m", "celery", "worker", *name, *command[6:]]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command, cwd=HERE, stdout=log, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )

            def text() -> str:
                return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode("utf-8", "replace")

            try:
                wait_until(lambda: " ready." in text() or process.poll() is not None, 120, 0.05, "worker ready")
                assert process.poll() is None, text()
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                try:
                    code = process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise AssertionError("worker did not end: " + text()) from None
            assert killed or code == 0, text()
            for bad in ("CRITICAL", "Connection to broker lost", "PreconditionFailed", "Connection reset", "AccessRefused"):
                assert killed or bad not in text(), text()


@pytest.fixture(params=LINES)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("pool", ["prefork", "threads"] if MUCH else ["threads"])
def test_a_worker_does_what_applications_ask(broker: Broker, python: str, pool: str) -> None:
    """Results, retries, countdowns above the prefetch (dynamic prefetch), revocation, remote control, events, and tasks of hours (eta and
    countdown), which are back in the queue when their worker has ended."""
    gate = Gate(broker, python, pool)
    with gate.worker():
        sums, retries = gate.drive("results")
        assert sums == [2 * number for number in range(30)] and retries == 2
        early, passed = gate.drive("countdown")
        assert early >= 4.9 and passed, "an ordinary task waited behind those that are held"
        assert gate.drive("revoke") == "revoked"
        pong, before, after, queues = gate.drive("control", gate.node, pool)
        assert pong == ["pong"] and queues == [gate.queue]
        assert after == before + 2 if pool == "prefork" else after == before
        assert {"task-received", "task-started", "task-succeeded"} <= set(gate.drive("events"))
        held, waited = gate.drive("hours", gate.node)
        assert held == 3 and waited < 30
    with Connection(broker.url) as connection:
        wait_until(lambda: connection.default_channel.queue_declare(gate.queue, passive=True).message_count == 3, 30, 0.05, "they are back")


@pytest.mark.parametrize("pool", ["prefork", "threads"] if MUCH else ["prefork"])
def test_a_task_that_its_worker_took_along_is_done_by_the_next_one(broker: Broker, python: str, pool: str, tmp_path: Path) -> None:
    """acks_late and kill -9 in mid-task; the tasks behind it are done in the order of their priorities."""
    gate, path = Gate(broker, python, pool), tmp_path / "notes"

    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    with gate.worker("-c", "1", killed=True) as process:
        gate.drive("send_notes", str(path), "long:10:2")
        wait_until(lambda: "begun long" in lines(), 60, 0.02, "the task begins")
        os.killpg(process.pid, signal.SIGKILL)
    assert "ended long" not in lines()
    gate.drive("send_notes", str(path), "low:1:0", "middle:5:0", "high:9:0")
    with gate.worker("-c", "1"):
        wait_until(lambda: "ended low" in lines(), 60, 0.02, "all tasks end")
    assert lines()[:4] == ["begun long", "begun long", "ended long", "begun high"]
    assert [line for line in lines() if line.startswith("ended")] == ["ended long", "ended high", "ended middle", "ended low"]


def test_a_countdown_of_hours_waits_in_the_broker_and_one_of_seconds_arrives(broker: Broker) -> None:
    """kombu's native delayed delivery: 28 queues with times to live that dead-letter from one to the next (Celery 5.5 and later)."""
    from kombu import Exchange, Queue
    from kombu.transport.native_delayed_delivery import (
        bind_queue_to_native_delayed_delivery_exchange,
        calculate_routing_key,
        declare_native_delayed_delivery_exchanges_and_queues,
        level_name,
    )

    prefix, name = unique("delay"), unique("tasks")
    with Connection(broker.url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", prefix)
        queue = Queue(name, Exchange(name, type="topic"), routing_key="k", queue_arguments={"x-queue-type": "quorum"})
        queue(connection.channel()).declare()
        bind_queue_to_native_delayed_delivery_exchange(connection, queue, prefix)
        producer = connection.Producer()
        start = time.monotonic()
        for seconds in (3 * 3600, 3, 1):
            first = f"{prefix}_celery_delayed_27"
            producer.publish(f"after {seconds}", exchange=first, routing_key=calculate_routing_key(seconds, "k"))
        arrived: list[tuple[float, str]] = []

        def look() -> bool:
            message = queue(connection.default_channel).get(no_ack=True)
            if message is not None:
                arrived.append((time.monotonic() - start, str(message.payload)))
            return len(arrived) == 2

        wait_until(look, 30, 0.02, "the short ones arrive")
        assert [text for _, text in arrived] == ["after 1", "after 3"]
        assert arrived[0][0] >= 0.98 and arrived[1][0] >= 2.98  # the broker's clock is some milliseconds coarse
        # 10,800 s are 2^13 + 2^11 + 2^9 + 2^5 + 2^4: it waits in the first of them
        waiting = {level: queue_size(connection, level_name(level, prefix)) for level in range(28)}
        assert {level for level, size in waiting.items() if size} == {13}, waiting


def queue_size(connection: Any, name: str) -> int:
    return int(connection.default_channel.queue_declare(name, passive=True).message_count)
