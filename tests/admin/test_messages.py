"""Pulls, settlements and publishes over real HTTP."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.protocol.v0_9_1.tables import Timestamp
from flintmq.pulls.requests import place
from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection

# A pull waits for the disk, however busy that is: where only that it waits is asked.
PATIENT = {"pull_load_ms": 50_000, "pull_wait_ms_max": 50_000}


def test_publish_pull_ack(shared: Client, name: str) -> None:
    """The main way: a message published, pulled, acked, gone."""
    queue = shared.queue(name)
    answer = shared.post(shared.path(name), {"body": "hello", "properties": {"content_type": "text/plain", "headers": {"n": 1}}})
    assert (answer.status, answer.json["position"], answer.json["durable"]) == (201, 1, False)
    [message] = shared.pull(name=name)
    assert (message["body"], message["encoding"], message["routing_key"], message["exchange"]) == ("hello", "text", name, "")
    assert message["properties"] == {"content_type": "text/plain", "headers": {"n": 1}, "delivery_mode": 2}
    assert (message["redelivered"], message["delivery_count"]) == (False, 0)
    assert shared.post(shared.path(name, "/ack"), {"leases": [message["lease"]]}).json == {"ok": 1, "gone": []}
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (0, 0)


def test_messages_over_amqp_and_http_are_the_same(shared: Client, name: str) -> None:
    """What an AMQP client publishes is pulled over HTTP byte for byte, properties included, and the other way round."""
    pika = pytest.importorskip("pika")
    body = bytes(range(256))
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, body, pika.BasicProperties(headers={"x": "y"}, message_id="m", priority=3))
    [message] = shared.pull("?hold=10", name=name)
    assert message["encoding"] == "base64" and base64.b64decode(message["body"]) == body
    assert message["properties"] == {"headers": {"x": "y"}, "message_id": "m", "priority": 3}
    shared.post(
        shared.path(name), {"body": message["body"], "encoding": "base64", "properties": {"type": "t", "priority": 9}, "persistent": False}
    )
    _, properties, got = channel.basic_get(name, auto_ack=True)
    assert (got, properties.type, properties.priority, properties.delivery_mode) == (body, "t", 9, None)
    connection.close()


def test_a_held_poll_is_answered_by_a_message(shared: Client, name: str) -> None:
    """hold: the answer comes with the message; without one, empty at its end."""
    shared.queue(name)
    got: list[Any] = []
    poller = threading.Thread(target=lambda: got.append(shared.pull("?hold=30", name=name)))
    poller.start()
    wait_until(lambda: shared.node.pulls.figures()["waiting"], what="the poll is held")
    shared.publish("x", name=name)
    poller.join(60)
    assert [message["body"] for message in got[0]] == ["x"]
    assert shared.pull("?hold=0.05&group=other", name=name) == []


def test_pulls_of_one_name_are_one_consumer_of_message_groups(shared: Client, name: str) -> None:
    arguments = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
    shared.node.broker.vhosts["/"].run(shared.node.broker.vhosts["/"].declare_queue(name, arguments=arguments))
    for body in ("a1", "a2", "b1", "a3"):
        assert shared.post(shared.path(name), {"body": body, "properties": {"headers": {"g": body[0]}}}).status == 201
    mine = shared.pull("?count=2&group=one", name=name)
    assert [message["body"] for message in mine] == ["a1", "a2"]
    assert [message["body"] for message in shared.pull("?count=9&group=two", name=name)] == ["b1"]
    for number, others in ((0, []), (1, ["a3"])):
        shared.post(shared.path(name, "/ack"), {"leases": [mine[number]["lease"]]})
        assert [message["body"] for message in shared.pull("?count=9&group=two&hold=0.05", name=name)] == others


def test_batches(shared: Client, name: str) -> None:
    """count and bytes bound a batch; encoding=base64 is obeyed."""
    shared.queue(name)
    shared.publish(*["x" * 10] * 6, name=name)
    assert len(shared.pull("?count=2", name=name)) == 2
    assert len(shared.pull("?count=9&bytes=40", name=name)) == 2
    assert {message["encoding"] for message in shared.pull("?count=9&encoding=base64", name=name)} == {"base64"}


def test_nack_extend_and_expiry(shared: Client, name: str) -> None:
    """nack puts back at once and flagged; extend sets the time anew; a lease that is over gives the message back by itself."""
    shared.queue(name)
    shared.publish("x", name=name)
    [first] = shared.pull("?visibility=60", name=name)
    assert shared.post(shared.path(name, "/nack"), {"leases": [first["lease"]]}).json["ok"] == 1
    [second] = shared.pull("?visibility=60", name=name)
    assert (second["redelivered"], second["delivery_count"]) == (True, 1)
    assert shared.post(shared.path(name, "/extend"), {"leases": [second["lease"]], "visibility": 1.5}).json["ok"] == 1
    [third] = shared.pull("?hold=30", name=name)
    assert (third["redelivered"], third["delivery_count"]) == (True, 2)
    gone = shared.post(shared.path(name, "/ack"), {"leases": [second["lease"], third["lease"]]}).json
    assert (gone["ok"], gone["gone"]) == (1, [second["lease"]]) and gone["reason"] and gone["fix"]


def test_a_delay_does_not_wait_for_housekeeping(start: Callable[..., Client]) -> None:
    """Messages come back at their time although housekeeping is an hour away."""
    client = start({"housekeeping_ms": 3_600_000})
    client.queue("q")
    client.publish(*(f"{n}" for n in range(20)))
    leased = client.pull("?count=20")
    for message, delay in zip(leased, range(20, 0, -1), strict=True):
        assert client.post(client.path("q", "/nack"), {"leases": [message["lease"]], "delay": 0.2 + delay / 100}).json["ok"] == 1
    back: list[str] = []
    while len(back) < 20:
        messages = client.pull("?hold=30&count=20")
        assert messages and all(message["redelivered"] for message in messages)
        back += [message["body"] for message in messages]
    assert sorted(back, key=int) == [f"{n}" for n in range(20)]


def test_nack_with_delay_and_dead_letter(shared: Client, name: str) -> None:
    """delay keeps the message back for that time; requeue false dead-letters it."""
    shared.queue(name + "-dead")
    shared.queue(name, x_dead_letter_exchange="", x_dead_letter_routing_key=name + "-dead")
    shared.publish("x", "y", name=name)
    [message, other] = shared.pull("?count=2", name=name)
    assert shared.post(shared.path(name, "/nack"), {"leases": [other["lease"]], "delay": 3_600}).status == 200
    assert shared.pull(name=name) == []
    begun = time.monotonic()
    assert shared.post(shared.path(name, "/nack"), {"leases": [message["lease"]], "delay": 0.5}).status == 200
    [message] = shared.pull("?hold=30", name=name)
    assert message["body"] == "x" and time.monotonic() - begun > 0.45
    assert shared.post(shared.path(name, "/nack"), {"leases": [message["lease"]], "requeue": False}).json["ok"] == 1
    [letter] = shared.pull("?hold=30", name=name + "-dead")
    assert letter["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


def test_a_client_that_leaves_takes_nothing(shared: Client, name: str) -> None:
    """A held poll whose client is gone is cancelled: the next message is somebody else's, at once and unflagged."""
    shared.queue(name)
    before, parked = shared.node.pulls.figures()["waiting"], shared.node.actors.gauges()["parked"]
    sock = socket.create_connection(("127.0.0.1", shared.port), timeout=30)
    head = f"GET {shared.path(name)}?hold=60 HTTP/1.1\r\n"
    head += f"Host: localhost\r\nX-FlintMQ-Request: 1\r\nAuthorization: {basic()['Authorization']}\r\n\r\n"
    sock.sendall(head.encode())
    # Until it is parked. (One that a worker is looking at: tests/pulls/test_threads.py.)
    wait_until(lambda: shared.node.actors.gauges()["parked"] == parked + 1, what="the poll is held")
    sock.close()
    wait_until(lambda: shared.node.pulls.figures()["waiting"] == before, what="the poll is cancelled")
    shared.publish("x", name=name)
    [message] = shared.pull(name=name)
    assert message["redelivered"] is False


def test_amqp_consumers_and_groups_share_a_queue(shared: Client, name: str) -> None:
    """An idle group takes no message from an AMQP consumer; a held poll gets its share."""
    pika = pytest.importorskip("pika")
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    channel = connection.channel()
    channel.queue_declare(name)
    assert shared.pull("?group=idle", name=name) == []
    got: list[bytes] = []
    channel.basic_consume(name, lambda *parts: got.append(parts[3]), auto_ack=True)
    for n in range(20):
        channel.basic_publish("", name, b"%d" % n)
        for _ in range(1000):
            if len(got) == n + 1:
                break
            connection.process_data_events(0.05)
    assert len(got) == 20
    connection.close()


def test_an_exclusive_consumer_locks_a_queue(shared: Client, name: str) -> None:
    """A pull of a queue in exclusive use is refused with 423; of an exclusive queue, too."""
    with RawConnection("127.0.0.1", shared.broker.port).open() as connection:
        channel = connection.channel(1)
        channel.queue(name)
        channel.consume(name, exclusive=True)
        answer = shared.get(shared.path(name))
        assert (answer.status, answer.json["error"]) == (423, "locked")
        channel.queue(name + "x", exclusive=True)
        answer = shared.get(shared.path(name + "x"))
        assert (answer.status, answer.json["error"]) == (423, "locked")


def test_a_deleted_queue_ends_its_polls(shared: Client, name: str) -> None:
    """Held polls of a queue that is deleted are answered 404."""
    shared.queue(name)
    got: list[Any] = []
    before = shared.node.pulls.figures()["waiting"]
    poller = threading.Thread(target=lambda: got.append(shared.get(shared.path(name) + "?hold=60")))
    poller.start()
    wait_until(lambda: shared.node.pulls.figures()["waiting"] == before + 1, what="the poll is held")
    shared.node.broker.vhosts["/"].run(shared.node.broker.vhosts["/"].delete_queue(name))
    poller.join(60)
    assert (got[0].status, got[0].json["error"]) == (404, "not_found")


def test_full_queues_refuse(shared: Client, name: str) -> None:
    """x-overflow reject-publish: 409; drop-head: the oldest goes."""
    shared.queue(name, x_max_length=1, x_overflow="reject-publish")
    assert shared.post(shared.path(name), {"body": "1"}).status == 201
    answer = shared.post(shared.path(name), {"body": "2"})
    assert (answer.status, answer.json["error"]) == (409, "queue_full")
    shared.queue(name + "d", x_max_length=1)
    shared.publish("1", "2", name=name + "d")
    assert [message["body"] for message in shared.pull("?count=5", name=name + "d")] == ["2"]


def test_a_persistent_publish_is_on_disk_when_it_is_answered(start: Callable[..., Client], tmp_path: Any) -> None:
    """201 with durable true; after a restart the message is there, the one that was leased flagged redelivered."""
    client = start(data_dir=str(tmp_path))
    vhost = client.node.broker.vhosts["/"]
    vhost.run(vhost.declare_queue("d", durable=True))
    for body in ("a", "b"):
        answer = client.post(client.path("d"), {"body": body})
        assert (answer.status, answer.json["durable"]) == (201, True)
    assert client.post(client.path("d"), {"body": "t", "persistent": False}).json["durable"] is False
    assert len(client.pull(name="d")) == 1
    client.broker.node.stop()
    again = start(PATIENT, data_dir=str(tmp_path))
    found: list[Any] = []
    while len(found) < 2:
        batch = again.pull("?count=9", name="d")  # what is in memory by then, one message at least
        assert batch
        found += [(message["body"], message["redelivered"]) for message in batch]
    assert found == [("a", True), ("b", False)]
    assert again.pull("?count=9", name="d") == []


def test_cold_messages_are_waited_for(start: Callable[..., Client], tmp_path: Any) -> None:
    """A pull without hold of a queue whose messages are on disk only is not answered as if it were empty."""
    client = start({"queue_hot_bytes": 1_000, **PATIENT}, data_dir=str(tmp_path))
    client.node.broker.vhosts["/"].run(client.node.broker.vhosts["/"].declare_queue("d", durable=True))
    body = "x" * 400
    client.publish(*[body] * 30, name="d")
    assert client.node.broker.vhosts["/"].queue("d").core.cold_count
    got = 0
    while got < 30:
        messages = client.pull("?count=4", name="d")
        assert messages and all(message["body"] == body for message in messages)
        got += len(messages)


def test_values_that_json_does_not_have(shared: Client, name: str) -> None:
    """nan, infinities, decimals, times and raw bytes in headers: the answer is JSON that any parser takes."""
    queue = shared.queue(name)
    headers = {"nan": float("nan"), "inf": float("-inf"), "d": Decimal("1.5"), "b": b"\xff", "t": Timestamp(7), "l": [float("inf"), None]}
    fields = b"", name.encode(), encode_properties(1, {"headers": headers}), b"x", 4, 0
    place(queue.core, shared.node.broker.log, fields)
    answer = shared.get(shared.path(name))

    def refuse(text: str) -> None:
        raise AssertionError(text)

    [message] = json.loads(answer.raw, parse_constant=refuse)["messages"]
    assert message["properties"]["headers"] == {
        "nan": "nan",
        "inf": "-inf",
        "d": "1.5",
        "b": {"base64": "/w=="},
        "t": 7,
        "l": ["inf", None],
    }


def test_large_answers(shared: Client, name: str) -> None:
    """Answers of megabytes arrive whole, and a small poll beside them, too."""
    shared.queue(name)
    body = "ä" * 500_000
    shared.publish(body, body, name=name)
    assert [message["body"] for message in shared.pull("?count=2", name=name)] == [body, body]


def test_names_of_all_kinds(shared: Client) -> None:
    """Queue names with slashes, spaces and other scripts are percent-encoded, and none is taken for another."""
    for name in ("a/b", "a b", "ünï", "%2F", "..", "q?x#y"):
        shared.queue(name)
        shared.publish(name, name=name)
        assert [message["body"] for message in shared.pull(name=name)] == [name]


def test_many_leases_in_one_ack(shared: Client, name: str) -> None:
    """A whole batch is acked with one call."""
    queue = shared.queue(name)
    for n in range(100):
        queue.core.publish(b"", name.encode(), shared_header(), b"%d" % n, 0, 0)
    messages = shared.pull("?count=100", name=name)
    assert [message["body"] for message in messages] == [str(n) for n in range(100)]
    assert shared.post(shared.path(name, "/ack"), {"leases": [message["lease"] for message in messages]}).json["ok"] == 100
    assert queue.core.unacked_count() == 0


def shared_header() -> bytes:
    from flintmq.protocol.v0_9_1.codec import encode_properties

    return encode_properties(2, {})


def test_one_connection_many_requests(shared: Client, name: str) -> None:
    """Connections are kept and used again."""
    shared.queue(name)
    connection = shared.connection()
    for n in range(20):
        connection.request("POST", shared.path(name), json.dumps({"body": str(n)}), {**basic(), "content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 201
        response.read()
    connection.request("GET", shared.path(name) + "?count=20", None, {**basic(), "x-flintmq-request": "1"})
    assert len(json.loads(connection.getresponse().read())["messages"]) == 20
    connection.close()
