"""Definitions of two whole brokers with stores on disk, loops and clients, whose engine is one thread with rows in memory.

Properties: a client's verb, of AMQP or HTTP, is answered when the engine has its change, and its connection goes on; pipelined verbs are
answered in order; the other broker has the change; a broker that was away has it when it is back.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.cluster.definitions import ClusterDefinitions
from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.first import Member
from flintmq.cluster.local_definitions import LocalDefinitions
from flintmq.cluster.told import ToldDefinitions
from flintmq.config import Config, Limits
from flintmq.net.loop import Loop
from flintmq.node import Node
from flintmq.queue.control import QueueHandle
from flintmq.shared import queue_rows
from flintmq.shared.definition_rows import key_of
from tests.admin.conftest import Client
from tests.cluster.several_nodes import FAST, shown
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.twins.faulty_engine import FaultyEngine, Plan

WAIT_S = 30.0
SHARED = {"x-queue-type": "shared"}


class Standing(Plan):
    """Commits stand while `stands` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.stands = threading.Event()
        self.gate = self._stand

    async def _stand(self, call: str) -> None:
        while call == "commit" and self.stands.is_set():
            await asyncio.sleep(0.002)


class ClusterNode(Node):
    """A node whose definitions follow."""

    def __init__(self, config: Config, thread: EngineThread) -> None:
        self._engine_thread = thread
        super().__init__(config)

    def _make_parts(self, definitions: Any, store_log: Any) -> None:
        told = ToldDefinitions(definitions)
        super()._make_parts(told, store_log)
        self.broker._new_shared = lambda queue_id, spec: QueueHandle(queue_id)  # type: ignore[method-assign]
        self.following = ClusterDefinitions(
            LocalDefinitions(self.broker, self.definitions), self._engine_thread, self.config.limits, Member(definitions)
        )
        told.ear = self.following

    def start(self) -> None:
        super().start()
        self.following.start()
        assert self.following.wait_first(WAIT_S)

    def world(self) -> dict[bytes, str]:
        return {key_of(record): shown(record) for record in self.following._local.records()}


class Served:
    """What Client and RawConnection ask of a broker."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.port = node.amqp_port


@pytest.fixture
def plan() -> Standing:
    return Standing()


@pytest.fixture
def thread(plan: Standing) -> Iterator[EngineThread]:
    made = EngineThread("memory:", Limits())
    made.engine = FaultyEngine(made.engine, plan)
    made.start()

    async def nothing() -> None:
        pass

    yield made
    made.stop(nothing, 5.0)


@pytest.fixture
def begin(thread: EngineThread, tmp_path: Path, plan: Standing) -> Iterator[Callable[..., ClusterNode]]:
    """A broker by its name: the same name is the same store."""
    running: list[ClusterNode] = []

    def made(name: str, **limits: Any) -> ClusterNode:
        config = Config(port=0, http_port=0, store_dir=str(tmp_path / name))
        node = ClusterNode(config.with_limits(**{**FAST, "close_ms_max": 250, "housekeeping_ms": 20, **limits}), thread)
        node.start()
        running.append(node)
        return node

    yield made
    plan.stands.clear()
    for node in running:
        end(thread, node)


def end(thread: EngineThread, node: ClusterNode) -> None:
    over = threading.Event()
    thread.run(node.following.close, lambda result, error: over.set())
    assert over.wait(WAIT_S)
    node.stop()


def same(one: ClusterNode, other: ClusterNode) -> None:
    wait_until(lambda: one.world() == other.world(), WAIT_S, what=f"{one.world()} == {other.world()}")


def run(thread: EngineThread, work: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    over = threading.Event()
    thread.run(work, lambda result, error: (answers.append((result, error)), over.set()))
    assert over.wait(WAIT_S)
    assert answers[0][1] is None
    return answers[0][0]


def test_what_clients_of_one_broker_define_by_amqp_and_http_is_on_the_other(
    begin: Callable[..., ClusterNode], thread: EngineThread
) -> None:
    one, other = begin("one"), begin("other")
    connection = RawConnection("127.0.0.1", one.amqp_port or 0)
    channel = connection.open().channel()
    channel.call("exchange.declare", exchange="x", type="topic", durable=True)
    channel.call("exchange.bind", destination="x", source="amq.topic", routing_key="k")
    run(thread, lambda: queue_rows.declare(thread.engine, "/", "s", SHARED))
    wait_until(lambda: all("s" in node.broker.vhosts["/"].queues for node in (one, other)), WAIT_S)
    channel.call("queue.bind", queue="s", exchange="x", routing_key="s")
    client = Client(Served(one))  # type: ignore[arg-type]
    assert client.request("PUT", "/api/users/u", json.dumps({"password": "secret", "tags": "management"}).encode()).status == 201
    assert client.request("PUT", "/api/vhosts/v", b"{}").status == 201
    assert client.request("PUT", "/api/permissions/v/u", b'{"configure":".*","write":".*","read":".*"}').status == 201
    assert client.request("PUT", "/api/policies/v/p", b'{"pattern":"","definition":{"max-length":5}}').status == 201
    same(one, other)
    login = RawConnection("127.0.0.1", other.amqp_port or 0).open(user="u", password="secret", vhost="v")
    login.channel().call("exchange.declare", exchange="y", type="fanout", durable=True)
    same(one, other)
    assert client.request("DELETE", "/api/vhosts/v").status == 204
    login.expect_close(320)
    same(one, other)
    assert "v" not in other.broker.vhosts and other.broker.permissions.has_vhost("guest", "/")
    connection.drop()
    login.drop()


def test_verbs_wait_for_the_engine_are_answered_in_order_and_the_connection_goes_on(
    begin: Callable[..., ClusterNode], plan: Standing
) -> None:
    node = begin("one")
    connection = RawConnection("127.0.0.1", node.amqp_port or 0)
    channel = connection.open().channel()
    plan.stands.set()
    for number in range(10):
        channel.send("exchange.declare", exchange=f"x{number}", type="direct", durable=True)
    channel.send("exchange.declare", exchange="amq.direct", type="direct", durable=True)
    channel.send("queue.declare", queue="q", durable=True)
    wait_until(lambda: "x0" in node.broker.vhosts["/"].exchanges, WAIT_S)
    channel.nothing()
    plan.stands.clear()
    for _ in range(11):
        channel.expect("exchange.declare-ok", WAIT_S)
    channel.expect("queue.declare-ok", WAIT_S)
    connection.drop()


def test_an_engine_that_does_not_answer_is_told_to_clients_within_the_bound_and_others_go_on(
    begin: Callable[..., ClusterNode], plan: Standing
) -> None:
    node = begin("one", shared_waiting_ms_max=100)
    connection = RawConnection("127.0.0.1", node.amqp_port or 0)
    channel = connection.open().channel()
    plan.stands.set()
    channel.send("exchange.declare", exchange="x", type="direct", durable=True)
    connection.expect_close(541, "other nodes will see the change later")
    client = Client(Served(node))  # type: ignore[arg-type]
    assert client.request("PUT", "/api/vhosts/v", b"{}").status == 503
    other = RawConnection("127.0.0.1", node.amqp_port or 0)
    other.open().channel().call("queue.declare", queue="q", durable=True)
    plan.stands.clear()
    wait_until(lambda: not node.following.facts()["waiting"], WAIT_S)
    connection.drop()
    other.drop()


def test_a_broker_that_was_away_has_the_others_definitions_when_it_is_back(begin: Callable[..., ClusterNode], thread: EngineThread) -> None:
    one, other = begin("one"), begin("other")
    client = Client(Served(one))  # type: ignore[arg-type]
    for name in ("gone", "kept"):
        assert client.request("PUT", f"/api/vhosts/{name}", b"{}").status == 201
        assert client.request("PUT", f"/api/exchanges/{name}/x", b'{"type":"direct"}').status == 201
    same(one, other)
    end(thread, other)
    assert client.request("DELETE", "/api/vhosts/gone").status == 204
    assert client.request("DELETE", "/api/exchanges/kept/x").status == 204
    assert client.request("PUT", "/api/vhosts/new", b"{}").status == 201
    back = begin("other")
    same(one, back)
    assert set(back.broker.vhosts) == {"/", "kept", "new"}
    assert isinstance(back.loops[0], Loop)
