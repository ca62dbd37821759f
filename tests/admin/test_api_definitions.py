"""Definitions files: of RabbitMQ, of LavinMQ, and ours, whole and of one virtual host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.access.hashes import rabbitmq_hash
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client

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
        ({"users": [{"name": "u", "tags": "", "password_hash": "x", "hashing_algorithm": "Bcrypt"}]}, "users: 'u': unknown"),
        ({"users": [{"name": "u"}]}, "users: 'u': [{key_missing,tags}]"),
        ({"queues": [{"name": "q", "vhost": "nope"}]}, "queues: 'q': vhost 'nope' does not exist"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"x-max-length": -1}}]}, "queues: 'q': invalid arg 'x-max-length'"),
        ({"bindings": [{"source": "s", "vhost": "/", "destination": "d", "destination_type": "queue"}]}, "bindings: 's': no exchange 's'"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}}]}, "policies: 'p': Validation failed"),
        ({"queues": {}}, "'queues' must be a list"),
        ({"parameters": [{"component": "x", "vhost": "/", "name": "n", "value": 1}]}, "parameters: 'n': Validation failed"),
    ],
)
def test_the_first_object_that_is_refused_is_named(api: Api, file: dict[str, Any], reason: str) -> None:
    answer = api.ask("POST", "definitions", {"vhosts": [{"name": "before"}], **file})
    assert answer.status in (400, 404) and reason in answer.json["reason"], answer
    if "must be a list" not in reason and "users" not in file:  # a file whose form is wrong is not begun
        assert "before" in {one["name"] for one in api.get("vhosts")}


def test_a_file_has_a_limit(api: Api) -> None:
    answer = api.ask("POST", "definitions", {"x": "y" * (4 * 1024 * 1024)})
    assert answer.status == 413
