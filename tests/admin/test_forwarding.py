"""Calls about a shared queue that another node owns: their answers are the owner's, with the rights of the user who asked.

Properties: whatever shows, takes, moves or removes messages does so at the owner; rights are asked for here; a queue without an owner that
answers is an error that names it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.admin.conftest import Client, basic
from tests.cluster.own_engine import SHARED
from tests.cluster.test_two_nodes import begin, connect_again, declared, etcd, get, publish
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["begin", "connect", "etcd", "heap_of_others", "start"]

Begin = Callable[..., Broker]
ANSWERS = 200


class Two:
    """Two nodes: messages stand at the first one, and are asked for at the second one."""

    def __init__(self, begin: Begin, connect: Any, **options: Any) -> None:
        self.owner, self.other = begin("a", http_port=0, **options), begin("b", http_port=0)
        self.channel = declared(connect, self.owner, "q")
        self.there = declared(connect, self.other, "q")
        self.client = Client(self.other)

    def asked(self, method: str, path: str, value: Any = None, status: int = ANSWERS, **headers: str) -> Any:
        body = None if value is None else json.dumps(value).encode()
        answer = self.client.request(method, path.replace("Q", "%2F/q"), body, {**basic(), "Content-Type": "application/json", **headers})
        assert answer.status == status, answer
        return answer.json if answer.raw else None

    def delete(self) -> None:
        self.channel.call("queue.delete", queue="q")


@pytest.fixture
def two(begin: Begin, connect: Any) -> Any:
    made = Two(begin, connect)
    yield made
    made.delete()


def bodies(answer: Any) -> list[str]:
    return [one["body"] for one in answer["messages"]]


def test_messages_are_shown_found_and_got_as_the_owner_has_them(two: Two) -> None:
    publish(two.channel, "q", b"one", b"two")
    assert bodies(two.asked("GET", "/api/v1/queues/Q/peek")) == ["one", "two"]
    conditions = [{"in": "body", "op": "contains", "value": "w"}]
    assert bodies(two.asked("POST", "/api/v1/queues/Q/search", {"filter": conditions})) == ["two"]
    assert two.asked("GET", "/api/v1/queues/Q")["messages_ready"] == 2
    asked = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert [one["payload"] for one in two.asked("POST", "/api/queues/Q/get", asked)] == ["one", "two"]
    assert get(two.channel, "q").name == "basic.get-empty"


def test_a_message_that_is_too_large_for_another_nodes_get_stays(two: Two) -> None:
    limits = two.owner.node.broker.limits
    two.owner.node.http._parts.broker.limits = limits.replace(cluster_forward_get_bytes_max=100)
    publish(two.channel, "q", b"x" * 200)
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    Client(two.owner).get("/api/overview")
    assert "ask the queue's owner" in two.asked("POST", "/api/queues/Q/get", asked, 503)["reason"]
    assert len(get(two.there, "q").body) == 200


def test_a_pull_waits_at_the_owner_longer_than_one_request_and_its_lease_is_settled_there(two: Two) -> None:
    two.other.node.broker.limits = two.other.node.broker.limits.replace(cluster_forward_hold_ms=100)
    pulled: list[Any] = []
    waits = threading.Thread(target=lambda: pulled.append(two.asked("POST", "/api/v1/queues/Q/messages/pull?hold=20", {})))
    waits.start()
    wait_until(lambda: two.owner.node.broker.vhosts["/"].queues["q"].core.consumer_count() == 1)
    waits.join(0.3)
    publish(two.channel, "q", b"late")
    waits.join(20)
    assert bodies(pulled[0]) == ["late"]
    leases = [pulled[0]["messages"][0]["lease"]]
    assert two.asked("POST", "/api/v1/queues/Q/messages/nack", {"leases": leases})["ok"] == 1
    assert two.asked("POST", "/api/v1/queues/Q/messages/ack", {"leases": leases})["gone"] == leases
    again = two.asked("POST", "/api/v1/queues/Q/messages/pull", {})["messages"][0]
    assert (again["body"], again["redelivered"]) == ("late", True)
    assert two.asked("POST", "/api/v1/queues/Q/messages/ack", {"leases": [again["lease"]]})["ok"] == 1
    assert get(two.there, "q").name == "basic.get-empty"


def test_messages_are_moved_and_removed_at_the_owner(two: Two) -> None:
    two.channel.queue("target", durable=True, arguments=SHARED)
    publish(two.channel, "q", b"1", b"2", b"3")
    positions = [one["position"] for one in two.asked("GET", "/api/v1/queues/Q/peek")["messages"]]
    moved = two.asked("POST", "/api/v1/queues/Q/move", {"routing_key": "target", "positions": positions[1:2]})
    assert (moved["moved"], moved["stopped"]) == (1, None)
    assert two.asked("POST", "/api/v1/queues/Q/remove", {"positions": positions[:1]})["removed"] == 1
    wait_until(lambda: get(two.channel, "target", no_ack=False).body == b"2")
    assert get(two.there, "q").body == b"3"
    two.channel.call("queue.delete", queue="target")


def test_a_pause_is_the_owners(two: Two, connect: Any) -> None:
    two.asked("PUT", "/api/queues/Q/pause", {}, 204)
    reader = connect_again(connect, two.there)
    reader.consume("q", "c", no_ack=True)
    publish(two.channel, "q", b"1")
    reader.nothing()
    two.asked("PUT", "/api/queues/Q/resume", {}, 204)
    assert reader.expect("basic.deliver").body == b"1"


def test_a_deletion_if_unused_and_a_purge_ask_the_owner(two: Two) -> None:
    publish(two.channel, "q", b"1", b"2")
    two.channel.consume("q", "c")
    two.channel.deliveries(2)
    two.asked("DELETE", "/api/queues/Q?if-unused=true", None, 400)
    two.channel.call("basic.cancel", consumer_tag="c")
    two.channel.send("basic.nack", delivery_tag=1, requeue=True)
    wait_until(lambda: two.there.call("queue.declare", queue="q", passive=True).message_count == 1)
    two.asked("DELETE", "/api/queues/Q/contents", None, 204)
    assert get(two.there, "q").name == "basic.get-empty"


def test_whoever_may_not_here_is_refused_here(two: Two) -> None:
    nobody = basic("nobody", "secret")
    assert two.asked("PUT", "/api/users/nobody", {"password": "secret", "tags": "management"}, 201) is None
    permission = {"configure": "", "write": "", "read": ""}
    two.asked("PUT", "/api/permissions/%2F/nobody", permission, 201)
    for method, path, value in (
        ("GET", "/api/v1/queues/Q/peek", None),
        ("POST", "/api/v1/queues/Q/messages/pull", {}),
        ("POST", "/api/queues/Q/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
    ):
        two.asked(method, path, value, 401 if path.startswith("/api/queues") else 403, **nobody)


def test_an_owner_without_http_is_named(begin: Begin, connect: Any) -> None:
    owner, other = begin("a"), begin("b", http_port=0)
    channel = declared(connect, owner, "q")
    declared(connect, other, "q")
    refused = Client(other).get("/api/v1/queues/%2F/q/peek")
    assert refused.status == 503 and "node 'a-" in refused.json["reason"] and "no HTTP service" in refused.json["reason"]
    channel.call("queue.delete", queue="q")
