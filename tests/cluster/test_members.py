"""The cluster as operators, clients and strangers see it, with brokers on etcd.

Properties: a node that is drained says so to load balancers and to the doctor; administrators drain and remove, nobody else; clients learn
where to go, and not before their login; a second node of one name, and rows that can't be read, cost the others nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from flintmq.cli.doctor import doctor
from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.opening import open_engine
from flintmq.errors import OperatorError
from flintmq.shared.nodes import node_key
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client, basic
from tests.cluster.test_two_nodes import begin, connect, etcd, heap_of_others, queue, start
from tests.cluster.test_view import WAIT_S, Pair, states, two
from tests.support.broker import self_signed_certificate, wait_until
from tests.support.etcd import EtcdCluster

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start", "two"]


def amqp(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def test_a_drained_node_says_so_to_whoever_may_send_clients_there(two: Pair, connect: Any) -> None:
    def told() -> str:
        uri = f"http://127.0.0.1:{two.nodes[0].node.http_port}"
        result = CliRunner().invoke(doctor, ["--uri", uri, "--json"], catch_exceptions=False)
        assert result.exit_code in (0, 1), result.output
        return str(result.output)

    assert "A node is" not in told()
    one, other = map(Client, two.nodes)
    assert one.request("POST", f"/api/v1/cluster/nodes/{two.names[1]}/drain").status == 202
    wait_until(lambda: states(two.nodes[0])[two.names[1]] == "drained", WAIT_S)
    assert other.get(f"/api/nodes/{two.names[1]}").json["being_drained"] is True
    for check in ("is-in-service", "ready-to-serve-clients"):
        assert other.get(f"/api/health/checks/{check}").status == 503
        assert one.get(f"/api/health/checks/{check}").status == 200
    assert one.get("/api/v1/cluster/addresses").json == {"amqp": [amqp(two.nodes[0])], "amqps": []}
    with pytest.raises(AssertionError, match=r"connection.close .*320.*node is drained"):
        connect(two.nodes[1])
    assert "A node is drained" in told()


def test_administrators_alone_drain_and_remove(two: Pair) -> None:
    client = Client(two.nodes[0])
    for tags in ("", "management", "policymaker", "monitoring"):
        name = f"tenant{tags}"
        client.request("PUT", f"/api/users/{name}", b'{"password": "p", "tags": "%s"}' % tags.encode())
        client.request("PUT", f"/api/permissions/%2F/{name}", b'{"configure": ".*", "write": ".*", "read": ".*"}')
        tenant = basic(name, "p")
        posts = {**tenant, "Content-Type": "application/json"}
        for verb in (f"nodes/{two.names[1]}/drain", f"nodes/{two.names[1]}/undrain", f"queues/%2F/{two.queue}/move"):
            assert client.post(f"/api/v1/cluster/{verb}", {"node": two.names[1]}, posts).status == 403
        assert client.request("DELETE", f"/api/v1/cluster/nodes/{two.names[1]}", None, tenant).status == 403
        assert client.get("/api/v1/cluster", tenant).status == (200 if tags == "monitoring" else 403)
        assert client.get("/api/v1/cluster/addresses", tenant).status == (200 if tags else 403)
        assert client.get("/api/nodes", tenant).status == (200 if tags == "monitoring" else 401)
        client.request("DELETE", f"/api/users/{name}")
    assert states(two.nodes[0]) == dict.fromkeys(two.names, "up")


def test_clients_learn_where_to_go_after_their_login_and_not_before(two: Pair) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(two.nodes[0].url))
    assert connection._impl.known_hosts == f"{amqp(two.nodes[1])},{amqp(two.nodes[0])}"
    assert amqp(two.nodes[1]) not in str(connection._impl.server_properties)
    connection.close()


def test_clients_with_tls_learn_ports_with_tls(begin: Any) -> None:
    with self_signed_certificate() as (certificate, key):
        broker = begin("one", tls_port=0, tls_cert=certificate, tls_key=key, host="127.0.0.1")
        context = ssl.create_default_context(cafile=certificate)
        options = pika.SSLOptions(context, "127.0.0.1")
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.node.amqps_port, ssl_options=options))
        assert f"127.0.0.1:{broker.node.amqps_port}" in connection._impl.known_hosts.split(",")
        connection.close()
        assert amqp(broker) in broker.node.broker.cluster.addresses("amqp")


def test_a_name_that_another_node_has_is_said_and_nothing_else_suffers(two: Pair, begin: Any) -> None:
    third = begin("third", node_name=two.names[0], http_port=0)
    wait_until(lambda: "lives" in third.node.broker.cluster.why_not, WAIT_S)
    assert Client(third).get("/api/v1/cluster").json["member"] is False
    assert states(two.nodes[1]) == dict.fromkeys(two.names, "up")
    assert {node["addresses"]["amqp"] for node in two.nodes[1].node.broker.cluster.members()} == set(map(amqp, two.nodes))


def test_rows_of_nodes_that_can_not_be_read_end_no_look(two: Pair, etcd: EtcdCluster) -> None:
    async def put(rows: dict[bytes, bytes | None]) -> None:
        engine = open_engine("etcd://" + etcd.endpoints[0].partition("//")[2], Limits())
        await engine.connect()
        await engine.commit(
            Commit((), {key: row for key, row in rows.items() if row is not None}, [key for key in rows if rows[key] is None])
        )
        await engine.close()

    bad: dict[bytes, bytes | None] = {node_key("aaa"): b"{" * 100, node_key("") + b"\xff\xfe": b"{}"}
    asyncio.run(put(bad))
    try:
        wait_until(lambda: two.nodes[0].node.broker.cluster.refused == 2, WAIT_S)
        assert states(two.nodes[0]) == dict.fromkeys(two.names, "up")
    finally:
        asyncio.run(put(dict.fromkeys(bad)))


def test_a_node_without_a_cluster_says_so(start: Callable[..., Broker], tmp_path: Any) -> None:
    client = Client(start(store_dir=str(tmp_path / "store"), http_port=0, node_name="one"))
    assert client.get("/api/v1/cluster").json == {"cluster": False, "node": "one", "nodes": []}
    assert client.get("/api/v1/cluster/addresses").json == {"amqp": [], "amqps": []}
    assert client.post("/api/v1/cluster/nodes/one/drain", {}).status == 409
    declared = client.request("PUT", "/api/queues/%2F/s", b'{"durable": true, "arguments": {"x-queue-type": "shared"}}')
    assert declared.status == 201, declared.raw  # the first one of the node, which makes the embedded engine


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cluster": "sqlite:x"}, "several nodes"),
        ({"node_name": "a b"}, "no name of a node"),
        ({"advertise_host": "caf\u00e9 1"}, "no host that other machines could be told"),
    ],
)
def test_what_can_be_no_member_does_not_start(start: Callable[..., Broker], tmp_path: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        start(store_dir=str(tmp_path / "store"), **{"cluster": "etcd://127.0.0.1:1", "node_name": "one", **options})


def test_a_store_with_shared_queues_of_an_earlier_version_is_refused_and_stays_as_it_is(
    start: Callable[..., Broker], tmp_path: Any
) -> None:
    start(store_dir=str(tmp_path / "store")).node.stop()
    earlier = tmp_path / "store" / "shared.db"
    earlier.write_bytes(b"messages")
    with pytest.raises(OperatorError, match="an earlier FlintMQ wrote them"):
        start(store_dir=str(tmp_path / "store"))
    assert earlier.read_bytes() == b"messages"
