"""What a page of another site can make a browser send changes nothing and reads nothing; and one body does not hold up the rest."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.admin.auth import Guard
from flintmq.admin.http_refusals import HttpError
from flintmq.config import Limits
from tests.admin.conftest import Client, basic

USER = {"Authorization": basic()["Authorization"]}
JSON = {**USER, "Content-Type": "application/json"}


def status(guard: Guard, method: str = "POST", host: str | None = "localhost:15672", scheme: str = "http", **headers: str) -> int:
    """200 when the request may go on, else the status of its refusal. Header names: with _ for -."""
    sent = [(b"host", host.encode())] if host is not None else []
    sent += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    try:
        guard.check({"method": method, "scheme": scheme, "headers": sent})
    except HttpError as error:
        assert error.reason and error.fix
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:15672", 200),
        ("LocalHost", 200),
        ("localhost.", 200),
        ("127.0.0.1:15672", 200),
        ("[::1]:15672", 200),
        ("[::1]", 200),
        ("192.168.7.9", 200),
        ("broker.internal:15672", 200),
        ("queue.example:1", 200),
        ("evil.example", 421),
        ("evil.example:15672", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("2130706433", 421),  # 127.0.0.1 in one number: browsers send it as an address
        ("evil.example:80@localhost", 400),
        ("localhost:x", 400),
        (":15672", 400),
        ("", 400),
        (None, 400),
    ],
)
def test_the_host_is_one_of_ours(host: str | None, expected: int) -> None:
    guard = Guard("broker.internal", ["queue.example"])
    assert status(guard, "GET", host) == expected
    assert status(guard, "POST", host, content_type="application/json") == expected


def test_any_name_when_the_operator_says_so() -> None:
    assert status(Guard("127.0.0.1", ["*"]), "GET", "evil.example") == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "http://localhost:15672"}, 200),
        ({"origin": "http://localhost:8080"}, 403),
        ({"origin": "https://localhost:15672"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
    ],
)
def test_another_site_is_refused(headers: dict[str, str], expected: int) -> None:
    guard = Guard("127.0.0.1", [])
    assert status(guard, "GET", **headers) == expected
    assert status(guard, "POST", content_type="application/json", x_flintmq_request="1", **headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content_type": "application/json"}, 200),
        ({"content_type": "Application/JSON; charset=utf-8"}, 200),
        ({"content_type": "application/octet-stream"}, 200),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"content_type": "text/plain", "x_flintmq_request": "1"}, 415),
        ({}, 415),
        ({"content_length": "0"}, 415),
        ({"x_flintmq_request": "1"}, 200),
        ({"x_flintmq_request": "1", "content_length": "0"}, 200),
        ({"x_flintmq_request": "1", "content_length": "5"}, 415),
        ({"x_flintmq_request": "1", "transfer_encoding": "chunked"}, 415),
    ],
)
def test_what_changes_something_is_nothing_a_form_can_send(headers: dict[str, str], expected: int) -> None:
    guard = Guard("127.0.0.1", [])
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert status(guard, method, **headers) == expected


def ask(client: Client, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """A request with exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": "localhost", **headers}.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_pages_neither_take_nor_send_messages(shared: Client, name: str) -> None:
    """As a browser that remembers the password would send it, over the wire."""
    core = shared.queue(name).core
    shared.publish("a", name=name)
    path, body = shared.path(name), b'{"body": "x"}'
    assert ask(shared, "GET", path, **USER) == (403, {**ask(shared, "GET", path, **USER)[1], "error": "cross_site"})
    assert ask(shared, "GET", path, **USER, **{"X-FlintMQ-Request": "1", "Sec-Fetch-Site": "cross-site"})[0] == 403
    assert ask(shared, "POST", path + "/pull", b"", **USER)[0] == 415
    assert ask(shared, "POST", path, body, **USER, **{"Content-Type": "text/plain", "Origin": "http://evil.example"})[0] == 403
    assert ask(shared, "POST", path, body, **USER, **{"Content-Type": "text/plain"})[0] == 415
    assert ask(shared, "POST", path, body, **{**JSON, "Host": "evil.example:15672"})[0] == 421
    assert ask(shared, "OPTIONS", path, Origin="http://evil.example")[0] == 403
    assert (core.ready_count(), core.unacked_count()) == (1, 0)
    assert ask(shared, "GET", "/health", Host="evil.example") == (200, {"status": "ok"})
    for method, where, headers in (
        ("GET", path, {**USER, "X-FlintMQ-Request": "yes"}),
        ("POST", path + "/pull", {**USER, "X-FlintMQ-Request": "1"}),
        ("POST", path + "/pull", JSON),
    ):
        code, value = ask(shared, method, where + "?visibility=60", None, **headers)
        assert code == 200
        for message in value["messages"]:
            ask(shared, "POST", path + "/nack", json.dumps({"leases": [message["lease"]]}).encode(), **JSON)
        assert len(value["messages"]) == 1
    assert ask(shared, "POST", path + "/pull", b'{"x": 1}', **JSON)[0] == 400


def test_a_header_does_not_say_where_somebody_is(start: Callable[..., Client]) -> None:
    """guest is let in for the address of the connection, and no answer may be kept or run by a page."""
    client = start()
    answer = client.get(
        "/metrics", {**basic(), "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "Forwarded": "for=203.0.113.9"}
    )
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    client.node.broker.users.refused_from = lambda user, peer: peer != "203.0.113.9"
    assert client.get("/metrics", {**basic(), "X-Forwarded-For": "203.0.113.9"}).status == 401


def test_a_message_as_it_is(shared: Client, name: str) -> None:
    """Octets up to 16 MiB are published as they come; what is said of them stands beside them."""
    shared.queue(name)
    octets = {**basic(), "Content-Type": "application/octet-stream"}
    body = bytes(range(256)) * 4096
    said = {"content_type": "image/png", "priority": 7, "headers": {"a": [1, "\u00e4"]}}
    assert shared.request("POST", shared.path(name), body, {**octets, "X-FlintMQ-Properties": json.dumps(said)}).status == 201
    assert shared.request("POST", shared.path(name) + "?persistent=false", b"", octets).status == 201
    first, second = shared.pull("?count=2", name)
    assert (first["encoding"], first["body"]) == ("base64", b64encode(body).decode())
    assert first["properties"] == {**said, "delivery_mode": 2}
    assert (second["body"], second["properties"]) == ("", {})
    for query, headers in (
        ("?persistent=1", {}),
        ("?body=x", {}),
        ("", {"X-FlintMQ-Properties": "[]"}),
        ("", {"X-FlintMQ-Properties": '{"x": 1}'}),
    ):
        assert shared.request("POST", shared.path(name) + query, b"x", {**octets, **headers}).status == 400


@pytest.mark.parametrize("verb", ["", "/ack", "/nack", "/extend", "/pull"])
def test_json_is_small(shared: Client, name: str, verb: str) -> None:
    """What Python's parser takes in one piece, with the interpreter in its hand, is bounded: 413 before a byte of it is looked at."""
    shared.queue(name)
    most = Limits().http_json_bytes_max
    assert most <= 128 * 1024
    answer = shared.request("POST", shared.path(name, verb), b"[" + b"[]," * (most // 3) + b"1]", JSON)
    assert answer.status == 413 and "bytes" in answer.json["reason"]
    if verb:
        assert shared.request("POST", shared.path(name, verb), b"x", {**basic(), "Content-Type": "application/octet-stream"}).status == 415
