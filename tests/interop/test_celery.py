"""Property: a real Celery worker (-c 2; mingle, gossip and events on) runs tasks with rpc results, chord, eta and retry."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.broker import Broker, unique, wait_until

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 60
NODE = unique("worker") + "@test"


class Worker:
    """The worker process and what belongs to it."""

    def __init__(self, module: Any, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.tasks = module
        self.app = getattr(module, "app", None)
        self.process = process
        self._log = log

    def log(self) -> str:
        """What the worker wrote."""
        # Not by seek and read: the worker writes where this file stands, and would write over what it wrote before.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def started(environment: dict[str, str], module: Any, node: str) -> Iterator[Worker]:
    """A worker that is ready; at the end SIGTERM must end it with exit code 0, and its log must be free of connection troubles."""
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "2", "-P", "prefork", "-l", "INFO", "-E", "-n", node]
    with tempfile.TemporaryFile() as log:
        env = {**os.environ, **environment, "C_FORCE_ROOT": "1"}
        process = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=subprocess.STDOUT, env=env)
        running = Worker(module, process, log)
        try:
            wait_until(lambda: " ready." in running.log() or process.poll() is not None, 120, 0.05, "worker ready")
            assert process.poll() is None, running.log()
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError("worker did not end: " + running.log()) from None
        assert code == 0, running.log()
        for bad in ("CRITICAL", "Connection to broker lost", "PreconditionFailed", "Connection reset", "AccessRefused"):
            assert bad not in running.log(), running.log()


@pytest.fixture(scope="module")
def worker(broker: Broker) -> Iterator[Worker]:
    """The worker with rpc results that most tests share."""
    environment = {"CELERY_TEST_URL": broker.url, "CELERY_TEST_QUEUE": unique("celery")}
    os.environ.update(environment)
    sys.path.insert(0, str(HERE))
    try:
        module = importlib.import_module("celery_app")
    finally:
        sys.path.remove(str(HERE))
        for key in environment:
            del os.environ[key]
    with started(environment, module, NODE) as running:
        yield running
        module.app.close()


def test_results(worker: Worker) -> None:
    """Fifty tasks and their results through the rpc backend."""
    results = [worker.tasks.add.delay(i, i) for i in range(50)]
    assert [r.get(timeout=TIMEOUT_S) for r in results] == [2 * i for i in range(50)]


def test_both_processes_work(worker: Worker) -> None:
    """Slow tasks are spread over both prefork processes."""
    seen: set[int] = set()
    until = time.monotonic() + TIMEOUT_S
    # Where the next task comes only when the one before has ended, one process may do a round alone.
    while len(seen) < 2 and time.monotonic() < until:
        results = [worker.tasks.where.delay() for _ in range(6)]
        seen |= {r.get(timeout=TIMEOUT_S) for r in results}
    assert len(seen) == 2


def test_failure(worker: Worker) -> None:
    """An exception of a task reaches the caller."""
    with pytest.raises(KeyError, match="no such thing"):
        worker.tasks.fail.delay().get(timeout=TIMEOUT_S)


def test_retry(worker: Worker) -> None:
    """self.retry with a countdown."""
    assert worker.tasks.flaky.delay().get(timeout=TIMEOUT_S) == 2


def test_countdown_and_eta(worker: Worker) -> None:
    """Countdown tasks are held by the worker, more of them than its prefetch: its dynamic prefetch must reach the running consumer.

    While six of them wait, an ordinary task still gets through.
    """
    start = time.time()
    held = [worker.tasks.now.apply_async(countdown=8) for _ in range(6)]
    ran = worker.tasks.now.delay().get(timeout=TIMEOUT_S)
    held_ran = [r.get(timeout=TIMEOUT_S) for r in held]
    assert min(held_ran) - start >= 7.9
    assert ran < min(held_ran), "it waited behind the held ones"


def test_chain_and_group(worker: Worker) -> None:
    """Canvas over rpc results."""
    from celery import chain, group

    add = worker.tasks.add
    assert chain(add.s(1, 2), add.s(3), add.s(4)).apply_async().get(timeout=TIMEOUT_S) == 10
    assert group(add.s(i, 1) for i in range(5)).apply_async().get(timeout=TIMEOUT_S) == [1, 2, 3, 4, 5]


def test_chord(broker: Broker, tmp_path: Path) -> None:
    """A chord. Celery's rpc backend refuses chords by itself, so this worker keeps results in files; the chord's tasks go through us."""
    from celery import Celery, chord

    queue, backend = unique("celery"), f"file://{tmp_path}"
    app = Celery("chords", broker=broker.url, backend=backend)
    app.conf.task_default_queue = queue
    environment = {"CELERY_TEST_URL": broker.url, "CELERY_TEST_QUEUE": queue, "CELERY_TEST_BACKEND": backend}
    with started(environment, None, unique("chords") + "@test"):
        header = [app.signature("celery_app.add", args=(i, i)) for i in range(5)]
        result = chord(header, app.signature("celery_app.total"), app=app).apply_async()
        assert result.get(timeout=TIMEOUT_S) == 20
    app.close()


def test_inspect_and_control(worker: Worker) -> None:
    """Remote control: ping, stats, and a change of the pool's prefetch, by the worker's fanout mailbox."""
    control = worker.app.control
    assert control.ping([NODE], timeout=30) == [{NODE: {"ok": "pong"}}]
    inspect = control.inspect([NODE], timeout=30)
    stats = inspect.stats()[NODE]
    assert stats["pool"]["max-concurrency"] == 2
    assert stats["prefetch_count"] >= 2
    queues = inspect.active_queues()[NODE]
    assert queues[0]["name"] == worker.app.conf.task_default_queue


def test_events(worker: Worker) -> None:
    """Task events arrive at a monitor (celeryev topic exchange)."""
    seen: list[str] = []
    done = threading.Event()
    mine = unique("task")

    def note(event: dict[str, Any]) -> None:
        if event.get("uuid") != mine:
            return  # a worker tells of a task's end after its result: one of an earlier test may come now
        seen.append(event["type"])
        if event["type"] == "task-succeeded":
            done.set()

    ready = threading.Event()

    def capture() -> None:
        with worker.app.connection() as connection:
            receiver = worker.app.events.Receiver(connection, handlers={"*": note})
            with receiver.consumer_context() as (consuming, _channel, _consumers):
                ready.set()
                while not done.is_set():
                    try:
                        consuming.drain_events(timeout=0.5)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    assert ready.wait(TIMEOUT_S)
    worker.tasks.add.apply_async((1, 1), task_id=mine).get(timeout=TIMEOUT_S)
    assert done.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


def test_revoke(worker: Worker) -> None:
    """A revoked countdown task never runs."""
    from celery.exceptions import TaskRevokedError

    result = worker.tasks.now.apply_async(countdown=6)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=TIMEOUT_S)
