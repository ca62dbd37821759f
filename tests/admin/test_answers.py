"""Answers of JSON over HTTP: bounded in memory however large their objects are and however slowly they are read; what is cut says so."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.admin.getting import Getting
from flintmq.admin.messages import Part, kept_of
from flintmq.core.memory_account import bytes_by_kind
from flintmq.core.shares import Who
from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until

GET = {"count": 50_000, "ackmode": "ack_requeue_true", "encoding": "auto"}
MIB = 1024 * 1024


class Unshowable:
    def __str__(self) -> str:
        raise ValueError("it can't be shown")


def put(client: Client, count: int, body: bytes, header: dict[str, Any] | None = None, name: str = "q") -> Any:
    """Publishes in the broker; the queue."""
    from flintmq.protocol.v0_9_1.codec import encode_properties
    from flintmq.pulls.requests import place

    queue = client.queue(name)
    raw = encode_properties(len(body), {"headers": header} if header else {})
    for _ in range(count):
        place(queue.core, None, (b"", name.encode(), raw, body, 0, 0))
    return queue


def ask(client: Client, path: str, value: Any = None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A response of which nothing but the head was read."""
    connection = client.connection()
    assert connection.sock is None
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    body = None if value is None else json.dumps(value).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, {**basic(), **kind})
    return connection, connection.getresponse()


def test_a_get_counts_headers_and_says_where_it_ends(start: Callable[..., Client]) -> None:
    client = start({"pull_bytes_max": MIB})
    queue = put(client, 100, b"", {"h": "x" * 50_000})
    answer = client.post("/api/queues/%2F/q/get", GET)
    assert answer.status == 200 and len(answer.json) == 20 and "1048576 bytes" in answer.headers["x-flintmq-cut"]
    assert answer.json[0]["properties"]["headers"]["h"] == "x" * 50_000
    assert queue.core.ready_count() == 100
    pulled = client.get(client.path() + "?count=1000")
    assert len(pulled.json["messages"]) == 21  # and the one that reaches it


def test_a_get_of_more_than_a_thousand_gives_them(start: Callable[..., Client]) -> None:
    client = start()
    put(client, 2_500, b"x")
    answer = client.post("/api/queues/%2F/q/get", GET)
    assert len(answer.json) == 2_500 and "x-flintmq-cut" not in answer.headers
    client = start({"http_get_messages_max": 10})
    put(client, 20, b"x")
    answer = client.post("/api/queues/%2F/q/get", GET | {"ackmode": "ack_requeue_false"})
    assert len(answer.json) == 10 and "10 messages" in answer.headers["x-flintmq-cut"]
    assert [one["message_count"] for one in answer.json] == list(range(19, 9, -1))
    assert len(client.post("/api/queues/%2F/q/get", GET | {"ackmode": "ack_requeue_false"}).json) == 10


def test_one_message_larger_than_the_limit_is_given(start: Callable[..., Client]) -> None:
    client = start({"pull_bytes_max": 1_000})
    put(client, 2, bytes(range(32)) * 100_000)
    for answer in (client.post("/api/queues/%2F/q/get", GET).json, client.pull("?count=9")):
        assert len(answer) == 1
        assert (answer[0].get("payload") or answer[0]["body"]) == (bytes(range(32)) * 100_000).decode()


def test_an_answer_keeps_copies_of_small_messages(start: Callable[..., Client]) -> None:
    """A content of some bytes that is held keeps a chunk of 256 KiB; a large one has memory of its own, and is not copied."""
    core = put(start(), 1, b"small").core
    put_large = put(start(), 1, b"x" * 200_000).core
    small, large = core.view_at(core.next_available(0)), put_large.view_at(put_large.next_available(0))
    assert isinstance(kept_of(small), Part) and kept_of(small).body(1, 2) == b"ma"
    assert kept_of(large) is large and large.body(199_999) == b"x" and large.body(200_000) == b""
    part = kept_of(large, 10)
    assert isinstance(part, Part) and part.body() == b"x" * 10 and part.body_bytes == 200_000


def test_messages_go_back_when_a_get_is_cancelled(start: Callable[..., Client]) -> None:
    """Between two slices of it, by a stop of the service."""
    client = start()
    queue = put(client, 1_200, b"x")
    pools = client.node.http._parts.pools if client.get("/health", {}).status == 200 else None  # type: ignore[union-attr]
    getting = Getting(client.node.broker, queue, 1_200, True, False, None)

    class Call:
        def __init__(self) -> None:
            self.pools, self.who = pools, Who("guest", "here")

    async def run() -> None:
        task = asyncio.ensure_future(getting.answer(Call(), lambda row: row))
        while len(getting._held) < 500:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert queue.core.ready_count() == 1_200 and queue.core.unacked_count() == 0
    assert pools is not None and pools.answers.held == 0


def test_who_does_not_read_holds_a_bounded_answer(start: Callable[..., Client]) -> None:
    """A client that reads nothing of 80 MiB of JSON makes the broker hold a piece, not the answer."""
    client = start()
    put(client, 1, b"\x01" * 14 * MIB)
    before = bytes_by_kind()["output"]
    connection, response = ask(client, "/api/queues/%2F/q/get", GET)
    assert response.status == 200 and bytes_by_kind()["output"] - before < MIB
    pools = client.node.http._parts.pools  # type: ignore[union-attr]
    assert 14 * MIB <= pools.answers.held < 15 * MIB
    response.close()
    connection.close()
    wait_until(lambda: pools.answers.held == 0)
    assert bytes_by_kind()["output"] == before


def test_large_answers_of_one_user_leave_room_for_others(start: Callable[..., Client]) -> None:
    client = start({"http_answers_bytes_max": 20 * MIB})
    other_user = another(client, "other")
    put(client, 1, b"\x01" * 5 * MIB)
    held = [ask(client, "/api/queues/%2F/q/get", GET)]
    answer = client.post("/api/queues/%2F/q/get", GET)
    assert answer.status == 503 and "too many large answers" in answer.json["reason"] and answer.headers["retry-after"]
    other = client.post("/api/queues/%2F/q/get", GET, other_user)
    assert other.status == 200
    # A list needs room too, for what it has listed.
    assert client.get("/api/queues").status == 200
    for connection, _ in held:
        connection.close()
    wait_until(lambda: client.post("/api/queues/%2F/q/get", GET).status == 200)


def another(client: Client, name: str) -> dict[str, str]:
    """A user who may everything; its headers."""
    value = json.dumps({"password": name, "tags": "administrator"}).encode()
    assert client.request("PUT", f"/api/users/{name}", value).status == 201
    every = b'{"configure": ".*", "write": ".*", "read": ".*"}'
    assert client.request("PUT", f"/api/permissions/%2F/{name}", every).status == 201
    return basic(name, name)


def test_unfinished_bodies_of_one_user_leave_room_for_others(start: Callable[..., Client]) -> None:
    client = start({"http_arriving_bytes_max": 4 * MIB})
    client.queue()
    other = another(client, "other")
    pools = client.node.http._parts.pools  # type: ignore[union-attr]
    head = f"POST {client.path()} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    head += f"Authorization: {basic()['Authorization']}\r\nContent-Length: 3000000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=30))
            sock.sendall(head.encode() + b"x" * MIB)
        wait_until(lambda: pools.arriving.refused > 0)
        assert MIB <= pools.arriving.of_user("guest") <= 2 * MIB
        octets = {**other, "Content-Type": "application/octet-stream"}
        assert client.request("POST", client.path(), b"x" * 300_000, octets).status == 201
    wait_until(lambda: pools.arriving.held == 0)


def test_two_users_do_not_take_all_event_streams(start: Callable[..., Client]) -> None:
    client = start({"sse_clients_max": 16})
    users = [another(client, f"user{number}") for number in range(3)]
    streams: list[http.client.HTTPConnection] = []
    counts = []
    for headers in users[:2]:
        counts.append(0)
        while True:
            connection = client.connection()
            connection.request("GET", "/api/v1/events", headers=headers)
            response = connection.getresponse()
            streams.append(connection)
            if response.status == 503:
                break
            counts[-1] += 1
    assert counts[0] == 8 and counts[1] < 8
    connection = client.connection()
    connection.request("GET", "/api/v1/events", headers=users[2])
    assert connection.getresponse().status == 200
    for one in [*streams, connection]:
        one.close()


def test_a_pull_whose_client_leaves_in_the_middle_gives_back(start: Callable[..., Client]) -> None:
    client = start()
    queue = put(client, 3, b"\x01" * 2 * MIB)
    connection, response = ask(client, client.path() + "?count=3")
    assert response.status == 200 and queue.core.unacked_count() == 3
    response.close()
    connection.close()
    wait_until(lambda: queue.core.ready_count() == 3)
    assert all(message["redelivered"] for message in client.pull("?count=3"))


def test_what_can_not_be_shown_cuts_the_connection(start: Callable[..., Client]) -> None:
    """The rest of an answer that fails is no JSON, so that nobody takes the part for the whole."""
    client = start()
    for number in range(500):
        client.queue(f"q{number:03}", x_note="x" * 1_000)
    broken = client.node.broker.vhosts["/"].queues["q400"]
    broken.arguments["x-note"] = Unshowable()
    connection, response = ask(client, "/api/queues")
    try:
        data = response.read()
    except (http.client.IncompleteRead, ConnectionError) as error:
        data = getattr(error, "partial", b"")
    assert not data.endswith(b"]") or data.count(b'"x-note"') < 500
    connection.close()
    broken.arguments["x-note"] = "x"
    assert len(client.get("/api/queues").json) == 500


def test_a_queue_shows_all_its_consumers(start: Callable[..., Client]) -> None:
    client = start()
    client.queue()
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(client.broker.url))
    channel = connection.channel()
    for number in range(1_100):
        channel.basic_consume("q", lambda *_: None, consumer_tag=f"c{number}", arguments={"x-note": "n" * 1_000})
    shown = client.get("/api/queues/%2F/q").json
    assert len(shown["consumer_details"]) == 1_100 and shown["consumer_details"][0]["arguments"]["x-note"] == "n" * 1_000
    connection.close()


def test_names_that_are_no_text_are_shown_as_strict_json(start: Callable[..., Client]) -> None:
    """D4. Names of headers and arguments, of queues and in keys, which AMQP let in though they are no UTF-8."""
    client = start()
    name = b"n\xff\xfe".decode("utf-8", "surrogateescape")
    client.node.broker.vhosts["/"].run(
        client.node.broker.vhosts["/"].declare_queue(name, arguments={name: 1, "x-list": [name, {name: name}]})
    )
    put(client, 1, b"x", {name: name, b"n\xff\xfd".decode("utf-8", "surrogateescape"): b"\xff"})
    for answer in (
        client.get("/api/queues"),
        client.get("/api/v1/queues/%2F/q/peek"),
        client.post("/api/queues/%2F/q/get", GET),
        client.get("/api/definitions"),
        client.get("/api/bindings"),
    ):
        assert answer.status == 200
        json.dumps(json.loads(answer.raw), ensure_ascii=False).encode()
    headers = client.post("/api/queues/%2F/q/get", GET).json[0]["properties"]["headers"]
    assert len(headers) == 2
