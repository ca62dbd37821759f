"""`flintmq cluster` against nodes on etcd, and against the engine itself.

Properties: by the engine it says the same as by a node; orders given there are obeyed; where all nodes are dead the engine tells who is,
and forgets them; exit codes: 64 no engine of a cluster, 65 no such node or not in that state, 69 nobody answers, 75 not drained in time.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.cli import cluster as command
from flintmq.config import Limits
from flintmq.errors import OperatorError
from tests.cluster.test_two_nodes import LEASE_MS, begin, connect, declared, die, etcd, heap_of_others, publish, queue, start, taken
from tests.cluster.test_view import Pair, states
from tests.engines.engines import etcd_url
from tests.support.broker import wait_until

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]
WAIT_S = 30


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(command.cluster, words)
    if isinstance(result.exception, OperatorError):
        assert result.exception.exit_code == code, result.exception
        return str(result.exception)
    assert (result.exit_code, result.exception) == (code, None), result.output
    return str(result.output)


class Asked:
    """The cluster of a pair, by a node and by its engine."""

    def __init__(self, pair: Pair, url: str) -> None:
        self.pair = pair
        self.by_uri = ("--uri", f"http://127.0.0.1:{pair.nodes[1].node.http_port}")
        self.by_engine = ("--engine", url)

    def nodes(self, by: tuple[str, str]) -> dict[str, dict[str, Any]]:
        """Of this test. The engine has those of other tests, too."""
        return {row["name"]: row for row in json.loads(run(*by, "status", "--json"))["nodes"] if row["name"] in self.pair.names}

    def queue(self, by: tuple[str, str]) -> dict[str, Any]:
        (row,) = [row for row in json.loads(run(*by, "queues", "--json"))["queues"] if row["name"] == self.pair.queue]
        return row


@pytest.fixture
def asked(begin: Any, connect: Any, queue: str, etcd: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    limits = Limits().replace(shared_node_lease_ms=LEASE_MS)
    monkeypatch.setattr(command, "Limits", lambda: limits)
    return Asked(Pair(begin, connect, queue), etcd_url(etcd))


def test_by_the_engine_it_says_the_same_as_by_a_node(asked: Asked) -> None:
    wait_until(lambda: asked.nodes(asked.by_uri)[asked.pair.names[0]]["queues"] == 1, WAIT_S, what="a sign of life with the queue")
    by_node, by_engine = asked.nodes(asked.by_uri), asked.nodes(asked.by_engine)
    assert {row["state"] for row in by_engine.values()} == {"up"}
    for rows in (by_node, by_engine):
        for row in rows.values():
            assert row.pop("sign_age_s") < LEASE_MS / 1000
    assert by_engine == by_node
    heads = [run(*by, "status").splitlines()[0].split() for by in (asked.by_uri, asked.by_engine)]
    assert heads[0] == heads[1] == ["name", "state", "version", "amqp", "http", "flight", "left", "queues", "sign_age_s"]
    of_node, of_engine = asked.queue(asked.by_uri), asked.queue(asked.by_engine)
    assert of_node == {**of_engine, "messages": 0}
    for by in (asked.by_uri, asked.by_engine):
        assert "there is no node 'nobody'" in run(*by, "drain", "nobody", code=65)
        assert "is not down: drain it, and stop it" in run(*by, "remove", asked.pair.names[0], code=65)
        assert "there is no node 'nobody'" in run(*by, "move", asked.pair.queue, "nobody", code=65)
        assert "no shared queue 'nothing' in vhost '/'" in run(*by, "move", "nothing", asked.pair.names[0], code=65)


def test_orders_that_are_given_at_the_engine_are_obeyed(asked: Asked) -> None:
    first, second = asked.pair.names
    publish(asked.pair.owner, asked.pair.queue, b"1")
    assert f"is served by node {second}" in run(*asked.by_engine, "move", asked.pair.queue, second)
    wait_until(lambda: asked.pair.is_owner(1), WAIT_S, what="the other owner")
    assert f"node {first} is drained: it can be stopped" in run(*asked.by_engine, "drain", first)
    assert states(asked.pair.nodes[0])[first] == "drained"
    assert "is drained" in run(*asked.by_engine, "move", asked.pair.queue, first, code=65)
    assert "serves again" in run(*asked.by_engine, "undrain", first)
    wait_until(lambda: states(asked.pair.nodes[0])[first] == "up", WAIT_S, what="the node that serves again")
    assert taken(asked.pair.other, asked.pair.queue) == [(b"1", False)]


def test_a_node_that_is_not_drained_in_time_goes_on(begin: Any, connect: Any, queue: str) -> None:
    """It has a queue, and nobody is there to take it."""
    node = begin("alone", http_port=0)
    declared(connect, node, queue)
    name, by = node.node.broker.cluster.name, ("--uri", f"http://127.0.0.1:{node.node.http_port}")
    assert "has 0 connections and queues" not in run(*by, "drain", name, "--timeout", "1", code=75)
    assert "being drained" in run(*by, "drain", name, "--no-wait")
    run(*by, "undrain", name)
    wait_until(lambda: states(node)[name] == "up", WAIT_S, what="the node that serves again")


def test_where_all_nodes_are_dead_the_engine_knows_and_forgets_them(asked: Asked) -> None:
    for node in asked.pair.nodes:
        node.node._leave = bool  # nobody is told
        shared = node.node.broker.shared
        shared.thread.call(die, shared)
    assert {row["state"] for row in asked.nodes(asked.by_engine).values()} == {"down"}
    first, second = asked.pair.names
    assert f"node '{first}' is down" in run(*asked.by_engine, "drain", first, code=65)
    assert "is down" in run(*asked.by_engine, "move", asked.pair.queue, second, code=65)
    run(*asked.by_engine, "remove", first)
    assert set(asked.nodes(asked.by_engine)) == {second}
    assert asked.queue(asked.by_engine)["owner"] == first, "the queue stays, for the next node that comes"


def test_a_url_that_is_no_engine_of_a_cluster() -> None:
    assert "names no engine" in run("--engine", "mysql:x", "status", code=64)
    assert "is the engine of one node" in run("--engine", "sqlite:rows.db", "status", code=64)
    assert "does not answer" in run("--engine", "etcd://127.0.0.1:1", "status", code=69)
    assert "no broker answers" in run("--uri", "http://127.0.0.1:1", "status", code=69)
