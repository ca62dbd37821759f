"""Requests that are held end with their user: rights are asked for again when messages are handed over, and when they change."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until

CHANGES: dict[str, tuple[str, str, Any, int]] = {
    "permission cleared": ("DELETE", "/api/permissions/v/eve", None, 403),
    "no read permission": ("PUT", "/api/permissions/v/eve", {"configure": ".*", "write": ".*", "read": ""}, 403),
    "user deleted": ("DELETE", "/api/users/eve", None, 401),
    "password changed": ("PUT", "/api/users/eve", {"password": "other", "tags": "management"}, 401),
    "virtual host deleted": ("DELETE", "/api/vhosts/v", None, 403),
    "queue deleted": ("DELETE", "/api/queues/v/q", None, 404),
}
EVE = basic("eve", "eve")
PATH = "/api/v1/queues/v/q/messages"


def prepare(client: Client) -> None:
    for path, value in (
        ("users/eve", {"password": "eve", "tags": "management"}),
        ("vhosts/v", {}),
        ("permissions/v/eve", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("queues/v/q", {}),
    ):
        assert client.request("PUT", f"/api/{path}", json.dumps(value).encode()).status in (201, 204)


def held(client: Client) -> http.client.HTTPConnection:
    connection = client.connection()
    connection.request("GET", PATH + "?hold=60", headers=EVE)
    wait_until(lambda: client.node.http._parts.held == 1)  # type: ignore[union-attr]
    return connection


def change(client: Client, name: str) -> int:
    method, path, value, status = CHANGES[name]
    body = None if value is None else json.dumps(value).encode()
    assert client.request(method, path, body).status in (201, 204)
    return status


@pytest.mark.parametrize("name", CHANGES)
def test_a_held_pull_ends_with_its_rights(start: Callable[..., Client], name: str) -> None:
    client = start()
    prepare(client)
    connection = held(client)
    status = change(client, name)
    response = connection.getresponse()
    assert response.status in (status, 404) if name == "virtual host deleted" else response.status == status, response.read()
    if not name.endswith("deleted") or name == "user deleted":
        octets = {**basic(), "Content-Type": "application/octet-stream"}
        assert client.request("POST", PATH, b"later", octets).status == 201
        [message] = client.get(PATH).json["messages"]
        assert message["body"] == "later" and not message["redelivered"]
    connection.close()


@pytest.mark.parametrize("name", ["permission cleared", "user deleted", "password changed", "no read permission"])
def test_a_message_is_not_handed_to_who_may_no_longer(start: Callable[..., Client], name: str) -> None:
    """Also when nobody told the pull that its rights changed: of a directory's user they change outside."""
    client = start()
    prepare(client)
    connection = held(client)
    client.node.broker.on_rights_changed.clear()
    status = change(client, name)
    octets = {**basic(), "Content-Type": "application/octet-stream"}
    assert client.request("POST", PATH, b"later", octets).status == 201
    assert connection.getresponse().status == status
    [message] = client.get(PATH).json["messages"]
    assert message["body"] == "later" and not message["redelivered"]
    connection.close()


def test_another_change_ends_no_pull(start: Callable[..., Client]) -> None:
    client = start()
    prepare(client)
    connection = held(client)
    assert client.request("PUT", "/api/users/bob", b'{"password": "b", "tags": ""}').status == 201
    assert client.request("DELETE", "/api/users/bob").status == 204
    octets = {**basic(), "Content-Type": "application/octet-stream"}
    assert client.request("POST", PATH, b"now", octets).status == 201
    assert json.loads(connection.getresponse().read())["messages"][0]["body"] == "now"
    connection.close()


@pytest.mark.parametrize("name", ["user deleted", "password changed"])
def test_an_event_stream_ends_with_its_user(start: Callable[..., Client], name: str) -> None:
    client = start({"sse_look_ms": 20})
    prepare(client)
    connection = client.connection()
    connection.request("GET", "/api/v1/events", headers=EVE)
    response = connection.getresponse()
    assert response.status == 200
    change(client, name)
    assert response.read().endswith(b"event: end\ndata: {}\n\n")
    connection.close()


def test_who_reads_slowly_reads_no_longer_than_it_may(start: Callable[..., Client]) -> None:
    client = start()
    prepare(client)
    queue = client.node.broker.vhosts["v"].queues["q"]
    queue.core.publish(b"", b"q", b"\x00\x3c" + bytes(2) + (8_000_000).to_bytes(8, "big") + bytes(2), b"\x01" * 8_000_000, 0, 0)
    connection = client.connection()
    connection.request("GET", PATH, headers=EVE)
    response = connection.getresponse()
    assert response.status == 200
    change(client, "user deleted")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    wait_until(lambda: queue.core.ready_count() == 1)
    connection.close()
