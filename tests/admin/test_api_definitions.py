"""Definitions files: of RabbitMQ, of LavinMQ, and ours, whole and of one virtual host."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.access.hashes import rabbitmq_hash
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client, basic

# as RabbitMQ 3.10 and LavinMQ 2 write them, with what the one has and the other has not
FILE: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "users": [
        {
            "name": "imported",
            "password_hash": rabbitmq_hash("imported", b"abcd"),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator"],
            "limits": {"max-channels": 50},
        },
        {"name": "lavin", "password_hash": rabbitmq_hash("lavin", b"efgh"), "tags": "management"},
        {"name": "external", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""},
    ],
    "vhosts": [{"name": "/"}, {"name": "shop", "description": "d", "tags": ["a"], "metadata": {"description": "d", "tags": ["a"]}}],
    "permissions": [{"user": "imported", "vhost": "shop", "configure": ".*", "write": ".*", "read": "^o"}],
    "topic_permissions": [{"user": "imported", "vhost": "shop", "exchange": "amq.topic", "write": "^a", "read": ".*"}],
    "parameters": [
        {"value": {"max-queues": 100}, "vhost": "shop", "component": "vhost-limits", "name": "limits"},
        {"value": {"uri": "amqp://h"}, "vhost": "shop", "component": "federation-upstream", "name": "up"},
        {
            "value": {"pattern": "", "definition": {"expires": 3600000}, "priority": 0, "apply-to": "all"},
            "vhost": "shop",
            "component": "operator_policy",
            "name": "op",
        },
    ],
    "global_parameters": [{"name": "cluster_name", "value": "old@host"}],
    "policies": [
        {
            "vhost": "shop",
            "name": "ha",
            "pattern": "^o",
            "apply-to": "queues",
            "definition": {"ha-mode": "all", "max-length": 9},
            "priority": 0,
        }
    ],
    "queues": [
        {"name": "orders", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}},
        {"name": "öther", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "exchanges": [
        {"name": "ex", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}},
        {"name": "amq.direct", "vhost": "shop", "type": "direct", "durable": True, "auto_delete": False, "internal": False},
    ],
    "bindings": [
        {"source": "ex", "vhost": "shop", "destination": "orders", "destination_type": "queue", "routing_key": "k.#", "arguments": {}},
        {
            "source": "ex",
            "vhost": "shop",
            "destination": "amq.fanout",
            "destination_type": "exchange",
            "routing_key": "",
            "arguments": {"a": 1},
        },
    ],
}


def _order(value: dict[str, Any]) -> str:
    return str(sorted(value.items(), key=str))


@pytest.fixture
def api() -> Iterator[Api]:
    with Broker(http_port=0) as broker:
        yield Api(Client(broker))


def test_there_and_back(api: Api) -> None:
    """What was imported is exported, a second import changes nothing, and another broker that imports the export has the same."""
    api.post("definitions", FILE, 204)
    Api(api.client, "imported").get("whoami")
    Api(api.client, "lavin").get("whoami")
    shown = api.get("queues/shop/orders")
    assert (shown["type"], shown["policy"], shown["effective_policy_definition"]) == (
        "quorum",
        "ha",
        {"ha-mode": "all", "max-length": 9, "expires": 3600000},
    )
    exported = api.get("definitions")
    api.post("definitions", FILE, 204)
    assert api.get("definitions") == exported
    for kind in ("topic_permissions", "global_parameters", "queues", "policies", "bindings"):
        assert sorted(exported[kind], key=_order) == sorted(FILE[kind], key=_order)
    assert {one["name"] for one in exported["exchanges"]} == {"ex"}
    assert {one["component"] for one in exported["parameters"]} == {"vhost-limits", "federation-upstream", "operator_policy"}
    with Broker(http_port=0) as broker:
        other = Api(Client(broker))
        other.post("definitions", exported, 204)
        assert other.get("definitions") == exported
        assert other.get("users/imported")["limits"] == {"max-channels": 50}


def test_of_one_virtual_host(api: Api) -> None:
    """It has no names of virtual hosts, so it can be imported into another one."""
    api.post("definitions", FILE, 204)
    part = api.get("definitions/shop")
    assert "users" not in part and all("vhost" not in one for kind in ("queues", "policies", "parameters") for one in part[kind])
    api.put("vhosts/copy")
    api.post("definitions/copy", part, 204)
    assert api.get("definitions/copy") == part
    assert api.get("queues/copy/orders")["policy"] == "ha"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ({"users": [{"name": "u", "tags": "", "password_hash": "x"}]}, "users: 'u': the password hash is no base64"),
        ({"users": [{"name": "u"}]}, "users: 'u': 'tags' is missing"),
        ({"queues": [{"name": "q", "vhost": "nope"}]}, "queues: 'q': vhost 'nope' does not exist"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"x-max-length": -1}}]}, "queues: 'q': invalid arg 'x-max-length'"),
        (
            {"bindings": [{"source": "amq.topic", "vhost": "no", "destination": "d", "destination_type": "queue"}]},
            "bindings: 'amq.topic -> d': vhost 'no' does not exist",
        ),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}}]}, "policies: 'p': Validation failed"),
        ({"queues": {}}, "'queues' must be a list"),
        ({"parameters": [{"component": "x", "vhost": "/", "name": "n", "value": 1}]}, "parameters: 'n': Validation failed"),
    ],
)
def test_an_object_that_is_refused_is_named(api: Api, file: dict[str, Any], reason: str) -> None:
    answer = api.ask("POST", "definitions", {"vhosts": [{"name": "before"}], **file})
    assert answer.status in (400, 404) and reason in answer.json["reason"], answer
    # What is no definitions file changes nothing; of one with an object that is refused all others are taken.
    whole = "must be a list" not in reason and "is missing" not in reason
    assert ("before" in {one["name"] for one in api.get("vhosts")}) is whole


def test_a_file_has_a_limit(api: Api) -> None:
    answer = api.ask("POST", "definitions", {"x": "y" * (4 * 1024 * 1024)})
    assert answer.status == 413


def things(api: Api, kind: str, vhost: str = "%2F") -> set[str]:
    return {one["name"] for one in api.get(f"{kind}/{vhost}") if not one["name"].startswith("amq.") or one["name"].startswith("amq.gen")}


def test_what_is_not_in_the_file_is_passed_over_and_all_else_is_taken(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ's files have bindings of exclusive queues and of exchanges of plugins, and queues that the broker named."""
    queue = {"vhost": "/", "destination_type": "queue", "routing_key": "k", "arguments": {}}
    good = [{**queue, "source": "amq.topic", "destination": f"q{number}"} for number in range(600)]
    odd = [
        {**queue, "source": "amq.topic", "destination": "amq.gen-exclusive-that-is-gone"},
        {**queue, "source": "amq.plugin", "destination": "q1"},
        {**queue, "source": "amq.topic", "destination": "federation: up -> x", "destination_type": "exchange"},
        {**queue, "source": "", "destination": "q1"},
    ]
    named = "amq.gen-AbCdEfGhIjKlMnOpQrStUv"
    file = {
        "queues": [{"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in (named, *(f"q{n}" for n in range(600)))],
        "exchanges": [{"name": "amq.plugin", "vhost": "/", "type": "topic", "durable": True, "internal": True}],
        "bindings": [*good[:300], *odd, *good[300:], {**queue, "source": "amq.topic", "destination": named}],
    }
    answer = api.post("definitions", file)
    reasons = {(one["section"], one["name"]): one["reason"] for one in answer["passed_over"]}
    assert answer["passed_over_count"] == 4 and reasons == {
        ("exchanges", "amq.plugin"): "names with 'amq.' are the broker's, and this exchange is none of them",
        ("bindings", "amq.topic -> amq.gen-exclusive-that-is-gone"): "no queue 'amq.gen-exclusive-that-is-gone' in vhost '/'",
        ("bindings", "amq.plugin -> q1"): "no exchange 'amq.plugin' in vhost '/'",
        ("bindings", "amq.topic -> federation: up -> x"): "no exchange 'federation: up -> x' in vhost '/'",
    }
    assert caplog.text.count("is passed over") == 4
    assert things(api, "queues") == {named, *(f"q{number}" for number in range(600))}
    assert len(api.get("exchanges/%2F/amq.topic/bindings/source")) == 601
    assert api.post("definitions", file)["passed_over_count"] == 4
    exported = api.get("definitions")
    with Broker(http_port=0) as broker:
        other = Api(Client(broker))
        other.post("definitions", exported, 204)
        assert things(other, "queues") == things(api, "queues")
        assert len(other.get("exchanges/%2F/amq.topic/bindings/source")) == 601


def test_one_refusal_loses_nothing_else(api: Api) -> None:
    """Of 600 bindings, the 300th of which is refused, 599 come, and what stands behind them."""
    binding = {"source": "amq.topic", "vhost": "/", "destination": "q", "destination_type": "queue", "arguments": {}}
    bindings = [{**binding, "routing_key": f"k{number}"} for number in range(600)]
    bindings[299] = {**binding, "source": "amq.headers", "routing_key": "", "arguments": {"x-match": "some"}}
    policies = [
        {"vhost": "/", "name": name, "pattern": pattern, "definition": {"max-length": 1}}
        for name, pattern in (("bad", "("), ("good", "^x"))
    ]
    answer = api.ask("POST", "definitions", {"queues": [{"name": "q", "vhost": "/"}], "bindings": bindings, "policies": policies})
    assert answer.status == 400
    assert answer.json["reason"].startswith("policies: 'bad': Validation failed")
    assert answer.json["reason"].endswith("; 1 more are refused; all other objects are taken")
    assert len(api.get("exchanges/%2F/amq.topic/bindings/source")) == 599
    assert [one["name"] for one in api.get("policies/%2F")] == ["good"]


def test_forms_that_rabbitmq_writes(api: Api) -> None:
    """Lists of pairs for objects, metadata of virtual hosts, their limits, operator policies, and every member of another version."""
    file = {
        "rabbit_version": "4.1.0",
        "users": [{"name": "u", "tags": ["monitoring"], "password_hash": rabbitmq_hash("u", b"abcd"), "limits": [["max-channels", 9]]}],
        "vhosts": [
            {"name": "/", "metadata": {"description": "Default virtual host", "tags": []}, "limits": []},
            {
                "name": "m",
                "metadata": {"description": "d", "tags": ["a", "b"], "default_queue_type": "quorum"},
                "limits": [["max-queues", 7]],
            },
        ],
        "permissions": [{"user": "u", "vhost": "m", "configure": "", "write": "^a", "read": ".*"}],
        "topic_permissions": [{"user": "u", "vhost": "m", "exchange": "amq.topic", "write": "^a", "read": "^b"}],
        "parameters": [
            {"vhost": "m", "component": "vhost-limits", "name": "limits", "value": [["max-connections", 5]]},
            {
                "vhost": "m",
                "component": "operator_policy",
                "name": "op",
                "value": [["pattern", "^o"], ["definition", [["max-length", 5]]], ["priority", 1], ["apply-to", "queues"]],
            },
        ],
        "global_parameters": [{"name": "cluster_tags", "value": []}, {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
        "policies": [{"vhost": "m", "name": "p", "pattern": "^o", "definition": [{"expires": 60000}], "apply-to": "all", "priority": 0}],
        "queues": [
            {"name": "old", "vhost": "m", "type": "classic", "durable": True, "auto_delete": False, "arguments": []},
            {"name": "orders", "vhost": "m", "type": "quorum", "durable": True, "auto_delete": False, "arguments": {}},
        ],
    }
    api.post("definitions", file, 204)
    vhost = api.get("vhosts/m")
    assert (vhost["description"], vhost["tags"], vhost["default_queue_type"]) == ("d", ["a", "b"], "quorum")
    assert vhost["metadata"] == {"description": "d", "tags": ["a", "b"], "default_queue_type": "quorum"}
    assert api.get("vhost-limits/m")[0]["value"] == {"max-queues": 7, "max-connections": 5}
    assert api.get("users/u")["limits"] == {"max-channels": 9}
    assert api.get("operator-policies/m")[0]["definition"] == {"max-length": 5}
    assert api.get("queues/m/orders")["effective_policy_definition"] == {"expires": 60000, "max-length": 5}
    assert api.get("queues/m/orders")["type"] == "quorum" and api.get("queues/m/old")["type"] == "classic"
    assert {one["name"] for one in api.get("global-parameters")} >= {"cluster_tags", "internal_cluster_id"}
    exported = api.get("definitions")
    assert next(one for one in exported["vhosts"] if one["name"] == "m")["metadata"]["default_queue_type"] == "quorum"
    with Broker(http_port=0) as broker:
        other = Api(Client(broker))
        other.post("definitions", exported, 204)
        assert other.get("definitions") == exported


@pytest.mark.parametrize(
    ("digest", "algorithm"),
    [("md5", "rabbit_password_hashing_md5"), ("sha256", "rabbit_password_hashing_sha256"), ("sha512", "rabbit_password_hashing_sha512")],
)
@pytest.mark.parametrize("named", [True, False])
def test_users_of_every_hash(api: Api, digest: str, algorithm: str, named: bool) -> None:
    octets = base64.b64encode(b"salt" + hashlib.new(digest, b"saltword").digest()).decode()
    user = {"name": "word", "tags": "management", "password_hash": octets, **({"hashing_algorithm": algorithm} if named else {})}
    api.post("definitions", {"users": [user]}, 204)
    assert api.get("users/word")["hashing_algorithm"] == algorithm
    assert Client(api.client.broker).get("/api/whoami", basic("word", "word")).status == 200


def test_a_user_of_an_unknown_hash_comes_without_password(api: Api) -> None:
    """Its permissions come, too; one that is there keeps its password."""
    unknown = {"tags": "management", "password_hash": "e=", "hashing_algorithm": "my_password_hashing_bcrypt"}
    api.user("kept", "management", "%2F")
    file = {
        "users": [{"name": "new", **unknown}, {"name": "kept", **unknown}, {"name": "plain", "tags": "management", "password": "plain"}],
        "permissions": [{"user": "new", "vhost": "/", "configure": "^n", "write": "", "read": ""}],
    }
    answer = api.post("definitions", file)
    assert [one["name"] for one in answer["passed_over"]] == ["new", "kept"]
    assert "my_password_hashing_bcrypt" in answer["passed_over"][0]["reason"]
    assert api.get("permissions/%2F/new")["configure"] == "^n"
    for name, password, status in (("new", "", 401), ("kept", "kept", 200), ("plain", "plain", 200)):
        assert api.client.get("/api/whoami", basic(name, password)).status == status


def test_a_default_queue_type_that_is_not_known_is_passed_over(api: Api) -> None:
    answer = api.post("definitions", {"vhosts": [{"name": "v", "default_queue_type": "rabbit_mqtt_qos0_queue", "description": "d"}]})
    assert "default queue type" in answer["passed_over"][0]["reason"] and api.get("vhosts/v")["description"] == "d"
