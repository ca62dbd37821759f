"""Verbs of a cluster, with brokers on etcd: what nodes tell of each other, drains, moves, stops.

Properties: each node sees the others, their queues and where clients go; a queue that moves keeps its order, and what is published at its
old owner meanwhile comes behind; what a consumer had goes back and is flagged, nothing else is; a drained node serves nobody and owns
nothing, and serves again when it is told so; a node that stops hands over what it has.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.cli.cluster import cluster as command
from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.test_two_nodes import (
    begin,
    connect,
    connect_again,
    declared,
    etcd,
    get,
    heap_of_others,
    publish,
    queue,
    start,
    taken,
)  # fmt: skip
from tests.support.broker import wait_until

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]
WAIT_S = 30


class Pair:
    """Two nodes that see each other; the first one owns the queue."""

    def __init__(self, begin: Any, connect: Any, queue: str) -> None:
        self.queue = queue
        self.nodes: list[Broker] = [begin(name, http_port=0) for name in "ab"]
        self.names: list[str] = [one.node.broker.cluster.name for one in self.nodes]
        for one in self.nodes:
            wait_until(lambda one=one: set(states(one)) == set(self.names), WAIT_S, what="both nodes")
        self.owner = declared(connect, self.nodes[0], queue)
        self.other = declared(connect, self.nodes[1], queue)

    def is_owner(self, number: int) -> bool:
        return self.row(number)["owner"] == self.names[number] and served(self.nodes[number], self.queue)

    def row(self, number: int) -> Any:
        """Of the queue, as one of the nodes tells it. The engine has those of other tests, too."""
        rows = Client(self.nodes[number]).get("/api/v1/cluster/queues").json["queues"]
        return next(row for row in rows if row["name"] == self.queue)

    def move(self, to: str, code: int = 202) -> Any:
        answer = Client(self.nodes[1]).post(f"/api/v1/cluster/queues/%2F/{self.queue}/move", {"node": to})
        assert answer.status == code, answer.json
        return answer.json


def run(broker: Broker, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, ("--uri", f"http://127.0.0.1:{broker.node.http_port}", *words))
    error = result.exception
    assert (error.exit_code if isinstance(error, OperatorError) else result.exit_code) == code, result.output or error
    return str(error if code else result.output)


def states(broker: Broker) -> dict[str, Any]:
    return {node["name"]: node["state"] for node in broker.node.broker.cluster.members()}


def served(broker: Broker, queue: str) -> bool:
    entries = broker.node.broker.shared.ownership.by_row.values()
    return any(entry.name == queue and entry.served is not None for entry in entries)


@pytest.fixture
def two(begin: Any, connect: Any, queue: str) -> Pair:
    return Pair(begin, connect, queue)


def test_nodes_tell_who_they_are_what_they_own_and_where_clients_go(two: Pair) -> None:
    publish(two.owner, two.queue, b"1", b"2")
    client = Client(two.nodes[1])
    wait_until(lambda: {node["name"]: node["queues"] for node in client.get("/api/v1/cluster").json["nodes"]}[two.names[0]] >= 1)
    cluster = client.get("/api/v1/cluster").json
    assert (cluster["node"], cluster["member"], cluster["unreadable"]) == (two.names[1], True, 0)
    assert all(node["sign_age_s"] < 5 and node["state"] == "up" for node in cluster["nodes"])
    assert cluster["engine"]["latency_ms"] > 0 and cluster["engine"]["bytes"] > 0 and cluster["engine"]["full"] is False
    row = two.row(1)
    assert (row["vhost"], row["owner"], row["messages"]) == ("/", two.names[0], 2) and row["epoch"] >= 1
    addresses = [f"127.0.0.1:{one.port}" for one in two.nodes]
    assert client.get("/api/v1/cluster/addresses").json == {"amqp": addresses, "amqps": []}
    assert sorted((node["name"], node["running"]) for node in client.get("/api/nodes").json if node["name"] != two.names[1])[0][1] is True
    assert 'flintmq_cluster_nodes{state="up"} 2' in client.get("/metrics").raw.decode()


def test_a_queue_moves_with_its_order_and_flags_what_a_consumer_had(two: Pair, connect: Any) -> None:
    consumer = connect_again(connect, two.owner)
    consumer.call("basic.qos", prefetch_count=1)
    publish(two.owner, two.queue, b"1", b"2")
    consumer.consume(two.queue, "c")
    assert consumer.expect("basic.deliver").body == b"1"
    two.move(two.names[1])
    consumer.connection.expect_close(320, "moved")
    publish(two.owner, two.queue, b"3")  # by the window: the publisher goes on
    wait_until(lambda: two.is_owner(1), WAIT_S, what="the other owner")
    publish(two.owner, two.queue, b"4")
    assert taken(two.other, two.queue) == [(b"1", True), (b"2", False), (b"3", False), (b"4", False)]


def test_a_consumer_at_the_other_node_gives_back_when_the_queue_moves_there_and_its_client_comes_again(two: Pair, connect: Any) -> None:
    consumer = connect_again(connect, two.other)
    consumer.call("basic.qos", prefetch_count=1)
    consumer.consume(two.queue, "c")
    publish(two.owner, two.queue, b"1", b"2")
    assert consumer.expect("basic.deliver").body == b"1"
    two.move(two.names[1])
    consumer.connection.expect_close(320, "moved")
    again = connect_again(connect, two.other)
    again.consume(two.queue, "c", no_ack=True)  # waits for the owner
    assert [(one.body, one.redelivered) for one in again.deliveries(2)] == [(b"1", True), (b"2", False)]
    assert two.is_owner(1)


def test_who_holds_messages_for_too_long_has_the_queue_move_with_all_flagged(two: Pair) -> None:
    two.nodes[0].node.broker.cluster.draining._mover._limits = two.nodes[0].node.broker.limits.replace(cluster_move_ms_max=100)
    publish(two.owner, two.queue, b"1", b"2")
    assert get(two.owner, two.queue, no_ack=False).body == b"1"  # no consumer: nothing that could be closed for it
    two.move(two.names[1])
    wait_until(lambda: two.is_owner(1), WAIT_S, what="the other owner")
    assert taken(two.other, two.queue) == [(b"1", True), (b"2", True)]


def test_what_can_not_be_moved_is_said(two: Pair) -> None:
    assert two.move("nobody", 404)["reason"] == "there is no node 'nobody'"
    client = Client(two.nodes[0])
    assert client.post("/api/v1/cluster/queues/%2F/nothing/move", {"node": two.names[1]}).status == 404
    assert client.post(f"/api/v1/cluster/queues/%2F/{two.queue}/move", {}).status == 400
    two.move(two.names[0])  # which owns it: nothing happens
    assert two.is_owner(0)


def test_a_drained_node_serves_nobody_and_owns_nothing_until_it_serves_again(two: Pair, connect: Any) -> None:
    publish(two.owner, two.queue, b"1", b"2")
    assert get(two.owner, two.queue, no_ack=False).body == b"1"
    client = Client(two.nodes[1])
    assert client.request("POST", f"/api/v1/cluster/nodes/{two.names[0]}/drain").status == 202
    two.owner.connection.expect_close(320, "drained")
    wait_until(lambda: states(two.nodes[1]) == dict(zip(two.names, ("drained", "up"))), WAIT_S, what="the drain")
    assert two.nodes[0].node.broker.shared.ownership.serving.all() == []
    assert client.get("/api/v1/cluster/addresses").json["amqp"] == [f"127.0.0.1:{two.nodes[1].port}"]
    assert taken(two.other, two.queue) == [(b"1", True), (b"2", False)]
    assert two.move(two.names[0], 409)["reason"] == f"node '{two.names[0]}' is drained"
    assert client.request("POST", f"/api/v1/cluster/nodes/{two.names[0]}/undrain").status == 202
    wait_until(lambda: states(two.nodes[1]) == dict.fromkeys(two.names, "up"), WAIT_S, what="the node that serves again")
    publish(declared(connect, two.nodes[0], two.queue), two.queue, b"3")
    assert taken(two.other, two.queue) == [(b"3", False)]


def test_a_node_that_stops_is_forgotten_only_when_it_is_down(two: Pair) -> None:
    publish(two.owner, two.queue, b"1")
    client = Client(two.nodes[1])
    assert client.request("DELETE", f"/api/v1/cluster/nodes/{two.names[0]}").status == 409
    assert client.request("DELETE", "/api/v1/cluster/nodes/nobody").status == 404
    two.nodes[0].node.stop()
    wait_until(lambda: two.is_owner(1), WAIT_S, what="the other owner")
    assert taken(two.other, two.queue) == [(b"1", False)]
    wait_until(lambda: set(states(two.nodes[1])) == {two.names[1]}, WAIT_S, what="its row is gone with it")


def test_the_command_shows_moves_drains_and_lets_serve_again(two: Pair) -> None:
    publish(two.owner, two.queue, b"1")
    asked = two.nodes[1]
    head, *lines = run(asked, "status").splitlines()
    assert head.split()[-2:] == ["queues", "sign_age_s"] and [line.split()[:2] for line in lines] == [[name, "up"] for name in two.names]
    assert ["/", two.queue, two.names[0]] in [line.split()[:3] for line in run(asked, "queues").splitlines()]
    assert "is served by node" in run(asked, "move", two.queue, two.names[1])
    (row,) = [row for row in json.loads(run(asked, "queues", "--json"))["queues"] if row["name"] == two.queue]
    assert row["owner"] == two.names[1]
    assert "it can be stopped" in run(asked, "drain", two.names[0])
    assert "is drained" in run(asked, "move", two.queue, two.names[0], code=65)
    assert "serves again" in run(asked, "undrain", two.names[0])
    assert "is not down" in run(asked, "remove", two.names[0], code=65)


def test_without_room_in_the_engine_publishes_are_refused_at_every_node_and_gets_go_on(two: Pair) -> None:
    publish(two.owner, two.queue, b"1")
    room = two.nodes[0].node.broker.cluster.room
    room.on_low(2)
    for channel in (two.owner, two.other):
        channel.publish(b"refused", routing_key=two.queue)
        assert channel.connection.recv(channel.number).name == "basic.nack"
    assert get(two.other, two.queue).body == b"1"
    room.on_low(0)
    publish(two.other, two.queue, b"2")
    assert get(two.owner, two.queue).body == b"2"


def test_publishers_wait_at_every_node_for_an_engine_that_is_nearly_full_and_their_messages_so_far_are_taken(
    two: Pair, connect: Any
) -> None:
    plain = connect_again(connect, two.owner)
    plain.queue("plain")
    rooms = [node.node.broker.cluster.room for node in two.nodes]
    for room in rooms:
        room.on_low(1)
    publishers = [connect_again(connect, channel) for channel in (two.owner, two.other)]
    for channel in publishers:
        for number in range(3):
            channel.publish(b"%d" % number, routing_key=two.queue)
        assert channel.connection.expect(0, "connection.blocked").reason == "the engine of shared queues is nearly full"
        channel.expect("basic.ack")
        channel.nothing()
    publish(plain, "plain", b"others go on")
    assert [get(two.other, two.queue).body for _ in range(2)] == [b"0", b"0"]
    for room in rooms:
        room.on_low(0)
    for channel in publishers:
        channel.connection.expect(0, "connection.unblocked")
        channel.expect("basic.ack")
    wait_until(lambda: two.owner.call("queue.declare", queue=two.queue, passive=True).message_count == 4)


def test_an_empty_queue_goes_to_the_one_node_that_has_all_its_consumers_after_it_was_idle_for_long(two: Pair, connect: Any) -> None:
    broker = two.nodes[0].node.broker
    consumer = connect_again(connect, two.other)
    consumer.consume(two.queue, "c", no_ack=True)

    def look() -> None:
        over = threading.Event()
        broker.shared.thread.run(broker.cluster.placement.look, lambda result, error: over.set())
        assert over.wait(WAIT_S)

    for _ in range(broker.limits.cluster_placement_looks - 1):
        look()
    publish(two.owner, two.queue, b"1")  # it is not idle
    assert consumer.expect("basic.deliver").body == b"1"
    for _ in range(broker.limits.cluster_placement_looks - 1):
        look()
    assert two.is_owner(0)
    look()
    look()
    wait_until(lambda: two.is_owner(1), WAIT_S, what="the other owner")
    consumer.connection.expect_close(320, "moved")
