"""RabbitMQ's API, endpoint by endpoint, on one broker: status codes and fields of RabbitMQ 3.10."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from flintmq.access.hashes import rabbitmq_hash
from flintmq.testing.broker import Broker
from tests.admin.api import PERMISSION, Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until

POLICY = {"pattern": "^a", "definition": {"max-length": 3}, "priority": 1, "apply-to": "queues"}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Broker(limits={"housekeeping_ms": 20}, http_port=0) as broker:
        api = Api(Client(broker))
        api.put("vhosts/v")
        yield api


def publish(api: Api, key: str, payload: str, exchange: str = "amq.default", **more: Any) -> bool:
    value = {"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string", **more}
    routed: bool = api.post(f"exchanges/v/{exchange}/publish", value)["routed"]
    return routed


def got(api: Api, queue: str, mode: str = "ack_requeue_false", count: int = 10, **more: Any) -> list[dict[str, Any]]:
    value = {"count": count, "ackmode": mode, "encoding": "auto", **more}
    found: list[dict[str, Any]] = api.post(f"queues/v/{queue}/get", value)
    return found


# --- access -----------------------------------------------------------------------------------------------------------------


def test_users(api: Api) -> None:
    api.put("users/u1", {"password": "u1", "tags": "management,policymaker"})
    api.put("users/u1", {"password": "u1", "tags": ["management"]}, 204)
    user = api.get("users/u1")
    assert (user["name"], user["tags"], user["limits"]) == ("u1", ["management"], {})
    assert Api(api.client, "u1").get("whoami") == {"name": "u1", "tags": ["management"]}
    text = rabbitmq_hash("u2", b"salt")
    api.put("users/u2", {"password_hash": text, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management"})
    assert Api(api.client, "u2").get("whoami")["name"] == "u2"
    assert (api.get("users/u2")["password_hash"], api.get("users/u2")["hashing_algorithm"]) == (text, "rabbit_password_hashing_sha256")
    api.put("users/u2", {"password": "other", "tags": "management"}, 204)
    Api(api.client, "u2").get("whoami", 401)
    assert {"u1", "u2"} <= {one["name"] for one in api.get("users/without-permissions")}
    assert api.put("users/u3", {"password": "x"}, 400) == {
        "error": "bad_request",
        "reason": "'tags' is missing: a list of tags, or a text with commas; an empty one for none",
    }
    api.put("users/u3", {"tags": "", "password_hash": "abc"}, 400)
    api.put("users/u3", {"tags": "", "password_hash": text, "hashing_algorithm": "foo"}, 400)
    api.post("users/bulk-delete", {"users": ["u1", "nobody"]}, 400)
    api.post("users/bulk-delete", {"users": ["u1", "u2"]}, 204)
    api.post("users/bulk-delete", {"users": "u1"}, 400)
    assert api.get("users/u1", 404) == {"error": "Object Not Found", "reason": "no user 'u1'"}
    api.delete("users/u1", 404)


def test_permissions(api: Api) -> None:
    api.user("perm")
    api.put("permissions/v/perm", PERMISSION)
    api.put("permissions/v/perm", {**PERMISSION, "read": ""}, 204)
    assert api.get("permissions/v/perm") == {"user": "perm", "vhost": "v", "configure": ".*", "write": ".*", "read": ""}
    assert api.get("users/perm/permissions") == [api.get("permissions/v/perm")]
    assert api.get("permissions/v/perm") in api.get("vhosts/v/permissions") and api.get("permissions/v/perm") in api.get("permissions")
    assert api.put("permissions/v/perm", {"configure": "", "write": ""}, 400)["reason"] == "'read' is missing"
    assert api.put("permissions/nope/perm", PERMISSION, 400)["reason"] == "no vhost 'nope'"
    api.put("permissions/v/perm", {**PERMISSION, "read": "["}, 400)
    topic = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    api.put("topic-permissions/v/perm", topic)
    api.put("topic-permissions/v/perm", topic, 204)
    assert api.get("topic-permissions/v/perm") == [{"user": "perm", "vhost": "v", **topic}]
    assert api.get("users/perm/topic-permissions") == api.get("topic-permissions") == api.get("vhosts/v/topic-permissions")
    api.delete("topic-permissions/v/perm/amq.topic")
    api.delete("topic-permissions/v/perm", 404)
    api.get("topic-permissions/v/perm", 404)
    api.delete("permissions/v/perm")
    api.delete("permissions/v/perm", 404)
    api.delete("users/perm")


def test_limits(api: Api) -> None:
    api.user("lim")
    api.put("vhost-limits/v/max-connections", {"value": 500}, 204)
    assert api.get("vhost-limits/v") == api.get("vhost-limits") == [{"vhost": "v", "value": {"max-connections": 500}}]
    assert "Unrecognised terms" in api.put("vhost-limits/v/max-foo", {"value": 5}, 400)["reason"]
    assert "should be a number" in api.put("vhost-limits/v/max-queues", {"value": "x"}, 400)["reason"]
    assert api.put("vhost-limits/nope/max-queues", {"value": 5}, 404) == {"error": "Object Not Found", "reason": "no vhost 'nope'"}
    api.delete("vhost-limits/v/max-connections")
    assert api.get("vhost-limits") == []
    api.put("user-limits/lim/max-channels", {"value": 7}, 204)
    assert api.get("user-limits/lim") == [{"user": "lim", "value": {"max-channels": 7}}] and api.get("users/lim")["limits"]
    api.delete("user-limits/lim/max-channels")
    api.get("user-limits/nobody", 404)
    api.delete("users/lim")


def test_virtual_hosts(api: Api) -> None:
    api.put("vhosts/w%2Fx", {"description": "d", "tags": "a,b", "tracing": False})
    api.put("vhosts/w%2Fx", None, 204)
    value = api.get("vhosts/w%2Fx")
    assert (value["name"], value["description"], value["tags"], value["tracing"]) == ("w/x", "d", ["a", "b"], False)
    assert api.get("vhosts/w%2Fx/permissions") == [{"user": "guest", "vhost": "w/x", **PERMISSION}]
    api.put("vhosts/w%2Fx", {"tracing": True}, 204)
    assert api.get("vhosts/w%2Fx")["tracing"] is True
    assert "tracing" in api.put("vhosts/w%2Fx", {"tracing": "yes"}, 400)["reason"]
    assert "w/x" in {one["name"] for one in api.get("vhosts")}
    api.put("queues/w%2Fx/q", {"durable": True})
    api.delete("vhosts/w%2Fx")
    api.delete("vhosts/w%2Fx", 404)
    api.get("queues/w%2Fx", 404)


def test_policies_and_parameters(api: Api) -> None:
    api.put("policies/v/p1", POLICY)
    api.put("policies/v/p1", POLICY, 204)
    assert api.get("policies/v/p1") == {"vhost": "v", "name": "p1", **POLICY} and api.get("policies/v") == api.get("policies")
    api.put("operator-policies/v/o1", {"pattern": "^a", "definition": {"max-length": 2, "message-ttl": 60000}})
    api.put("queues/v/aq", {})
    shown = api.get("queues/v/aq")
    assert (shown["policy"], shown["operator_policy"]) == ("p1", "o1")
    assert shown["effective_policy_definition"] == {"max-length": 2, "message-ttl": 60000}
    for name, value in {
        "pattern": {**POLICY, "pattern": "["},
        "key": {**POLICY, "definition": {"foo": 1}},
        "value": {**POLICY, "definition": {"max-length": "x"}},
        "none": {**POLICY, "definition": {}},
        "missing": {"pattern": "^a"},
        "apply": {**POLICY, "apply-to": "zz"},
        "priority": {**POLICY, "priority": "zz"},
    }.items():
        assert api.put(f"policies/v/{name}", value, 400)["error"] == "bad_request"
    api.put("operator-policies/v/o2", {"pattern": "", "definition": {"dead-letter-exchange": "x"}}, 400)
    api.put("policies/nope/p1", POLICY, 404)
    api.delete("policies/v/p1")
    api.delete("policies/v/p1", 404)
    api.delete("operator-policies/v/o1")
    assert api.get("queues/v/aq")["effective_policy_definition"] == {}
    api.delete("queues/v/aq")
    assert "component foo not found" in api.put("parameters/foo/v/n", {"value": {}}, 400)["reason"]
    api.put("parameters/federation-upstream/v/n", {"value": {"uri": "amqp://h"}})
    one = {"value": {"uri": "amqp://h"}, "vhost": "v", "component": "federation-upstream", "name": "n"}
    assert api.get("parameters/federation-upstream/v/n") == one and one in api.get("parameters")
    assert api.get("parameters/federation-upstream") == api.get("parameters/federation-upstream/v") == [one]
    api.delete("parameters/federation-upstream/v/n")
    api.get("parameters/federation-upstream/v/n", 404)
    api.put("global-parameters/g", {"value": [1, None]})
    assert api.get("global-parameters/g") == {"name": "g", "value": [1, None]} and api.get("global-parameters")
    api.delete("global-parameters/g")
    api.delete("global-parameters/g", 404)


# --- queues, exchanges, bindings --------------------------------------------------------------------------------------------


def test_queues(api: Api) -> None:
    value = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}}
    api.put("queues/v/n%C3%A4me", value)
    api.put("queues/v/n%C3%A4me", value, 204)
    assert "inequivalent arg 'durable'" in api.put("queues/v/n%C3%A4me", {"arguments": {"x-max-length": 5}}, 400)["reason"]
    assert "-1 is negative" in api.put("queues/v/bad", {"arguments": {"x-max-length": -1}}, 400)["reason"]
    assert api.put("queues/v/amq.x", {}, 401)["error"] == "not_authorised"
    assert api.put("queues/nope/q", {}, 404)["reason"] == "no vhost 'nope'"
    api.put("queues/v/deep", {"arguments": {"a": {"b": 2**70}}}, 400)
    shown = api.get("queues/v/n%C3%A4me")
    assert {"name": "näme", "vhost": "v", "type": "classic", **value}.items() <= shown.items()
    assert {"state", "messages", "messages_ready", "messages_unacknowledged", "consumers", "node", "message_stats"} <= shown.keys()
    publish(api, "näme", "x")
    assert "not empty" in api.ask("DELETE", "queues/v/n%C3%A4me?if-empty=true").json["reason"]
    api.post("queues/v/n%C3%A4me/actions", {"action": "sync"}, 204)
    api.post("queues/v/n%C3%A4me/actions", {"action": "zz"}, 400)
    api.delete("queues/v/n%C3%A4me/contents")
    assert api.get("queues/v/n%C3%A4me")["messages"] == 0
    api.delete("queues/v/n%C3%A4me?if-empty=true&if-unused=true")
    api.delete("queues/v/n%C3%A4me", 404)
    api.get("queues/v/n%C3%A4me", 404)


@pytest.mark.parametrize("dots", [".", ".."])
def test_names_that_a_browser_takes_for_steps(api: Api, dots: str) -> None:
    """An octet 0xFF in front says that they are names; nothing else has one."""
    path = f"queues/%2F/%FF{dots}"
    api.put(path, {"durable": True})
    assert api.get(path)["name"] == dots
    assert api.get(f"queues/%2F/%2E{dots[1:]}")["name"] == dots  # of clients that leave paths as they are
    api.post(f"bindings/%2F/e/amq.direct/q/%FF{dots}", {"routing_key": dots}, 201)
    key = next(one["properties_key"] for one in api.get(f"{path}/bindings") if one["source"])
    assert key == dots
    api.delete(f"bindings/%2F/e/amq.direct/q/%ff{dots}/%ff{dots}")
    for other in (f"%FF%FF{dots}", "%FF", f"%FFa{dots}", f"%FF{dots}%20"):
        assert api.ask("GET", f"queues/%2F/{other}").status == 400
    api.delete(path)


# fmt: off
KEYS = [
    "", "~", "~~", "a~b", "a~", "~a", "a", "a/b", "a%2Fb", "a%252Fb", "%", "%7E", "%257E", "a b", "a+b", "a%20b", "a%2Bb", ".", "..", "*.#",
    "#",
    "é", "%C3%A9", "\ufffd", "k~AAAAAAAAAAAAAAAAAAAAAA", "k", "?x=1", "a" * 200 + "/" * 55,
]
# fmt: on


def test_a_binding_is_deleted_by_the_key_that_is_shown(api: Api) -> None:
    """All at once, with and without arguments: the properties_key of each, encoded as a name in a path, says that binding and no other."""
    api.put("queues/%2F/awkward", {})
    ends = "bindings/%2F/e/amq.headers/q/awkward"
    every = [(key, arguments) for key in KEYS for arguments in ({}, {"a": 1}, {"a": "1"}, {"a": chr(0xE9)}, {"x-match": "any", "~": "~"})]
    for key, arguments in every:
        place = api.ask("POST", ends, {"routing_key": key, "arguments": arguments})
        assert place.status == 201
        found = api.get(f"bindings/%2F/e/amq.headers/q/{place.headers['location']}")
        assert (found["routing_key"], found["arguments"]) == (key, arguments)
    raw = [b"\xff", b"\xfe", b"\xff~", b"%FF"]
    vhost = api.client.node.broker.vhosts["/"]
    for octets in raw:
        vhost.run(vhost.bind_queue("awkward", "amq.headers", octets, {}, connection_id=0))
    left = api.get(ends)
    assert len({one["properties_key"] for one in left}) == len(left) == len(every) + len(raw)
    random.Random(28).shuffle(left)
    while left:
        gone = left.pop()
        api.delete(f"{ends}/{segment(gone['properties_key'])}")
        assert sorted(one["properties_key"] for one in api.get(ends)) == sorted(one["properties_key"] for one in left)
        api.delete(f"{ends}/{segment(gone['properties_key'])}", 404)
    api.delete("queues/%2F/awkward")


def segment(name: str) -> str:
    return f"%FF{name}" if name in (".", "..") else quote(name, safe="")


def test_a_key_that_is_not_encoded_is_taken_where_nothing_else_can_be_meant(api: Api) -> None:
    """As RabbitMQ takes the properties_key of `a.#`; never where it would say another binding."""
    api.put("queues/%2F/sloppy", {})
    ends = "bindings/%2F/e/amq.topic/q/sloppy"
    for key in ("a.#", "x%2Fy", "x/y"):
        assert api.ask("POST", ends, {"routing_key": key}).status == 201
    assert api.get(f"{ends}/a.%23")["routing_key"] == "a.#"
    assert api.get(f"{ends}/x%252Fy")["routing_key"] == "x/y"  # x%2Fy, encoded
    api.delete(f"{ends}/x%252Fy")
    api.delete(f"{ends}/x%252Fy", 404)
    assert sorted(one["routing_key"] for one in api.get(ends)) == ["a.#", "x%2Fy"]
    api.delete("queues/%2F/sloppy")


def test_exchanges_and_bindings(api: Api) -> None:
    api.put("exchanges/v/x1", {"type": "topic", "durable": True})
    api.put("exchanges/v/x1", {"type": "topic", "durable": True}, 204)
    assert "inequivalent arg 'type'" in api.put("exchanges/v/x1", {"type": "fanout"}, 400)["reason"]
    assert "unknown exchange type" in api.put("exchanges/v/x2", {"type": "zzz"}, 400)["reason"]
    assert api.get("exchanges/v/x1")["type"] == "topic" and len(api.get("exchanges/v")) == 8
    api.put("queues/v/b", {"durable": True})
    ends = "bindings/v/e/x1/q/b"
    places = [
        api.ask("POST", ends, value).headers["location"]
        for value in ({"routing_key": "k/ä"}, {}, {"routing_key": "k", "arguments": {"a": 1}})
    ]
    assert places[:2] == ["b/k%252F%25C3%25A4", "b/~"] and places[2].startswith("b/k~")
    assert [quote_plus(one["properties_key"]) for one in api.get(ends)] == [place.removeprefix("b/") for place in places]
    for place in places:
        path = f"{ends.removesuffix('/b')}/{place}"
        assert api.get(path)["destination"] == "b"
        api.delete(path)
        api.delete(path, 404)
    api.post("bindings/v/e/x1/q/nope", {"routing_key": "k"}, 404)
    assert api.ask("POST", "bindings/v/e/x1/e/amq.fanout", {"routing_key": "k"}).status == 201
    assert [one["destination"] for one in api.get("exchanges/v/x1/bindings/source")] == ["amq.fanout"]
    assert [one["source"] for one in api.get("exchanges/v/amq.fanout/bindings/destination")] == ["x1"]
    assert api.get("queues/v/b/bindings") == [one for one in api.get("bindings/v") if one["destination"] == "b"]
    assert api.get("bindings/v/e/amq.default/q/b")[0]["properties_key"] == "b"
    api.get("exchanges/v/x1/bindings/zzz", 404)
    assert "in use" in api.ask("DELETE", "exchanges/v/x1?if-unused=true").json["reason"]
    api.delete("exchanges/v/x1")
    api.delete("exchanges/v/x1", 404)
    api.delete("exchanges/v/amq.topic", 401)
    api.delete("queues/v/b")


# --- messages ---------------------------------------------------------------------------------------------------------------


def test_publish_and_get(api: Api) -> None:
    api.put("queues/v/m", {})
    properties = {"delivery_mode": 2, "headers": {"a": 1}, "priority": 3, "expiration": "60000"}
    assert publish(api, "m", "hellö", properties=properties)
    assert publish(api, "m", base64.b64encode(b"\xff\0").decode(), payload_encoding="base64")
    assert not publish(api, "nowhere", "x")
    first, second = got(api, "m", "ack_requeue_true")
    assert first["payload"] == "hellö" and first["payload_encoding"] == "string" and first["payload_bytes"] == 6
    assert first["properties"] == properties and (first["exchange"], first["routing_key"]) == ("", "m")
    assert (second["payload"], second["payload_encoding"]) == (base64.b64encode(b"\xff\0").decode(), "base64")
    assert not first["redelivered"] and got(api, "m", "reject_requeue_true", truncate=2)[0]["payload"] == "he"
    assert api.get("queues/v/m")["consumers"] == 0  # nobody consumes
    again = got(api, "m", count=1)
    assert again[0]["redelivered"] and again[0]["message_count"] == 1
    assert len(got(api, "m")) == 1 and got(api, "m") == []
    api.delete("queues/v/m?if-unused=true&if-empty=true")


def test_rejected_messages_are_dead_lettered(api: Api) -> None:
    api.put("queues/v/dead", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues/v/alive", {"arguments": arguments})
    publish(api, "alive", "x")
    assert got(api, "alive", "reject_requeue_false")[0]["payload"] == "x"
    (letter,) = got(api, "dead")
    assert letter["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


def test_publishes_that_are_refused(api: Api) -> None:
    api.put("queues/v/full", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}})
    assert publish(api, "full", "1") and not publish(api, "full", "2")
    whole = {"properties": {}, "routing_key": "m", "payload": "x", "payload_encoding": "string"}
    for name, value, reason in (
        ("payload", None, "'payload' is missing"),
        ("payload_encoding", "base64", "not_base64"),
        ("payload_encoding", "zz", "payload"),
        ("properties", {"nonsense": 1}, "unknown property"),
        ("properties", {"user_id": "somebody"}, "user_id property set to 'somebody'"),
        ("properties", {"delivery_mode": 3}, "delivery_mode"),
    ):
        sent = {key: one for key, one in {**whole, name: value}.items() if one is not None}
        assert reason in api.post("exchanges/v/amq.default/publish", sent, 400)["reason"]
    assert "404 NOT_FOUND - no exchange" in api.post("exchanges/v/nope/publish", whole, 400)["reason"]
    for value in ({"count": 0}, {"count": "x"}, {"ackmode": "zz"}, {"encoding": "zz"}):
        api.post("queues/v/full/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", **value}, 400)
    assert "'ackmode'" in api.post("queues/v/full/get", {"count": 1, "encoding": "auto"}, 400)["reason"]
    api.post("queues/v/nope/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 404)


def test_topic_permissions_hold_here_too(api: Api) -> None:
    topical = api.user("topical", "management", "v")
    api.put("topic-permissions/v/topical", {"exchange": "amq.topic", "write": "^a", "read": "^a"})
    api.put("queues/v/t", {})
    publish(topical, "a.b", "x", "amq.topic")
    value = {"properties": {}, "routing_key": "b", "payload": "x", "payload_encoding": "string"}
    assert "write access to topic 'b'" in topical.post("exchanges/v/amq.topic/publish", value, 401)["reason"]
    for headers in ({"CC": ["a", "b"]}, {"BCC": ["b"]}, {"BCC": ["b"], "x-delay": 3_600_000}):
        asked = {**value, "routing_key": "a", "properties": {"headers": headers}}
        assert "write access to topic 'b'" in topical.post("exchanges/v/amq.topic/publish", asked, 401)["reason"]
    assert "read access to topic 'b'" in topical.post("bindings/v/e/amq.topic/q/t", {"routing_key": "b"}, 401)["reason"]
    topical.post("bindings/v/e/amq.topic/q/t", {"routing_key": "a"}, 201)


def test_the_default_queue_type_of_a_virtual_host(api: Api) -> None:
    """Kept, shown, and of queues that are declared over HTTP and AMQP; a change of something else leaves it."""
    kind = "quorum"
    api.put("vhosts/typed", {"default_queue_type": kind})
    api.put("vhosts/typed", {"description": "d"}, 204)
    shown = api.get("vhosts/typed")
    assert (shown["default_queue_type"], shown["metadata"]["default_queue_type"], shown["description"]) == (kind, kind, "d")
    api.put("queues/typed/h", {"durable": True})
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", api.client.node.amqp_port, "typed"))
    channel = connection.channel()
    for _ in range(2):
        channel.queue_declare("a", durable=True)
    channel.queue_declare("c", durable=True, arguments={"x-queue-type": "classic"})
    connection.close()
    assert {one["name"]: one["type"] for one in api.get("queues/typed")} == {"h": kind, "a": kind, "c": "classic"}
    refused = api.put("vhosts/typed", {"default_queue_type": "odd"}, 400)
    assert "default_queue_type must be one of classic, quorum, stream" in refused["reason"]
    api.put("vhosts/typed", {"default_queue_type": "classic"}, 204)
    assert api.get("vhosts/typed")["default_queue_type"] == "undefined"
    api.put("queues/typed/later", {"durable": True})
    assert api.get("queues/typed/later")["type"] == "classic"


def test_a_publish_with_bcc_goes_there_and_says_nothing_of_it(api: Api) -> None:
    for name in ("b1", "b2", "b3"):
        api.put(f"queues/v/{name}", {})
    headers = {"CC": ["b2"], "BCC": ["b3"], "x": 1}
    value = {"properties": {"headers": headers}, "routing_key": "b1", "payload": "x", "payload_encoding": "string"}
    assert api.post("exchanges/v/amq.default/publish", value) == {"routed": True}
    for name in ("b1", "b2", "b3"):
        (found,) = api.post(f"queues/v/{name}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
        assert found["properties"]["headers"] == {"CC": ["b2"], "x": 1}
    assert (
        "a header has a type that it can't have"
        in api.post("exchanges/v/amq.default/publish", {**value, "properties": {"headers": {"CC": 1}}}, 400)["reason"]
    )


# --- clients ----------------------------------------------------------------------------------------------------------------


def connect(api: Api, user: str = "guest") -> Any:
    login = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", api.client.node.amqp_port, "v", login))


def test_connections_channels_consumers(api: Api) -> None:
    api.user("worker", "management", "v")
    worker = Api(api.client, "worker")
    api.put("queues/v/c", {})
    with connect(api, "worker") as connection, connect(api):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=7)
        channel.confirm_delivery()
        channel.basic_publish("", "c", b"x")
        channel.basic_consume("c", lambda *_: None, consumer_tag="tag")
        wait_until(lambda: connection.process_data_events(0) or api.get("queues/v/c")["messages_unacknowledged"] == 1)
        (shown,) = worker.get("connections")
        assert len(api.get("connections")) == 2 and api.get("connections/username/worker") == [shown]
        assert {
            "user": "worker",
            "vhost": "v",
            "protocol": "AMQP 0-9-1",
            "state": "running",
            "channels": 1,
            "ssl": False,
        }.items() <= shown.items()
        path = "connections/" + shown["name"].replace(" ", "%20").replace(">", "%3E")
        assert worker.get(path)["name"] == shown["name"] and len(api.get("vhosts/v/connections")) == 2
        (one,) = worker.get("channels")
        assert one["name"] == f"{shown['name']} (1)" and worker.get(f"{path}/channels") == [one]
        expected = {
            "number": 1,
            "confirm": True,
            "transactional": False,
            "consumer_count": 1,
            "prefetch_count": 7,
            "messages_unacknowledged": 1,
        }
        assert expected.items() <= one.items() and one["messages_unconfirmed"] == 0
        detailed = api.get("channels/" + one["name"].replace(" ", "%20").replace(">", "%3E"))
        assert detailed["consumer_details"][0]["consumer_tag"] == "tag"
        (consumer,) = api.get("consumers/v")
        assert (consumer["consumer_tag"], consumer["queue"], consumer["prefetch_count"]) == ("tag", {"name": "c", "vhost": "v"}, 7)
        assert consumer["ack_required"] and api.get("queues/v/c")["consumer_details"][0]["consumer_tag"] == "tag"
        (other,) = [each for each in api.get("connections") if each["user"] == "guest"]
        worker.delete("connections/" + other["name"].replace(" ", "%20").replace(">", "%3E"), 404)
        assert api.ask("DELETE", path, None, {"X-Reason": "go\taway"}).status == 204
        with pytest.raises(ConnectionClosedByBroker) as closed:
            while True:
                connection.process_data_events(1)
        assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - goaway")
        wait_until(lambda: len(api.get("connections")) == 1)
        api.delete(path, 404)
        connection = connect(api, "worker")
        api.delete("connections/username/worker")
        with pytest.raises(ConnectionClosedByBroker, match="Closed via management plugin"):
            while True:
                connection.process_data_events(1)
    api.get("channels/nope", 404)


# --- the node ---------------------------------------------------------------------------------------------------------------


def test_overview_and_node(api: Api) -> None:
    value = api.get("overview")
    needed = "cluster_name node erlang_version erlang_full_version rabbitmq_version product_name product_version statistics_db_event_queue"
    assert {*needed.split(), "churn_rates", "queue_totals", "object_totals", "message_stats", "listeners"} <= value.keys()
    assert value["rabbitmq_version"] == "3.10.8" and value["product_name"] == "FlintMQ"
    assert {one["protocol"] for one in value["listeners"]} == {"amqp", "http"}
    (node,) = api.get("nodes")
    needed = "name uptime run_queue processors os_pid fd_total proc_total mem_limit mem_alarm disk_free_limit disk_free_alarm rates_mode"
    assert {*needed.split(), "enabled_plugins", "being_drained"} <= node.keys() and node["mem_used"] > 0
    assert api.get(f"nodes/{node['name']}")["name"] == node["name"] == value["node"]
    assert api.get(f"nodes/{node['name']}/memory")["memory"]["total"]["rss"] > 0
    api.get("nodes/nope", 404)
    api.put("cluster-name", {"name": "mine"}, 204)
    assert api.get("cluster-name") == {"name": "mine"} and api.get("overview")["cluster_name"] == "mine"
    assert api.get("extensions") == [] and api.get("auth")["enable_uaa"] is False
    text = api.post("auth/hash_password", {"password": "p"})["ok"]
    api.put("users/hashed", {"password_hash": text, "tags": ""})


def test_aliveness_changes_nothing(api: Api) -> None:
    before = api.get("definitions"), [one["name"] for one in api.get("queues")]
    assert api.get("aliveness-test/v") == {"status": "ok"}
    assert (api.get("definitions"), [one["name"] for one in api.get("queues")]) == before


def test_health(api: Api) -> None:
    port = api.client.port
    assert api.get("aliveness-test/v") == api.get("healthchecks/node") == {"status": "ok"}
    api.get("aliveness-test/nope", 404)
    for name in ("alarms", "local-alarms", "virtual-hosts", "certificate-expiration/1/weeks", "node-is-quorum-critical"):
        assert api.get(f"health/checks/{name}")["status"] == "ok"
    assert api.get(f"health/checks/port-listener/{port}") == {"status": "ok", "port": port}
    failed = api.get("health/checks/port-listener/9", 503)
    assert (failed["status"], failed["reason"], failed["missing"]) == ("failed", "No active listener", 9) and port in failed["ports"]
    api.get("health/checks/port-listener/x", 400)
    assert api.get("health/checks/protocol-listener/amqp091")["status"] == "ok"
    assert api.get("health/checks/protocol-listener/zz", 503)["missing"] == "zz"
    api.get("health/checks/certificate-expiration/1/zz", 400)


def test_what_is_not_there_and_what_is_not_allowed(api: Api) -> None:
    assert api.get("nope", 404)["reason"].startswith("there is no such resource")
    refused = api.ask("POST", "users", {})
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert api.ask("OPTIONS", "queues").headers["allow"] == "GET, HEAD, OPTIONS"
    assert api.ask("HEAD", "queues").status == 200
    assert api.ask("PUT", "queues/v/q", [1]).status == 400
    # From a page of another site: a form can send a POST, and neither header nor type that it needs.
    assert api.ask("POST", "definitions", None).status == 415
    assert api.ask("DELETE", "queues/v/q", None, {"Origin": "http://evil.example"}).status == 403
    assert api.ask("DELETE", "queues/v/q", None, {"Host": "evil.example"}).status == 421
    assert api.client.get("/api/v1/nope").json["error"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        ("PUT", "queues/%2F/half", {"durable": True, "arguments": {"x-a": ["\ud800"]}}),
        ("PUT", "queues/%2F/half", {"durable": True, "arguments": {"x-\ud800": 1}}),
        ("PUT", "exchanges/%2F/half", {"type": "direct", "durable": True, "arguments": {"a": {"b": "\ud800"}}}),
        ("POST", "bindings/%2F/e/amq.direct/q/half", {"routing_key": "\ud800"}),
        (
            "POST",
            "exchanges/%2F/amq.direct/publish",
            {"properties": {}, "routing_key": "\ud800", "payload": "", "payload_encoding": "string"},
        ),
    ],
)
def test_half_a_character_is_refused(api: Api, method: str, path: str, value: dict[str, object]) -> None:
    """JSON can say it, UTF-8 and the database can't."""
    answer = api.ask(method, path, value)
    assert (answer.status, answer.json["reason"]) == (400, "a text of the request is no text that UTF-8 can say")
    api.get("queues/%2F/half", 404)


def test_arguments_without_effect_are_shown(api: Api) -> None:
    """Nothing that a client asked for is silently kept: the two lists together are its arguments."""
    api.put("queues/v/told", {"durable": True, "arguments": {"x-queue-mode": "lazy", "x-max-length": 5, "x-mine": 1}})
    shown = api.get("queues/v/told")
    assert (shown["effective_arguments"], shown["ignored_arguments"]) == (["x-max-length"], ["x-queue-mode", "x-mine"])
    refused = api.put("queues/v/told2", {"arguments": {"x-max-length": -3}}, 400)
    assert refused["reason"].endswith("-3 is negative (hint: received signedint '-3'; x-max-length takes: integer, 0 or more)")


# --- conditions, and names of things that are not there -------------------------------------------------------------------------


def test_a_user_or_virtual_host_that_must_be_new_is_never_replaced(api: Api) -> None:
    """Also of twenty requests at once one makes it, and the others change nothing."""
    from concurrent.futures import ThreadPoolExecutor

    new = {"If-None-Match": "*"}
    for path, value in (("users/once", {"password": "p", "tags": "administrator"}), ("vhosts/once", {"description": "first"})):
        with ThreadPoolExecutor(20) as many:
            codes = sorted(answer.status for answer in many.map(api.ask, ["PUT"] * 20, [path] * 20, [value] * 20, [new] * 20))
        assert codes == [201] + [412] * 19
        kind = path.partition("s/")[0]
        assert api.ask("PUT", path, {"tags": ""}, new).json == {"error": "precondition_failed", "reason": f"{kind} 'once' already exists"}
    assert (api.get("users/once")["tags"], api.get("vhosts/once")["description"]) == (["administrator"], "first")
    assert Api(api.client, "once").ask("GET", "whoami").status == 401, "its password is p"
    assert api.ask("PUT", "users/never", {"tags": ""}, {"If-Match": "*"}).json["reason"] == "no user 'never'"
    assert api.ask("PUT", "vhosts/never", {}, {"If-Match": "*"}).status == 404
    for headers in ({"If-Match": '"tag"'}, {"If-None-Match": '"tag"'}, {"If-Match": "*", "If-None-Match": "*"}):
        assert api.ask("PUT", "users/never", {"tags": ""}, headers).status == 400
    api.get("users/never", 404)


def test_a_part_of_a_user_changes_and_the_rest_stays(api: Api) -> None:
    """Tags without the password, the password without tags, and both at once from many clients."""
    from concurrent.futures import ThreadPoolExecutor

    api.put("users/part", {"password": "part", "tags": "management"})
    assert api.ask("PATCH", "users/part", {"tags": "monitoring,policymaker"}).status == 204
    assert Api(api.client, "part").get("whoami")["tags"] == ["monitoring", "policymaker"]
    hashes = [rabbitmq_hash(f"p{number}", b"salt") for number in range(10)]
    changes: list[dict[str, Any]] = [{"tags": f"management,t{number}"} for number in range(10)]
    changes += [{"password_hash": text, "hashing_algorithm": "rabbit_password_hashing_sha256"} for text in hashes]
    random.Random(5).shuffle(changes)
    with ThreadPoolExecutor(10) as many:
        assert {answer.status for answer in many.map(lambda value: api.ask("PATCH", "users/part", value), changes)} == {204}
    user = api.get("users/part")
    assert user["password_hash"] in hashes and user["tags"][0] == "management" and len(user["tags"]) == 2
    assert api.ask("PATCH", "users/part", {"password": None}).status == 204
    assert (api.get("users/part")["password_hash"], api.get("users/part")["tags"]) == ("", user["tags"])
    assert api.ask("PATCH", "users/nobody", {"tags": ""}).json["reason"] == "no user 'nobody'"
    for method, tags in (("PATCH", 5), ("PATCH", None), ("PUT", None)):
        assert api.ask(method, "users/part", {"tags": tags}).status == 400
    assert api.ask("POST", "definitions", {"users": [{"name": "part", "tags": None}]}).status == 400
    assert api.get("users/part")["tags"] == user["tags"]


@pytest.mark.parametrize(
    ("method", "path", "value", "reason"),
    [
        ("GET", "queues/nope/q", None, "no vhost 'nope'"),
        ("GET", "queues/v/absent", None, "no queue 'absent' in vhost 'v'"),
        ("DELETE", "queues/v/absent", None, "no queue 'absent' in vhost 'v'"),
        ("DELETE", "queues/v/absent/contents", None, "no queue 'absent' in vhost 'v'"),
        ("PUT", "queues/v/absent/pause", None, "no queue 'absent' in vhost 'v'"),
        ("GET", "exchanges/v/absent", None, "no exchange 'absent' in vhost 'v'"),
        ("DELETE", "exchanges/v/absent", None, "no exchange 'absent' in vhost 'v'"),
        ("GET", "bindings/v/e/amq.topic/q/absent/k", None, "no binding 'k' from exchange 'amq.topic' to queue 'absent' in vhost 'v'"),
        ("GET", "exchanges/v/amq.topic/bindings/middle", None, "'middle' is no end of bindings: source or destination"),
        ("GET", "connections/absent", None, "no connection 'absent'"),
        ("GET", "channels/absent", None, "no channel 'absent'"),
        ("DELETE", "users/absent", None, "no user 'absent'"),
        ("GET", "permissions/v/absent", None, "no permissions of user 'absent' in vhost 'v'"),
        ("DELETE", "permissions/v/absent", None, "no permissions of user 'absent' in vhost 'v'"),
        (
            "DELETE",
            "topic-permissions/v/guest/amq.topic",
            None,
            "no topic permissions of user 'guest' for exchange 'amq.topic' in vhost 'v'",
        ),
        ("DELETE", "vhosts/absent", None, "no vhost 'absent'"),
        ("PUT", "vhost-limits/absent/max-queues", {"value": 1}, "no vhost 'absent'"),
        ("PUT", "user-limits/absent/max-channels", {"value": 1}, "no user 'absent'"),
        ("DELETE", "policies/v/absent", None, "no policy 'absent' in vhost 'v'"),
        ("GET", "operator-policies/v/absent", None, "no operator policy 'absent' in vhost 'v'"),
        ("DELETE", "parameters/shovel/v/absent", None, "no parameter of component 'shovel', 'absent' in vhost 'v'"),
        ("DELETE", "global-parameters/absent", None, "no global parameter 'absent'"),
        ("GET", "shovels/v/absent", None, "no shovel 'absent' in vhost 'v'"),
        ("DELETE", "shovels/vhost/v/absent/restart", None, "no shovel 'absent' in vhost 'v'"),
        ("DELETE", "federation-links/vhost/v/absent/restart", None, "no link of federation 'absent' in vhost 'v'"),
        ("GET", "nodes/absent", None, "no node 'absent'"),
    ],
)
def test_a_404_names_the_thing_that_is_not_there(api: Api, method: str, path: str, value: Any, reason: str) -> None:
    answer = api.ask(method, path, value)
    assert (answer.status, answer.json["reason"]) == (404, reason)


def test_a_backup_that_is_over_is_named() -> None:
    from flintmq.admin.api_backup import _refused
    from flintmq.dataplane.wire import Refused

    refused = _refused(Refused("NOT_FOUND", "gone"), "b1")
    assert str(refused) == "no backup 'b1'"
