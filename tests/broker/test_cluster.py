"""Nodes of one cluster on an engine in memory that does what the test wants.

Properties: each node sees the others, and what became of them; a drained node sends its clients away, gives back what it holds and says
when it can be stopped; administrators drain and remove, nobody else; clients learn where to go, and not before their login; an engine that
is away costs the cluster alone.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from flintmq.broker import shared_service
from flintmq.cli.doctor import doctor
from flintmq.errors import OperatorError
from flintmq.kv.engine import Unavailable
from flintmq.shared.keys import MEMBERS
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client, basic
from tests.support.broker import self_signed_certificate, wait_until
from tests.support.rawamqp import RawConnection
from tests.twins.memory_engine import MemoryEngine, MemoryTransaction

SHARED = {"x-queue-type": "shared"}
FAST = {
    "housekeeping_ms": 20,
    "shared_poll_ms": 20,
    "shared_pause_ms": 5,
    "shared_pause_ms_max": 20,
    "shared_patience_ms": 500,
    "shared_unwanted_ms": 20,
}
WAIT_S = 60


class Engine(MemoryEngine):
    """`away`: who asks is told so."""

    away = False

    def begin(self) -> MemoryTransaction:
        if self.away:
            raise Unavailable("away")
        return super().begin()

    def close(self) -> None:
        """It outlives brokers."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(shared_service, "open_engine", lambda url, limits, watched: made)
    yield made
    made.away = False


@pytest.fixture
def begin(start: Callable[..., Broker], tmp_path: Path, engine: Engine) -> Callable[..., Broker]:
    """A node by its name: the same name is the same store."""

    def made(name: str, limits: dict[str, int] | None = None, **options: Any) -> Broker:
        given = {"store_dir": str(tmp_path / name), "http_port": 0, "cluster": "etcd://127.0.0.1:1", "node_name": name}
        return start(limits={**FAST, **(limits or {})}, **{**given, **options})

    return made


def cluster(broker: Broker) -> Any:
    return broker.node.broker.cluster


def states(broker: Broker) -> dict[str, str]:
    return {node["name"]: node["state"] for node in cluster(broker).members()}


@pytest.fixture
def pair(begin: Callable[..., Broker]) -> tuple[Broker, Broker]:
    brokers = begin("one"), begin("other")
    for broker in brokers:
        wait_until(lambda broker=broker: states(broker) == {"one": "up", "other": "up"}, WAIT_S, what="both nodes")
    return brokers


def amqp(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def test_nodes_see_each_other_and_who_is_gone(pair: tuple[Broker, Broker]) -> None:
    one, other = pair
    client = Client(one)
    found = client.get("/api/v1/cluster").json
    assert (found["cluster"], found["node"], found["member"], found["unreadable"]) == (True, "one", True, 0)
    assert found["engine"] == {"kind": "etcd", "answers": True}
    assert [node["addresses"]["amqp"] for node in found["nodes"]] == [amqp(one), amqp(other)]
    assert client.get("/api/v1/cluster/addresses").json == {"amqp": [amqp(other), amqp(one)], "amqps": []}
    nodes = client.get("/api/nodes").json
    assert [(node["name"], node["running"], node["being_drained"]) for node in nodes] == [("one", True, False), ("other", True, False)]
    assert client.get("/api/nodes/other").json["running"] is True
    assert client.get("/api/nodes/nobody").status == 404
    assert 'flintmq_cluster_nodes{state="up"} 2' in client.get("/metrics").raw.decode()
    other.node.stop()
    wait_until(lambda: states(one) == {"one": "up", "other": "down"}, WAIT_S)
    assert client.get("/api/nodes/other").json["running"] is False
    assert client.get("/api/v1/cluster/addresses").json == {"amqp": [amqp(one)], "amqps": []}
    assert client.request("DELETE", "/api/v1/cluster/nodes/one").status == 409
    assert client.request("DELETE", "/api/v1/cluster/nodes/other").json == {"node": "other", "removed": True}
    wait_until(lambda: states(one) == {"one": "up"}, WAIT_S)
    assert client.request("DELETE", "/api/v1/cluster/nodes/other").status == 404


def test_a_drained_node_sends_its_clients_away_and_gives_back_what_it_holds(
    pair: tuple[Broker, Broker], connect: Callable[..., RawConnection]
) -> None:
    one, other = pair
    there = connect(other)
    channel = there.channel()
    channel.queue("s", durable=True, arguments=SHARED)
    channel.queue("plain", durable=True)
    channel.call("confirm.select")
    for number in range(6):
        channel.publish(b"%d" % number, routing_key="s", delivery_mode=2)
        channel.expect("basic.ack")
    channel.publish(b"stays", routing_key="plain", delivery_mode=2)
    channel.expect("basic.ack")
    channel.call("basic.qos", prefetch_count=3)
    channel.consume("s")
    assert [got.body for got in channel.deliveries(3)] == [b"0", b"1", b"2"]
    assert Client(one).post("/api/v1/cluster/nodes/other/drain", {}).status == 202
    there.expect_close(320, "CONNECTION_FORCED - node is drained: connect to another one")
    wait_until(lambda: states(one)["other"] == "drained", WAIT_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other.port), WAIT_S)
    assert Client(other).get("/api/nodes/other").json["being_drained"] is True
    for check in ("is-in-service", "ready-to-serve-clients"):
        assert Client(other).get(f"/api/health/checks/{check}").status == 503
        assert Client(one).get(f"/api/health/checks/{check}").status == 200
    assert Client(one).get("/api/v1/cluster/addresses").json == {"amqp": [amqp(one)], "amqps": []}
    here = connect(one).channel()
    wait_until(lambda: "s" in one.node.broker.vhosts["/"].queues, WAIT_S)
    here.consume("s")
    got = here.deliveries(6)
    assert [one.body for one in got] == [b"%d" % number for number in range(6)], "all of them, in order"
    assert [one.redelivered for one in got] == [True] * 3 + [False] * 3


def test_what_no_client_has_goes_back_though_nobody_looks_at_the_queue(begin: Any, connect: Callable[..., RawConnection]) -> None:
    """The slow look at queues takes them in turn, and there may be thousands."""
    broker = begin("one", {"shared_polls": 0})
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments=SHARED)
    channel.call("confirm.select")
    channel.publish(b"x", routing_key="s", delivery_mode=2)
    channel.expect("basic.ack")
    service = broker.node.broker.shared
    assert service is not None
    queue = broker.node.broker.vhosts["/"].queues["s"]
    service.fetch(queue.queue_id, lambda error: None)  # and whoever asked is gone
    wait_until(lambda: service.holds() == 1, WAIT_S)
    cluster(broker).drain()
    wait_until(lambda: cluster(broker).state == "drained", WAIT_S)
    assert queue.core.elsewhere == 1


def test_who_was_about_to_log_in_is_sent_away_too(pair: tuple[Broker, Broker], connect: Callable[..., RawConnection]) -> None:
    """It was accepted before the listeners closed."""
    pair[1].node.broker.draining = True
    with pytest.raises(AssertionError, match=r"connection.close .*320.*node is drained"):
        connect(pair[1])


def test_a_node_serves_again_after_a_restart(pair: tuple[Broker, Broker], begin: Any, connect: Callable[..., RawConnection]) -> None:
    one, other = pair
    Client(one).post("/api/v1/cluster/nodes/other/drain", {})
    wait_until(lambda: states(one)["other"] == "drained", WAIT_S)
    other.node.stop()
    wait_until(lambda: states(one)["other"] == "down", WAIT_S)
    again = begin("other")
    wait_until(lambda: states(one)["other"] == "up", WAIT_S)
    connect(again).channel()


@pytest.mark.parametrize("tags", ["", "management", "policymaker", "monitoring"])
def test_administrators_alone_drain_and_remove(pair: tuple[Broker, Broker], tags: str) -> None:
    client = Client(pair[0])
    client.request("PUT", "/api/users/tenant", b'{"password": "p", "tags": "%s"}' % tags.encode())
    client.request("PUT", "/api/permissions/%2F/tenant", b'{"configure": ".*", "write": ".*", "read": ".*"}')
    tenant = basic("tenant", "p")
    assert client.post("/api/v1/cluster/nodes/other/drain", {}, {**tenant, "Content-Type": "application/json"}).status == 403
    assert client.request("DELETE", "/api/v1/cluster/nodes/other", None, tenant).status == 403
    assert client.get("/api/v1/cluster", tenant).status == (200 if tags == "monitoring" else 403)
    assert client.get("/api/v1/cluster/addresses", tenant).status == (200 if tags else 403)
    assert client.get("/api/nodes", tenant).status == (200 if tags == "monitoring" else 401)
    assert states(pair[0]) == {"one": "up", "other": "up"}


def test_what_is_not_there_can_not_be_drained(pair: tuple[Broker, Broker]) -> None:
    client = Client(pair[0])
    assert client.post("/api/v1/cluster/nodes/nobody/drain", {}).status == 404
    pair[1].node.stop()
    wait_until(lambda: states(pair[0])["other"] == "down", WAIT_S)
    assert client.post("/api/v1/cluster/nodes/other/drain", {}).status == 409


def test_clients_learn_where_to_go_after_their_login_and_not_before(pair: tuple[Broker, Broker]) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(pair[0].url))
    assert connection._impl.known_hosts == f"{amqp(pair[1])},{amqp(pair[0])}"
    assert amqp(pair[1]) not in str(connection._impl.server_properties)
    connection.close()


def test_clients_with_tls_learn_ports_with_tls(begin: Any) -> None:
    with self_signed_certificate() as (certificate, key):
        broker = begin("one", tls_port=0, tls_cert=certificate, tls_key=key, host="127.0.0.1")
        context = ssl.create_default_context(cafile=certificate)
        at = f"127.0.0.1:{broker.node.amqps_port}"
        options = pika.SSLOptions(context, "127.0.0.1")
        parameters = pika.ConnectionParameters("127.0.0.1", broker.node.amqps_port, ssl_options=options)
        connection = pika.BlockingConnection(parameters)
        assert connection._impl.known_hosts == at
        connection.close()
        assert cluster(broker).addresses("amqp") == [amqp(broker)]


def test_an_engine_that_is_away_costs_the_cluster_alone(pair: tuple[Broker, Broker], engine: Engine, connect: Any) -> None:
    engine.away = True
    one = pair[0]
    wait_until(lambda: cluster(one).age_s > 0.1, WAIT_S)
    channel = connect(one).channel()
    channel.queue("plain", durable=True)
    channel.publish(b"x", routing_key="plain")
    channel.send("basic.get", queue="plain", no_ack=True)
    assert channel.connection.recv(1).body == b"x"
    assert Client(one).get("/api/v1/cluster").json["age_s"] > 0.1
    assert Client(one).get("/api/nodes").status == 200
    engine.away = False
    wait_until(lambda: cluster(one).age_s < 0.1, WAIT_S)


def test_a_drain_goes_on_while_the_engine_is_away(pair: tuple[Broker, Broker], engine: Engine, connect: Any) -> None:
    """The clients go; the node says that it is drained when the engine hears it."""
    there = connect(pair[1])
    there.channel()
    engine.away = True
    cluster(pair[1]).drain()
    there.expect_close(320, "CONNECTION_FORCED - node is drained: connect to another one")
    engine.away = False
    wait_until(lambda: states(pair[0])["other"] == "drained", WAIT_S)


def test_a_name_that_another_node_has_is_said_and_nothing_else_suffers(pair: tuple[Broker, Broker], begin: Any, connect: Any) -> None:
    third = begin("third", node_name="one")
    wait_until(lambda: "is another one, and it lives" in cluster(third).why_not, WAIT_S)
    assert Client(third).get("/api/v1/cluster").json["member"] is False
    connect(third).channel().queue("s", durable=True, arguments=SHARED)
    assert states(pair[1])["one"] == "up"
    assert {node["addresses"]["amqp"] for node in cluster(pair[1]).members()} == {amqp(pair[0]), amqp(pair[1])}


def test_a_bad_row_of_another_node_ends_no_look(pair: tuple[Broker, Broker], engine: Engine) -> None:
    transaction = engine.begin()
    transaction.set(MEMBERS + b"aaa\0\0", b"{" * 100)
    transaction.set(MEMBERS + b"\xff\xfe\0\0", b"{}")
    transaction.commit()
    wait_until(lambda: cluster(pair[0]).refused == 2, WAIT_S)
    assert states(pair[0]) == {"one": "up", "other": "up"}


def test_the_doctor_sees_other_nodes(pair: tuple[Broker, Broker]) -> None:
    def found() -> str:
        uri = f"http://127.0.0.1:{pair[0].node.http_port}"
        result = CliRunner().invoke(doctor, ["--uri", uri, "--json"], catch_exceptions=False)
        assert result.exit_code in (0, 1), result.output
        return str(result.output)

    assert "A node is" not in found()
    Client(pair[0]).post("/api/v1/cluster/nodes/other/drain", {})
    wait_until(lambda: states(pair[0])["other"] == "drained", WAIT_S)
    assert "A node is drained" in found()
    pair[1].node.stop()
    wait_until(lambda: states(pair[0])["other"] == "down", WAIT_S)
    assert "A node is down" in found()


def test_a_node_without_a_cluster_says_so(begin: Any) -> None:
    client = Client(begin("one", cluster=None))
    assert client.get("/api/v1/cluster").json == {"cluster": False, "node": "one", "nodes": []}
    assert client.get("/api/v1/cluster/addresses").json == {"amqp": [], "amqps": []}
    assert client.post("/api/v1/cluster/nodes/one/drain", {}).status == 409


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cluster": "sqlite:x"}, "several nodes"),
        ({"node_name": "a b"}, "no name of a node"),
        ({"advertise_host": "caf\u00e9 1"}, "no host that other machines could be told"),
    ],
)
def test_what_can_be_no_member_does_not_start(begin: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        begin("one", **options)
