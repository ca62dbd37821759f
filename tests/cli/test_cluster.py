"""`flintmq cluster` against nodes on an engine in memory, and against the engine itself.

Properties: what it shows, and its exit codes: 64 no engine, 65 no such node or not in that state, 69 nobody answers, 75 not drained in
time; where all nodes are dead the engine itself tells who is, and forgets them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.broker import shared_service
from flintmq.cli import cluster as command
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.shared.members import Member, write_member
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.twins.memory_engine import MemoryEngine

FAST = {"housekeeping_ms": 20, "shared_poll_ms": 20, "shared_patience_ms": 200}
WAIT_S = 60


class Engine(MemoryEngine):
    def close(self) -> None:
        """It outlives brokers and commands."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    for module in (shared_service, command):
        monkeypatch.setattr(module, "open_engine", lambda url, limits, watched: made)
    limits = Limits().replace(shared_lease_ms=200)
    monkeypatch.setattr(command, "Limits", lambda: limits)
    monkeypatch.setattr(command, "_LOOK_S", 0.02)
    return made


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(command.cluster, words)
    if isinstance(result.exception, OperatorError):
        assert result.exception.exit_code == code, result.exception
        return str(result.exception)
    assert (result.exit_code, result.exception) == (code, None), result.output
    return str(result.output)


@pytest.fixture
def node(engine: Engine, tmp_path: Path) -> Iterator[Broker]:
    options = {"store_dir": str(tmp_path / "one"), "http_port": 0, "cluster": "etcd://127.0.0.1:1", "node_name": "one"}
    with Broker(limits=FAST, **options) as broker:
        cluster = broker.node.broker.cluster  # type: ignore[union-attr]
        wait_until(lambda: cluster.age_s is not None, WAIT_S)
        yield broker


def at(broker: Broker) -> tuple[str, str]:
    return "--uri", f"http://127.0.0.1:{broker.node.http_port}"


def test_the_nodes_as_a_table_and_as_json(node: Broker) -> None:
    head, line = run(*at(node), "status").splitlines()
    assert head.split() == ["name", "state", "version", "amqp", "http", "flight", "left"]
    http = f"127.0.0.1:{node.node.http_port}"
    assert line.split() == ["one", "up", line.split()[2], f"127.0.0.1:{node.port}", http, "-", "0"]
    (found,) = json.loads(run(*at(node), "status", "--json"))["nodes"]
    assert (found["name"], found["state"], found["addresses"]["http"]) == ("one", "up", http)


def test_what_can_not_be_is_said_with_its_exit_code(node: Broker) -> None:
    assert "there is no node 'nobody'" in run(*at(node), "drain", "nobody", code=65)
    assert "is not down" in run(*at(node), "remove", "one", code=65)
    assert "no broker answers" in run("--uri", "http://127.0.0.1:1", "status", code=69)
    assert "there is no node 'nobody'" in run("--engine", "etcd://x:1", "drain", "nobody", code=65)


def test_a_url_that_is_no_engine_s(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "is no engine" in run("--engine", "mysql:x", "status", code=64)
    assert "does not answer" in run("--engine", "etcd://127.0.0.1:1", "status", code=69)


def test_a_node_that_is_not_drained_in_time_goes_on(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    service: Any = node.node.broker.shared
    monkeypatch.setattr(service, "holds", lambda: 3)
    assert "has 3 connections and leases" in run(*at(node), "drain", "one", "--timeout", "1", code=75)
    assert "being drained" in run(*at(node), "drain", "one", "--no-wait")
    monkeypatch.undo()
    assert "it can be stopped" in run(*at(node), "drain", "one")


def test_where_all_nodes_are_dead_the_engine_knows_and_forgets_them(engine: Engine) -> None:
    limits = Limits()
    owners = Owners(engine, limits)
    life = owners.register()
    member = Member("dead", "ab" * 16, life, addresses={"amqp": "host:5672"})
    write_member(engine, member, 1_000)
    keys = declare_queue(engine, "/", "q")
    queue = SharedQueue(engine, keys, owners.uses(keys.life), limits)
    queue.enqueue([Message(b"held")])
    assert len(queue.take(1, 100)[0]) == 1
    assert json.loads(run("--engine", "etcd://x:1", "status", "--json"))["nodes"][0]["state"] == "down"
    run("--engine", "etcd://x:1", "remove", "dead")
    assert json.loads(run("--engine", "etcd://x:1", "status", "--json")) == {"nodes": []}
    other = Owners(engine, limits)
    taken, _ = SharedQueue(engine, keys, other.register(), limits).take(1, 100)
    assert [(one.content, one.meta.redelivered) for one in taken] == [(b"held", True)]
