"""What shared queues of two nodes do beyond order: one active consumer of all nodes, priorities, limits in bytes, letters of refused
publishes; and nodes that fight for one queue.

Properties: at any time consumers of one node get the messages of a queue with a single active consumer, and the next node follows when
that one has none, is drained, or dies; higher priorities come first on each node; a limit of bytes holds on all nodes; a queue that nodes
fight for holds up no other queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker import shared_service
from flintmq.kv.engine import Conflict
from flintmq.kv.writes import Request
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.twins.memory_engine import MemoryEngine

SHARED = {"x-queue-type": "shared"}
SINGLE = {**SHARED, "x-single-active-consumer": True}
FAST = {
    "housekeeping_ms": 20,
    "shared_poll_ms": 20,
    "shared_pause_ms": 5,
    "shared_pause_ms_max": 20,
    "shared_patience_ms": 500,
    "shared_unwanted_ms": 20,
    "shared_lease_ms": 3_000,
}
WAIT_S = 60


class Engine(MemoryEngine):
    """`fought`: the life of a queue whose takes all meet others."""

    fought: bytes | None = None

    def decide(self, request: Request, seen: Any, watches: Any) -> int:
        if self.fought is not None and any(b"\x01q" + self.fought + b"l" in key for key in request.writes):
            raise Conflict("others are faster")
        return super().decide(request, seen, watches)

    def close(self) -> None:
        """It outlives brokers."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(shared_service, "open_engine", lambda url, limits, watched: made)
    yield made
    made.fought = None


@pytest.fixture
def pair(start: Callable[..., Broker], tmp_path: Path, engine: Engine) -> tuple[Broker, Broker]:
    def begin(name: str) -> Broker:
        options = {"store_dir": str(tmp_path / name), "http_port": 0, "cluster": "etcd://127.0.0.1:1", "node_name": name}
        return start(limits=FAST, **options)

    return begin("one"), begin("other")


Connect = Callable[..., RawConnection]


def declared(pair: tuple[Broker, Broker], connect: Connect, arguments: dict[str, Any], name: str = "s") -> tuple[Any, Any]:
    """A channel of each node, after both have the queue."""
    here, there = (connect(broker).channel() for broker in pair)
    here.queue(name, durable=True, arguments=arguments)
    here.call("confirm.select")
    wait_until(lambda: name in pair[1].node.broker.vhosts["/"].queues, WAIT_S)
    return here, there


def publish(channel: Any, *bodies: bytes, name: str = "s", **properties: Any) -> list[str]:
    """How each was answered."""
    answers: list[str] = []
    for body in bodies:
        channel.publish(body, routing_key=name, delivery_mode=2, **properties)
        answers.append(channel.connection.recv(channel.number).name)
    return answers


def taken(channel: Any, count: int) -> list[bytes]:
    got = channel.deliveries(count)
    for one in got:
        channel.send("basic.ack", delivery_tag=one.delivery_tag)
    return [one.body for one in got]


def activity(broker: Broker) -> str:
    """Of the only consumer of a node."""
    (status,) = [one["activity_status"] for one in Client(broker).get("/api/consumers").json]
    return str(status)


@pytest.mark.parametrize("how", ["cancel", "connection", "drain", "end", "pause"])
def test_the_consumer_of_another_node_follows(pair: tuple[Broker, Broker], connect: Connect, how: str) -> None:
    publisher, there = declared(pair, connect, SINGLE)
    connection = connect(pair[1])
    active, waits = connection.channel(), connect(pair[0]).channel()
    active.call("basic.qos", prefetch_count=2)
    active.consume("s", "a")
    publish(publisher, b"0", b"1", b"2", b"3")
    assert [one.body for one in active.deliveries(2)] == [b"0", b"1"]
    waits.consume("s", "b")
    waits.nothing(0.1)
    wait_until(lambda: [activity(broker) for broker in pair] == ["waiting", "single_active"], WAIT_S)
    if how == "cancel":
        active.call("basic.cancel", consumer_tag="a")
        assert taken(waits, 2) == [b"2", b"3"], "what the first one has is its own"
        active.send("basic.nack", delivery_tag=2, multiple=True, requeue=True)
        assert [(one.body, one.redelivered) for one in waits.deliveries(2)] == [(b"0", True), (b"1", True)]
        return
    if how == "pause":
        other = pair[1].node.broker
        other.pauses.set(other.vhosts["/"].queues["s"], True)
        assert taken(waits, 2) == [b"2", b"3"]
        return
    if how == "connection":
        connection.drop()
    elif how == "drain":
        Client(pair[0]).post("/api/v1/cluster/nodes/other/drain", {})
    else:
        pair[1].node.stop()
    got = waits.deliveries(4)
    assert [(one.body, one.redelivered) for one in got] == [(b"0", True), (b"1", True), (b"2", False), (b"3", False)]
    assert there is not None


def test_on_one_node_the_next_consumer_follows_as_on_other_queues(pair: tuple[Broker, Broker], connect: Connect) -> None:
    publisher, _ = declared(pair, connect, SINGLE)
    first, second = connect(pair[0]).channel(), connect(pair[0]).channel()
    first.consume("s", "a")
    second.consume("s", "b")
    publish(publisher, b"0")
    assert taken(first, 1) == [b"0"]
    second.nothing(0.05)
    first.call("basic.cancel", consumer_tag="a")
    publish(publisher, b"1")
    assert taken(second, 1) == [b"1"]


def test_higher_priorities_come_first_on_each_node(pair: tuple[Broker, Broker], connect: Connect) -> None:
    here, there = declared(pair, connect, {**SHARED, "x-max-priority": 5})
    there.call("confirm.select")
    publish(here, b"none")
    publish(there, b"two", priority=2)
    publish(here, b"nine", priority=9)
    publish(there, b"five", priority=5)
    publish(here, b"two again", priority=2)
    for channel, body in ((here, b"nine"), (there, b"five"), (here, b"two"), (there, b"two again"), (here, b"none")):
        channel.send("basic.get", queue="s", no_ack=True)
        assert channel.connection.recv(channel.number).body == body


def test_priorities_are_the_same_on_all_nodes(pair: tuple[Broker, Broker], connect: Connect) -> None:
    declared(pair, connect, {**SHARED, "x-max-priority": 5})
    text = "inequivalent arg 'x-max-priority'"
    connect(pair[1]).channel().refuse(406, text, "queue.declare", queue="s", durable=True, arguments={**SHARED, "x-max-priority": 6})


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_limit_of_bytes_holds_on_all_nodes(pair: tuple[Broker, Broker], connect: Connect, overflow: str) -> None:
    here, there = declared(pair, connect, {**SHARED, "x-max-length-bytes": 3_000, "x-overflow": overflow})
    there.call("confirm.select")
    answers = publish(here, bytes(1_000), bytes(1_000)) + publish(there, bytes(1_001), b"small")
    core = pair[0].node.broker.vhosts["/"].queues["s"].core
    if overflow == "reject-publish":
        assert answers == ["basic.ack", "basic.ack", "basic.nack", "basic.ack"]
        wait_until(lambda: core.ready_count() == 3, WAIT_S)
    else:
        assert answers == ["basic.ack"] * 4
        wait_until(lambda: sum(broker.node.broker.counters.drops["maxlen"] for broker in pair) == 1, WAIT_S)
        wait_until(lambda: core.ready_count() == 3, WAIT_S)
        here.send("basic.get", queue="s", no_ack=True)
        assert len(here.connection.recv(here.number).body) == 1_000
    assert core.ready_bytes() <= 3_000


def test_what_is_refused_goes_to_the_dead_letter_exchange(pair: tuple[Broker, Broker], connect: Connect) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    here, _ = declared(pair, connect, {**SHARED, **letters, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    here.queue("dead", durable=True, arguments=SHARED)
    assert publish(here, b"fits", b"does not") == ["basic.ack", "basic.nack"]
    wait_until(lambda: pair[0].node.broker.vhosts["/"].queues["dead"].core.ready_count() == 1, WAIT_S)
    here.send("basic.get", queue="dead", no_ack=True)
    got = here.connection.recv(here.number)
    assert got.body == b"does not"
    assert got.properties["headers"]["x-death"][0]["reason"] == "maxlen"
    wait_until(lambda: pair[0].node.broker.counters.dead_lettered["maxlen"] == 1)


def test_a_queue_that_nodes_fight_for_holds_up_no_other(pair: tuple[Broker, Broker], connect: Connect, engine: Engine) -> None:
    here, _ = declared(pair, connect, SHARED)
    here.queue("fought", durable=True, arguments=SHARED)
    publish(here, b"x", name="fought")
    service = pair[0].node.broker.shared
    entry = service.entry(pair[0].node.broker.vhosts["/"].queues["fought"].queue_id)
    engine.fought = entry.life
    fighter = connect(pair[0]).channel()
    fighter.consume("fought")
    wait_until(lambda: service.facts()["contended"] >= 3, WAIT_S)
    for number in range(10):
        assert publish(here, b"%d" % number) == ["basic.ack"]
        here.send("basic.get", queue="s", no_ack=True)
        assert here.connection.recv(here.number).body == b"%d" % number
        assert service.facts()["answers"]
    assert service.facts()["failures"] == 0
    engine.fought = None
    assert taken(fighter, 1) == [b"x"]
