"""Three brokers of one cluster on one etcd, and clients of pika and Celery on all of them, while the brokers are restarted one after the
other, and while one is killed.

Properties: a drained node tells its clients to go and holds nothing when it says so; nothing that was confirmed is lost; what a consumer
sees twice is flagged, or its publisher sent it twice; pika with reconnects and Celery as it is mend everything by themselves; a node that
is killed is down within its lease and can be forgotten, by a node and by the engine itself.

FLINTMQ_ROLLING_ROUNDS: how often all brokers are restarted (1); `make rolling` has more.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from flintmq.cli.cluster import cluster as command
from tests.shared_wire.test_shared_queues import PERSISTENT, SHARED, on
from tests.shared_wire.test_three_brokers import Clients, check_times, connected, has_route
from tests.support.broker import Broker, unique, wait_until
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.servers import Unavailable, free_ports

HERE = Path(__file__).resolve().parent
WAIT_S = 90
ROUNDS = int(os.environ.get("FLINTMQ_ROLLING_ROUNDS", "1"))
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    try:
        with etcd_cluster() as made:
            yield made
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")


class Trio:
    """Three brokers, each with its own ports and store, which stay when it is started again."""

    def __init__(self, etcd: EtcdCluster, directory: Path) -> None:
        self.engine = on(etcd)[1]
        ports = list(free_ports(2 * len(NAMES)))
        self.amqp, self.http = ports[: len(NAMES)], ports[len(NAMES) :]
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self.brokers: list[Broker] = [self._broker(at) for at in range(len(NAMES))]

    def _broker(self, at: int) -> Broker:
        own = ("--port", str(self.amqp[at]), "--http-port", str(self.http[at]), "--store-dir", str(self._directory / NAMES[at]))
        return self._stack.enter_context(Broker("--cluster", self.engine, "--node-name", NAMES[at], *own))

    def restart(self, at: int) -> None:
        self.brokers[at].stop()
        self.brokers[at] = self._broker(at)

    def close(self) -> None:
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        return [f"amqp://guest:guest@127.0.0.1:{port}/%2F" for port in self.amqp]

    def run(self, *words: str, node: int = 0) -> str:
        result = CliRunner().invoke(command, ["--uri", f"http://127.0.0.1:{self.http[node]}", *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(result.output)

    def states(self, node: int = 0) -> dict[str, str]:
        return {one["name"]: one["state"] for one in json.loads(self.run("status", "--json", node=node))["nodes"]}

    def wait_up(self) -> None:
        for node in range(len(NAMES)):
            wait_until(lambda node=node: self.states(node) == dict.fromkeys(NAMES, "up"), WAIT_S, 0.2, "all nodes up")

    def roll(self) -> None:
        """Each broker in turn: drained by way of another one, stopped, started again."""
        for at, name in enumerate(NAMES):
            other = (at + 1) % len(NAMES)
            assert "it can be stopped" in self.run("drain", name, "--timeout", str(WAIT_S), node=other)
            assert self.states(other)[name] == "drained"
            self.restart(at)
            self.wait_up()


@pytest.fixture(scope="module")
def trio(etcd: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    made = Trio(etcd, tmp_path_factory.mktemp("cluster"))
    try:
        made.wait_up()
        yield made
    finally:
        made.close()


# what a worker must not log
BAD = ("CRITICAL", "PreconditionFailed", "AccessRefused", "Unrecoverable")


class Load(Clients):
    """A publisher that goes on until it is told, and consumers."""

    def __init__(self, trio: Trio, queue: str) -> None:
        super().__init__(trio.brokers, queue)
        self.urls = trio.urls
        self.enough = threading.Event()
        self._until = time.monotonic() + WAIT_S * (1 + 3 * ROUNDS)

    def publish(self, first: int) -> None:
        number = 0
        for channel in self._channels(first):
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                channel.confirm_delivery()
                while not self.enough.is_set():
                    channel.basic_publish("orders", "new", b"%d" % number, PERSISTENT, mandatory=True)
                    self.confirmed.add(number)
                    number += 1
                    time.sleep(0.005)  # brokers are restarted for longer than any fixed number of messages takes
                return
            self.sent_again.add(number)


class Celery:
    """A worker, and a thread that gives it tasks."""

    def __init__(self, trio: Trio, directory: Path) -> None:
        self._file = directory / "numbers"
        self._file.touch()
        environment = {"CELERY_TEST_URLS": ";".join(trio.urls), "CELERY_TEST_QUEUE": unique("tasks"), "CELERY_TEST_FILE": str(self._file)}
        before = dict(os.environ)
        os.environ.update(environment)
        sys.path.insert(0, str(HERE))
        sys.modules.pop("celery_app", None)
        try:
            self._module: Any = importlib.import_module("celery_app")
        finally:
            sys.path.remove(str(HERE))
            sys.modules.pop("celery_app", None)
            os.environ.clear()
            os.environ.update(before)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        words = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "2", "-l", "INFO", "-n", unique("worker") + "@test"]
        env = {**before, **environment, "C_FORCE_ROOT": "1"}
        self._worker = subprocess.Popen(words, cwd=HERE, stdout=self._log, stderr=subprocess.STDOUT, env=env)
        self.sent = 0
        self.errors: list[BaseException] = []
        self._enough = threading.Event()
        wait_until(lambda: " ready." in self.log() or self._worker.poll() is not None, WAIT_S, 0.05, "worker ready")
        assert self._worker.poll() is None, self.log()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            while not self._enough.is_set():
                self._module.note.delay(self.sent)
                self.sent += 1
                time.sleep(0.02)
        except BaseException as error:
            self.errors.append(error)

    def log(self) -> str:
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode("utf-8", "replace")

    def done(self) -> set[int]:
        return {int(line) for line in self._file.read_text().splitlines()}

    def enough(self) -> None:
        """No more tasks; each that was sent was carried out, and the worker ends as if nothing had been."""
        self._enough.set()
        self._thread.join(WAIT_S)
        assert not self.errors and not self._thread.is_alive(), self.errors
        wait_until(lambda: self.done() == set(range(self.sent)), WAIT_S, 0.1, "all tasks")
        self._worker.send_signal(signal.SIGTERM)
        assert self._worker.wait(WAIT_S) == 0, self.log()
        # It acks by a connection that a restart just ended, says so, and gets the message once more.
        wrong = [line for line in self.log().splitlines() if any(bad in line for bad in BAD) and "Couldn't ack" not in line]
        assert not wrong, self.log()

    def close(self) -> None:
        self._enough.set()
        if self._worker.poll() is None:
            self._worker.kill()
            self._worker.wait()
        self._module.app.close()
        self._log.close()


@contextlib.contextmanager
def under_load(trio: Trio, directory: Path) -> Iterator[tuple[Load, Celery]]:
    """pika and Celery on all brokers; at the end nothing is missing."""
    queue = unique("rolling")
    with connected(trio.urls[0]) as channel:
        channel.exchange_declare("orders", "topic", durable=True)
        channel.queue_declare(queue, durable=True, arguments=SHARED)
        channel.queue_bind(queue, "orders", "#")
    for broker in trio.brokers:
        wait_until(lambda broker=broker: has_route(broker), WAIT_S, 0.1, "definitions on the other brokers")
    load, celery = Load(trio, queue), Celery(trio, directory)
    threads = [load.start(load.publish, 1), load.start(load.consume, 0, "first", 0), load.start(load.consume, 2, "second", 0)]
    try:
        wait_until(lambda: len(load.confirmed) > 20 and len(celery.done()) > 5, WAIT_S, 0.05, "messages and tasks before")
        yield load, celery
        behind = len(load.confirmed), celery.sent
        wait_until(lambda: len(load.confirmed) > behind[0] + 20 and celery.sent > behind[1] + 5, WAIT_S, 0.05, "messages and tasks after")
        celery.enough()
        load.enough.set()
        threads[0].join(WAIT_S)
        assert not threads[0].is_alive()
        wait_until(lambda: {number for number, _ in load.all_seen()} >= load.confirmed, WAIT_S, 0.1, "all messages at consumers")
    finally:
        load.enough.set()
        load.over.set()
        celery.close()
        for thread in threads:
            thread.join(WAIT_S)
    assert not load.errors
    # A node that is drained gives back what it took ahead, untouched and without a flag: another one may have delivered later messages.
    check_times(load)
    with connected(trio.urls[0]) as channel:
        channel.queue_delete(queue)


def test_pika_and_celery_mend_restarts_of_all_brokers_and_the_death_of_one(trio: Trio, tmp_path: Path) -> None:
    with under_load(trio, tmp_path) as (load, _):
        for _ in range(ROUNDS):
            trio.roll()
        assert load.reconnects >= 3 * ROUNDS, "each client lost its broker"
        trio.brokers[1].kill()
        began = time.monotonic()
        wait_until(lambda: trio.states()["two"] == "down", WAIT_S, 0.2, "the dead node")
        assert time.monotonic() - began < 5 + 15, "a lease, and a look; the machine may be busy"


def test_a_node_that_died_is_forgotten_and_comes_back(trio: Trio) -> None:
    """After the test above. By a node, and by the engine itself."""
    trio.run("remove", "two")
    wait_until(lambda: set(trio.states()) == {"one", "three"}, WAIT_S, 0.2, "the node is forgotten")
    lines = trio.run("status").splitlines()
    assert lines[0].split()[:3] == ["name", "state", "version"]
    assert [line.split()[:2] for line in lines[1:]] == [["one", "up"], ["three", "up"]]
    engine = CliRunner().invoke(command, ["--engine", trio.engine, "status", "--json"], catch_exceptions=False)
    assert {one["name"]: one["state"] for one in json.loads(engine.output)["nodes"]} == {"one": "up", "three": "up"}
    trio.restart(1)
    trio.wait_up()
