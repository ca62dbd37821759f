"""Routes that headers, CC, BCC, chance or topic permissions decide: found without Python after the first time, and never an old one."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.access.users import hash_password
from flintmq.config import Limits
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.routing.message import keys_of
from flintmq.session import publishing
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
QUEUES = ("a", "b", "c")


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    channel = connect(broker).channel()
    for queue in QUEUES:
        channel.queue(queue)
    return channel


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python is asked for: one item for each message or route."""
    calls: list[Any] = []
    for name in ("publish", "find_route"):
        function = getattr(publishing, name)

        def counted(*arguments: Any, function: Any = function) -> Any:
            calls.append(arguments[1:])
            return function(*arguments)

        monkeypatch.setattr(publishing, name, counted)
    return calls


def drained(ch: RawChannel, queue: str) -> list[Any]:
    found = []
    while (got := ch.call("basic.get", queue=queue, no_ack=True)).name == "basic.get-ok":
        found.append(got)
    return found


def takers(ch: RawChannel) -> list[str]:
    """Queues with what was published last, once for each message."""
    return [queue for queue in QUEUES for _ in drained(ch, queue)]


def exchange(ch: RawChannel, name: str, kind: str, **arguments: Any) -> None:
    ch.call("exchange.declare", exchange=name, type=kind, arguments=arguments)


def bind(ch: RawChannel, queue: str, name: str, key: str = "", **arguments: Any) -> None:
    ch.call("queue.bind", queue=queue, exchange=name, routing_key=key, arguments=arguments)


def test_cc_and_bcc_go_to_each_queue_once_and_bcc_is_cut_out(ch: RawChannel, asked: list[Any]) -> None:
    headers = {"n": 1, "CC": ["b", "a"], "BCC": ["c", 5], "last": "x"}
    for number in range(5):
        ch.publish(b"m" * number, routing_key="a", headers={**headers, "n": number}, message_id="m", priority=3)
        for queue in QUEUES:
            (got,) = drained(ch, queue)
            assert got.body == b"m" * number
            assert got.properties["headers"] == {"n": number, "CC": ["b", "a"], "last": "x"}
            assert (got.properties["message_id"], got.properties["priority"]) == ("m", 3)
    assert len(asked) == 2, "the route of the key, the route of the first message"
    for body in (b"", b"m"):
        ch.publish(body, routing_key="a", headers={"BCC": ["b"]})
        assert takers(ch) == ["a", "b"]


def test_a_queue_that_comes_gets_what_names_it_in_cc_and_plain_routes_stay(broker: Any, ch: RawChannel) -> None:
    for queue in QUEUES:
        ch.publish(b"m", routing_key=queue)
    for _ in range(2):
        ch.publish(b"m", routing_key="a", headers={"CC": ["late"]})
    ch.queue("late")
    cache = broker.node.broker.routes.caches["/", ""]
    assert cache.route_count == 3
    ch.publish(b"m", routing_key="a", headers={"CC": ["late"]})
    assert len(drained(ch, "late")) == 1
    ch.call("queue.delete", queue="late")
    ch.publish(b"m", routing_key="none", headers={"CC": ["late"]}, mandatory=True)
    assert ch.expect("basic.return").reply_code == 312


def test_headers_that_nothing_asks_for_do_not_matter(ch: RawChannel, asked: list[Any]) -> None:
    exchange(ch, "h", "headers")
    bind(ch, "a", "h", kind="order")
    bind(ch, "b", "h", **{"x-match": "any", "kind": "bill", "n": 7})
    for number in range(20):
        ch.publish(b"m", exchange="h", headers={"id": number, "kind": "order" if number % 2 else "bill"})
        assert takers(ch) == (["a"] if number % 2 else ["b"])
    ch.publish(b"m", exchange="h")
    ch.publish(b"m", exchange="h", headers={"kind": "other"})
    assert takers(ch) == [] and len(asked) <= 5


def test_routes_are_those_of_now_whatever_changes(broker: Any, ch: RawChannel, asked: list[Any]) -> None:
    """Bindings, alternates and queues change between messages with CC and headers: each message goes where a fresh walk leads."""
    chance, vhost = random.Random(5), broker.node.broker.vhosts["/"]
    exchange(ch, "last", "fanout")
    exchange(ch, "t", "topic")
    exchange(ch, "h", "headers", **{"alternate-exchange": "last"})
    exchange(ch, "top", "direct", **{"alternate-exchange": "h"})
    arguments = [{"k": 1}, {"k": "s", "x-match": "any"}, {"k": None}, {"x-y": "s", "x-match": "all-with-x"}, {}]
    tables: list[dict[str, Any]] = [
        {},
        {"k": 1.0},
        {"k": "s"},
        {"k": "t", "z": 1},
        {"x-y": "s"},
        {"CC": ["a", "k.1"]},
        {"k": 1, "BCC": ["b"]},
    ]
    messages = 0
    for _ in range(120):
        name, queue = chance.choice(["last", "t", "h", "top"]), chance.choice(QUEUES)
        verb = chance.choice(["queue.bind", "queue.unbind", "exchange.bind", "exchange.unbind", "queue.delete"])
        key, given = chance.choice(["k.1", "#", "a"]), chance.choice(arguments)
        if verb == "queue.delete":
            ch.call(verb, queue=queue)
            ch.queue(queue)
        elif verb.startswith("queue"):
            ch.call(verb, queue=queue, exchange=name, routing_key=key, arguments=given)
        else:
            ch.call(verb, destination=chance.choice(["t", "h", "last"]), source=name, routing_key=key, arguments=given)
        for _ in range(8):
            name, key, table = chance.choice(["", "t", "h", "top"]), chance.choice(["k.1", "a"]), chance.choice(tables)
            ch.publish(b"m", exchange=name, routing_key=key, headers=table)
            messages += 1
            assert takers(ch) == sorted(one.name for one in vhost.route_keys(name, keys_of(key.encode(), table, None), table)), (
                name,
                key,
                table,
            )
    assert len(asked) < messages


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_chance_is_asked_for_without_python(ch: RawChannel, asked: list[Any], kind: str) -> None:
    exchange(ch, "r", kind)
    for queue in QUEUES:
        bind(ch, queue, "r")
    for _ in range(600):
        ch.publish(b"m", exchange="r", routing_key="")
    counts = collections.Counter(takers(ch))
    assert sum(counts.values()) == 600 and min(counts.values()) > 130
    assert len(asked) == 1
    ch.call("queue.delete", queue="b")
    for _ in range(20):
        ch.publish(b"m", exchange="r", routing_key="")
    ch.queue("b")
    assert len(takers(ch)) == 20


def test_a_client_with_ever_new_headers_pushes_out_no_plain_route(broker: Any, ch: RawChannel) -> None:
    for queue in QUEUES:
        ch.publish(b"m", routing_key=queue)
    ch.ready("a")
    cache = broker.node.broker.routes.caches["/", ""]
    most = Limits().content_routes_max
    for number in range(most + 500):
        ch.publish(b"", routing_key="a", headers={"CC": [f"none{number}"]})
        if number % 1000 == 0:
            ch.ready("a")
    ch.publish(b"", routing_key="a", headers={"CC": ["x" * 250] * 10})
    ch.ready("a")
    assert most // 2 < cache.content_route_count <= most
    assert cache.content_route_bytes <= Limits().content_routes_bytes_max
    assert cache.route_count == len(QUEUES)


def test_messages_of_a_transaction_and_of_a_schedule_follow_their_headers(ch: RawChannel) -> None:
    for _ in range(2):
        ch.publish(b"m", routing_key="a", headers={"BCC": ["b"]})
    assert takers(ch) == ["a", "a", "b", "b"]
    ch.publish(b"m", routing_key="a", headers={"BCC": ["b"], "x-delay": 1})
    ch.wait_ready("b", 1)
    ch.wait_ready("a", 1)
    assert all("BCC" not in got.properties.get("headers", {}) for queue in "ab" for got in drained(ch, queue))
    ch.call("tx.select")
    ch.publish(b"m", routing_key="a", headers={"BCC": ["b"]})
    assert takers(ch) == []
    ch.call("tx.rollback")
    ch.publish(b"m", routing_key="a", headers={"BCC": ["b"]})
    ch.call("tx.commit")
    assert takers(ch) == ["a", "b"]


# --- topic permissions ----------------------------------------------------------------------------------------------------


def user(broker: Any, name: str, pattern: str) -> None:
    node = broker.node
    node.users.put(UserRecord(name, hash_password(name), ()))
    node.permissions.set_permissions(PermissionRecord(name, "/", ".*", ".*", ".*"))
    allow(broker, name, pattern)


def allow(broker: Any, name: str, pattern: str) -> None:
    broker.node.permissions.set_topic(name, "/", "amq.topic", pattern, ".*")
    broker.node.broker.vhosts["/"].set_keyed(["amq.topic"])


def refused(ch: RawChannel, name: str, key: str, **properties: Any) -> None:
    ch.publish(b"m", exchange="amq.topic", routing_key=key, **properties)
    ch.expect_close(403, f"write access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user '{name}'")


def test_keys_that_a_user_may_use_need_no_python(broker: Any, ch: RawChannel, connect: Connect, asked: list[Any]) -> None:
    user(broker, "ann", "^a")
    user(broker, "bob", "^b")
    bind(ch, "a", "amq.topic", "#")
    ann, bob = (connect(broker, user=name, password=name) for name in ("ann", "bob"))
    for connection, key in ((ann, "a.1"), (bob, "b.1")):
        channel = connection.channel()
        for number in range(50):
            channel.publish(b"m", exchange="amq.topic", routing_key=key, headers={"CC": [key]} if number % 2 else {})
        channel.ready("a")
    assert len(drained(ch, "a")) == 100
    assert len(asked) == 4
    refused(ann.channel(2), "ann", "b.1")
    refused(bob.channel(2), "bob", "a.1")
    third = bob.channel(3)
    third.publish(b"m", exchange="amq.topic", routing_key="b.1", headers={"CC": ["a.1"]})
    third.expect_close(403, "write access to topic 'a.1'")
    assert takers(ch) == []


def test_a_right_that_is_lost_is_lost_for_the_next_message(broker: Any, ch: RawChannel, connect: Connect) -> None:
    user(broker, "ann", "^a")
    bind(ch, "a", "amq.topic", "#")
    connection = connect(broker, user="ann", password="ann")
    channel = connection.channel()
    for table in ({}, {"CC": ["a.2"]}):
        for _ in range(3):
            channel.publish(b"m", exchange="amq.topic", routing_key="a.1", headers=table)
    channel.wait_ready("a", 6)
    allow(broker, "ann", "^a.2$")
    refused(channel, "ann", "a.1")
    channel = connection.channel(2)
    channel.publish(b"m", exchange="amq.topic", routing_key="a.2")
    channel.wait_ready("a", 7)
    bind(ch, "b", "amq.topic", "a.*")
    channel.publish(b"m", exchange="amq.topic", routing_key="a.2")
    channel.wait_ready("b", 1)


def test_the_routes_of_a_user_go_with_its_last_connection(broker: Any, ch: RawChannel, connect: Connect) -> None:
    user(broker, "ann", "^a")
    routes = broker.node.broker.routes
    connection = connect(broker, user="ann", password="ann")
    channel = connection.channel()
    channel.publish(b"m", exchange="amq.topic", routing_key="a.1")
    channel.ready("a")
    assert len(routes._users_of(("/", "amq.topic"))) == 1
    connection.close()
    while routes._users_of(("/", "amq.topic")):
        ch.ready("a")
