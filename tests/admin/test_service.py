"""Authentication, permissions, errors, limits, figures, TLS, start and stop of the HTTP service."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.access.users import hash_password
from flintmq.admin.protocol import BoundedProtocol
from flintmq.config import Config
from flintmq.errors import OperatorError
from flintmq.node import Node
from flintmq.ports import PermissionRecord, UserRecord
from tests.admin.conftest import Client, basic
from tests.support.broker import Broker as ChildBroker
from tests.support.broker import self_signed_certificate, wait_until

ROUTES = [
    ("GET", "/api/v1/queues/%2F/q"),
    ("GET", "/api/v1/queues/%2F/q/messages"),
    ("POST", "/api/v1/queues/%2F/q/messages"),
    ("POST", "/api/v1/queues/%2F/q/messages/ack"),
    ("POST", "/api/v1/queues/%2F/q/messages/nack"),
    ("POST", "/api/v1/queues/%2F/q/messages/extend"),
    ("GET", "/api/v1/actors"),
]


def names_cause_and_fix(answer: Any) -> bool:
    return set(answer.json) == {"error", "reason", "fix"} and all(answer.json.values())


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("guest", "wrong"),
        basic("nobody", "guest"),
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic %%%"},
        {"Authorization": "Basic Z3Vlc3Q="},
    ],
)
def test_nothing_is_served_to_strangers(shared: Client, method: str, path: str, headers: dict[str, str]) -> None:
    """Every route but /health wants a user and the right password: 401 with a challenge."""
    answer = shared.request(method, path, b"{}" if method == "POST" else None, headers)
    assert answer.status == 401 and names_cause_and_fix(answer)
    assert answer.headers["www-authenticate"].startswith("Basic ")


def test_health_needs_nobody(shared: Client) -> None:
    """/health is for load balancers: no credentials, no details."""
    answer = shared.get("/health", {})
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_a_process_with_many_descriptors_is_served(start: Callable[..., Client]) -> None:
    """Descriptors above 1,023, which select() does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1100:
            held.append(os.open(os.devnull, os.O_RDONLY))
        assert start().get("/health", {"X-FlintMQ-Request": "1"}).status == 200
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_permissions_are_asked_for_each_verb(start: Callable[..., Client]) -> None:
    """Reading needs read on the queue, publishing write on the default exchange, figures some right to it, gauges a tag."""
    client = start()
    broker = client.node.broker
    client.queue("mine")
    client.queue("other")
    broker.users.put(UserRecord("reader", hash_password("r"), ()))
    broker.permissions.set_permissions(PermissionRecord("reader", "/", "", "", "^mine$"))
    broker.users.put(UserRecord("stranger", hash_password("s"), ("monitoring",)))
    reader, stranger = basic("reader", "r"), basic("stranger", "s")
    assert client.get(client.path("mine"), reader).status == 200
    for verb in ("/ack", "/nack", "/extend"):
        assert client.post(client.path("mine", verb), {"leases": ["x"]}, reader).status == 200
        assert client.post(client.path("other", verb), {"leases": ["x"]}, reader).status == 403
    refused = client.get(client.path("other"), reader)
    assert refused.status == 403 and names_cause_and_fix(refused)
    assert client.post(client.path("mine"), {"body": "x"}, reader).status == 403
    assert client.get("/api/v1/queues/%2F/mine", reader).status == 200
    assert client.get("/api/v1/queues/%2F/other", reader).status == 403
    for path in ("/metrics", "/api/v1/actors"):
        assert client.get(path, reader).status == 403
        assert client.get(path, stranger).status == 200
    assert client.get(client.path("mine"), stranger).status == 403
    # A changed password counts from now on, whatever was cached.
    broker.users.set_password("reader", "new")
    assert client.get(client.path("mine"), reader).status == 401


def test_many_wrong_logins_are_bounded(start: Callable[..., Client]) -> None:
    """Password checks beyond the limit are refused with 503 at once, not queued without end; the service goes on."""
    client = start({"http_logins_max": 2, "password_checks_max": 1})
    client.queue()
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: statuses.append(client.get(client.path(), basic("guest", f"wrong{n}")).status))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(statuses) <= {401, 503} and 401 in statuses and len(statuses) == 12
    assert client.get(client.path()).status == 200


def test_equal_logins_share_a_check(start: Callable[..., Client]) -> None:
    """Many requests with the same new credentials cost one password check, and none of them is refused for the others' sake."""
    client = start({"http_logins_max": 1, "password_checks_max": 1})
    client.queue()
    users = client.node.broker.users
    checks = []
    check = users.check
    users.check = lambda user, password: checks.append(user) or check(user, password)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(client.get(client.path()).status)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 20 and len(checks) == 1


BAD_QUERIES = [
    "hold=61",
    "hold=-1",
    "hold=x",
    "hold=1e3",
    "hold=",
    "hold=nan",
    "hold=1.2.3",
    "hold=٣",
    "count=0",
    "count=1001",
    "count=1.5",
    "count=+1",
    "count=" + "9" * 400,
    "bytes=0",
    "bytes=999999999999",
    "visibility=0",
    "visibility=43201",
    "encoding=xml",
    "unknown=1",
    "hold=1&hold=2",
    "group=" + "g" * 256,
    "offset=first",
]


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_bad_parameters_are_named(shared: Client, query: str) -> None:
    """400 with the parameter's name, never a default that was not asked for, never a broken connection."""
    shared.node.broker.vhosts["/"].run(shared.node.broker.vhosts["/"].declare_queue("params"))
    answer = shared.get(shared.path("params") + "?" + query.encode("ascii", "backslashreplace").decode())
    assert answer.status == 400 and names_cause_and_fix(answer)
    assert query.partition("=")[0] in answer.json["reason"]


@pytest.mark.parametrize("octets", ["%ff", "%fe", "a%80b", "%c3", "%ed%a0%80", "%c0%af"])
def test_names_that_are_not_utf_8_are_refused(shared: Client, octets: str) -> None:
    """Group, queue and virtual host, by every verb, and the names of parameters: 400 that says so, and nothing is made of them."""
    queue = shared.queue("named")
    told = []
    for path in (f"/api/v1/queues/%2F/{octets}", f"/api/v1/queues/{octets}/named"):
        told += [shared.get(path), shared.get(f"{path}/messages"), shared.post(f"{path}/messages", {"body": "x"})]
        told += [shared.post(f"{path}/messages/{verb}", {"leases": ["x"]}) for verb in ("ack", "nack", "extend")]
    told += [shared.get(f"{shared.path('named')}?{query}") for query in (f"group={octets}", f"count=1&group=x{octets}", f"offset={octets}")]
    for answer in told:
        assert answer.status == 400 and names_cause_and_fix(answer)
        assert "is not UTF-8" in answer.json["reason"] and "UTF-8" in answer.json["fix"]
    assert "unknown parameter" in shared.get(f"{shared.path('named')}?{octets}=1").json["reason"]
    assert shared.node.pulls.groups(queue) == {}


BAD_SETTLEMENTS = [
    b"",
    b"x",
    b"[]",
    b"null",
    b"{}",
    b'{"leases": []}',
    b'{"leases": "x"}',
    b'{"leases": [1]}',
    b'{"leases": [""]}',
    b'{"leases": ["x"], "y": 1}',
    b'{"leases": ["' + b"x" * 100 + b'"]}',
    b'{"leases": ["x"], "delay": -1}',
    b'{"leases": ["x"], "delay": "1"}',
    b'{"leases": ["x"], "delay": NaN}',
    b'{"leases": ["x"], "requeue": 1}',
    b'{"leases": ["x"], "delay": 1, "requeue": false}',
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"leases": ["x"], "delay": 1e999}',
]


@pytest.mark.parametrize("body", BAD_SETTLEMENTS)
def test_bad_settlements_are_named(shared: Client, body: bytes) -> None:
    """400 with cause and fix for every body that is no settlement."""
    shared.node.broker.vhosts["/"].run(shared.node.broker.vhosts["/"].declare_queue("params"))
    answer = shared.request("POST", shared.path("params", "/nack"), body, basic())
    assert answer.status == 400 and names_cause_and_fix(answer)


def nested(depth: int) -> Any:
    return {"x": nested(depth - 1)} if depth else 1


BAD_PUBLISHES: list[Any] = [
    {},
    {"body": 1},
    {"body": "x", "encoding": "hex"},
    {"body": "%", "encoding": "base64"},
    {"body": "x", "persistent": "yes"},
    {"body": "x", "properties": []},
    {"body": "x", "properties": {"nope": 1}},
    {"body": "x", "properties": {"priority": 256}},
    {"body": "x", "properties": {"priority": True}},
    {"body": "x", "properties": {"headers": 1}},
    {"body": "x", "properties": {"expiration": 5}},
    {"body": "x", "properties": {"expiration": "-5"}},
    {"body": "x", "properties": {"type": "x" * 256}},
    {"body": "\ud800"},
    {"body": "x", "properties": {"headers": {"x" * 300: 1}}},
    {"body": "x", "properties": {"headers": {"n": 2**70}}},
    {"body": "x", "properties": {"timestamp": -1}},
    {"body": "x", "properties": {"headers": {"x": float("nan")}}},
    {"body": "x", "properties": {"headers": {"x": float("-inf")}}},
    {"body": "x", "properties": {"headers": nested(33)}},
    {"body": "x", "properties": {"headers": {"\ud800": 1}}},
    {"routing_key": "x"},
]


@pytest.mark.parametrize("value", BAD_PUBLISHES)
def test_bad_publishes_are_named(shared: Client, value: Any) -> None:
    """400 with cause and fix, and nothing is published."""
    queue = shared.node.broker.vhosts["/"].run(shared.node.broker.vhosts["/"].declare_queue("params"))
    before = queue.core.enqueued_total()
    answer = shared.post(shared.path("params"), value)
    assert answer.status == 400 and names_cause_and_fix(answer)
    assert "sys." not in answer.json["reason"] and "codec" not in answer.json["reason"]
    assert queue.core.enqueued_total() == before


def test_headers_up_to_the_limits_of_amqp_are_taken(shared: Client, name: str) -> None:
    """What an AMQP publisher may send, an HTTP publisher may: 32 levels, as many fields as a frame holds; and it comes back."""
    shared.queue(name)
    for headers in (nested(32), {str(n): n for n in range(9_000)}, {"x": "x" * 130_000}):
        assert shared.post(shared.path(name), {"body": "x", "properties": {"headers": headers}}).status == 201
        [message] = shared.pull(name=name)
        assert message["properties"]["headers"] == headers


def test_numbers_that_json_does_not_have(shared: Client, name: str) -> None:
    """400 that says so, whatever Python's own reader thinks of them; the limits of Python are not named."""
    shared.queue(name)
    for number in (b"NaN", b"-Infinity", b"1e999", b"9" * 5_000):
        body = b'{"body": "x", "properties": {"headers": {"n": ' + number + b"}}}"
        answer = shared.request("POST", shared.path(name), body, basic())
        assert answer.status == 400 and names_cause_and_fix(answer) and "sys." not in answer.json["reason"]
    assert shared.pull(name=name) == []


def test_unknown_things_are_404(shared: Client) -> None:
    """Paths, virtual hosts (403: whether it exists is nobody's business) and queues that are not there."""
    for path in (
        "/api",
        "/api/v1/queues",
        "/api/v1/queues/%2F",
        "/api/v1/queues///x/messages",
        "/api/v1/queues/%2F/q/messages/",
        "/metrics/",
    ):
        answer = shared.get(path)
        assert answer.status == 404 and names_cause_and_fix(answer), path
    assert shared.get("/api/v1/queues/nowhere/q/messages").status == 403
    assert shared.get(shared.path("nowhere")).status == 404
    assert shared.get(shared.path("x" * 256)).status == 400


def test_wrong_methods_are_405(shared: Client) -> None:
    """A method that a path has not is refused with those it has; a HEAD of messages must not take any."""
    for method, path in (("PUT", "/metrics"), ("DELETE", shared.path()), ("HEAD", shared.path()), ("GET", shared.path(verb="/ack"))):
        answer = shared.request(method, path)
        assert answer.status == 405 and answer.headers["allow"]


def test_large_bodies_are_refused(start: Callable[..., Client]) -> None:
    """413 by the announced length, and by what really comes."""
    client = start({"http_json_bytes_max": 1_000, "http_publish_bytes_max": 2_000})
    client.queue()
    octets = {**basic(), "Content-Type": "application/octet-stream"}
    assert client.request("POST", client.path(), b"x" * 1_500, octets).status == 201
    assert client.request("POST", client.path(), b"x" * 2_001, octets).status == 413
    assert client.post(client.path(), {"body": "x" * 1_500}).status == 413
    assert client.post(client.path(verb="/ack"), {"leases": ["x" * 50] * 100}).status == 413
    connection = client.connection()
    connection.request("POST", client.path(), iter([b"x" * 900] * 10), octets, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_bodies_on_their_way_are_bounded(start: Callable[..., Client]) -> None:
    """Half bodies of many clients take a bounded amount of memory: 503 above it; when they are gone there is room again."""
    client = start({"http_arriving_bytes_max": 1_000_000})
    client.queue()
    octets = {**basic(), "Content-Type": "application/octet-stream"}
    head = f"POST {client.path()} HTTP/1.1\r\n"
    head += f"Host: localhost\r\nContent-Type: application/octet-stream\r\nAuthorization: {basic()['Authorization']}\r\n"
    head += "Content-Length: 900000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket] = []

        def half() -> None:
            socks.append(stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=30)))
            socks[-1].sendall(head.encode() + b"x" * 400_000)

        def refused() -> bool:
            # Two halves have room. Who sends the piece that is too much is refused: also a half, when a post came between its pieces. Then
            # another takes its place, and the next post comes a while after it.
            left = len(socks) - len(select.select(socks, [], [], 0)[0])
            if left == 2:
                return client.request("POST", client.path(), b"x" * 300_000, octets).status == 503
            if left < 2:
                half()
            return False

        for _ in range(4):
            half()
        wait_until(refused, step=0.1, what="the bound is reached")
    wait_until(lambda: client.request("POST", client.path(), b"x" * 300_000, octets).status == 201, what="there is room again")


def test_what_is_no_http_is_refused(shared: Client) -> None:
    """Bytes that are no request, and heads that are too long: 400 or a closed connection, and others are served."""
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTQ/1.1\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"\x16\x03\x01\x00\xa5",
    ):
        with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as sock:
            # Cut before all of it was read, a peer hears of a reset, be it while it still sends.
            with contextlib.suppress(ConnectionError):
                sock.sendall(raw)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while got := sock.recv(65_536):
                    answer += got
            assert answer == b"" or (answer.startswith(b"HTTP/1.1 400") and b'"fix"' in answer)
    assert shared.get("/health", {}).status == 200


def test_a_long_head_in_one_piece_is_refused(shared: Client) -> None:
    """431 above http_head_bytes_max also when the whole head is there at once."""
    answer = shared.get("/health", {"x": "y" * 20_000})
    assert answer.status in (400, 431) and names_cause_and_fix(answer)
    assert shared.get("/health", {"x": "y" * 15_000}).status == 200


def test_garbage_behind_an_answer_leaves_no_trace(shared: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger whose request was answered and who then breaks the protocol is cut, in silence."""
    caplog.set_level(logging.DEBUG)
    with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as sock:
        sock.sendall(
            b"POST "
            + shared.path().encode()
            + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        got = b""
        while not got.endswith(b"}"):
            got += sock.recv(65_536)
        assert got.startswith(b"HTTP/1.1 401")
        sock.sendall(b"zz\r\nno chunk\r\n")
        assert sock.recv(65_536) == b""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING and record.name in ("asyncio", "flintmq.http")] == []


def test_slow_heads_are_cut_off(start: Callable[..., Client]) -> None:
    """A connection that says nothing, or half a request, is closed; so is one that idles after an answer."""
    client = start({"http_request_ms": 300})
    for raw in (b"", b"GET /health HTTP/1.1\r\nHost:", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-FlintMQ-Request: 1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sock:
            sock.sendall(raw)
            while sock.recv(65_536):
                pass


def asked_for_much(client: Client) -> socket.socket:
    """A connection that asked for an answer that does not fit the socket's buffers, and has read none of it."""
    queue = client.queue()
    for _ in range(8):
        queue.core.publish(b"", b"", HEADER, b"x" * 1_000_000, 0, 0)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", client.port))
    head = f"GET {client.path()}?count=8 HTTP/1.1\r\n"
    head += f"Host: localhost\r\nX-FlintMQ-Request: 1\r\nAuthorization: {basic()['Authorization']}\r\n\r\n"
    sock.sendall(head.encode())
    return sock


def test_an_answer_may_be_read_slowly(start: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes longer over an answer than requests may take gets all of it."""
    client = start({"http_request_ms": 1_000})
    protocol = BoundedProtocol
    look, read, pause = protocol._look, threading.Condition(), threading.Event()
    size = seen = looks = 0

    def look_at_progress(self: Any) -> None:
        # Had this client no turn between two looks, as happens on a busy machine, it would seem not to read: the look waits until it has
        # read more than its socket's buffer holds.
        nonlocal seen, looks
        if self._not_read():
            with read:
                read.wait_for(lambda: size >= min(seen + 30_000, 8_000_000), 30)
                seen, looks = size, looks + 1
        look(self)

    monkeypatch.setattr(protocol, "_look", look_at_progress)
    with asked_for_much(client) as sock:
        while size < 8_000_000:
            slowly = looks < 3
            got = sock.recv(8_192 if slowly else 65_536)
            assert got, f"cut after {size} bytes"
            with read:
                size += len(got)
                read.notify()
            if slowly:
                pause.wait(0.02)
        assert looks >= 3, "it was read in the time that a request may take"


def test_who_does_not_read_an_answer_is_cut(start: Callable[..., Client]) -> None:
    """A client that reads nothing for http_request_ms loses the connection, and the broker the answer."""
    client = start({"http_request_ms": 400})
    with asked_for_much(client):
        wait_until(lambda: client.node.pulls.figures()["leased"] == 8, what="the answer is on its way")
        wait_until(lambda: "flintmq_http_connections 1\n" in client.get("/metrics").raw.decode(), what="only this connection is left")


def test_a_held_poll_is_not_cut_off(start: Callable[..., Client]) -> None:
    """The bound is for requests that are on their way, not for those that wait for messages."""
    client = start({"http_request_ms": 1_000})
    client.queue()
    assert client.get(client.path() + "?hold=3").status == 200


def test_connections_are_bounded(start: Callable[..., Client]) -> None:
    """One connection more than allowed takes the place of the oldest that has not logged in; held polls stay, and one more is refused."""
    client = start({"http_connections_max": 3, "http_source_share": 1.0})
    client.queue()
    assert client.get("/health", {}).status == 200
    wait_until(lambda: client.node.http._parts.connections() == 0, what="no connection")
    socks = [socket.create_connection(("127.0.0.1", client.port), timeout=30) for _ in range(3)]
    wait_until(lambda: client.node.http._parts.connections() == 3, what="three connections")
    assert client.get("/health", {}).status == 200
    with contextlib.suppress(ConnectionResetError):
        assert socks[0].recv(1) == b""
    links = client.node.http._parts.links_of_http
    assert (links.refused, links.evicted) == (0, 1)
    for sock in socks:
        sock.close()
    wait_until(lambda: client.node.http._parts.connections() == 0, what="no connection")
    polls = [client.connection() for _ in range(3)]
    for poll in polls:
        poll.request("GET", client.path() + "?hold=60", headers=basic())
    wait_until(lambda: client.node.http._parts.held == 3, what="three held polls")
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sock, contextlib.suppress(ConnectionResetError):
        assert sock.recv(1) == b""
    assert links.refused == 1
    for poll in polls:
        poll.close()


def test_figures_of_a_queue(shared: Client, name: str) -> None:
    """What is ready, unacked, leased and waiting, by group."""
    shared.queue(name)
    shared.publish("a", "b", name=name)
    shared.pull("?group=g", name=name)
    figures = shared.get(f"/api/v1/queues/%2F/{name}").json
    assert (figures["name"], figures["type"], figures["messages_ready"], figures["messages_unacked"]) == (name, "classic", 1, 1)
    assert figures["pull_groups"]["g"]["leased"] == 1 and figures["consumers"] == 1


def test_metrics_are_prometheus_text(shared: Client, name: str) -> None:
    """Every line is a comment or a sample with a number; what was done is counted; names are announced once."""
    shared.queue(name)
    shared.publish("a", name=name)
    shared.pull(name=name)
    answer = shared.get("/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    types: list[str] = []
    for line in answer.raw.decode().splitlines():
        if line.startswith("# TYPE "):
            types.append(line.split()[2])
            assert line.split()[3] in ("counter", "gauge", "histogram")
        elif not line.startswith("# HELP "):
            sample, _, value = line.rpartition(" ")
            assert sample.partition("{")[0] in (types[-1], f"{types[-1]}_bucket", f"{types[-1]}_sum", f"{types[-1]}_count")
            samples[sample] = float(value)
    assert len(types) == len(set(types))
    assert samples["flintmq_pull_messages_delivered_total"] >= 1 and samples["flintmq_queues"] >= 1
    assert samples["flintmq_actors_wakes_lost_total"] == 0
    assert samples['flintmq_http_requests_total{status="201"}'] >= 1


def test_actors_are_shown(shared: Client, name: str) -> None:
    """/api/v1/actors has the gauges of the actor system and of pulls."""
    shared.queue(name)
    shared.pull(name=name)
    value = shared.get("/api/v1/actors").json
    assert value["actors"]["dispatched_total"] >= 1 and value["pulls"]["pulls"] >= 1


def test_passes_are_traced(start: Callable[..., Client], tmp_path: Path) -> None:
    """/api/v1/passes traces the loops and the log's writer for a second: passes and their phases are counted, and the longest add up."""
    client = start(data_dir=str(tmp_path))
    vhost = client.node.broker.vhosts["/"]
    vhost.run(vhost.declare_queue("q", durable=True))

    def publish() -> None:
        for _ in range(20):
            client.publish("x")

    publishing = threading.Timer(0.2, publish)
    publishing.start()
    value = client.get("/api/v1/passes?seconds=1").json
    publishing.join()
    loop, writer = value["threads"]
    assert (loop["name"], writer["name"]) == ("loop", "log writer") and loop["passes"] > 0 and writer["passes"] > 0
    for thread in (loop, writer):
        assert sum(count for _, count in thread["times"]["pass"]) == thread["passes"] == sum(count for _, count in thread["times"]["send"])
        longest = thread["longest"][0]
        spent = sum(ns for name, ns in longest["phases"].items() if name != "wait")
        assert 0 < spent <= longest["total_ns"] <= 1.1 * spent + 20_000
    assert any(end and count for end, count in writer["times"]["log"])
    assert client.get("/api/v1/passes?seconds=0").status == 400


def test_tls(start: Callable[..., Client]) -> None:
    """With a certificate the port speaks HTTPS, and nothing else."""
    with self_signed_certificate() as (cert, key):
        client = start(tls_cert=cert, tls_key=key, tls_port=0)
        client.context = ssl.create_default_context(cafile=cert)
        client.queue()
        client.publish("x")
        assert [message["body"] for message in client.pull("?hold=5")] == ["x"]
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-FlintMQ-Request: 1\r\n\r\n")
            assert b"200" not in sock.recv(100)


def test_a_tls_handshake_that_does_not_come_is_cut_off(start: Callable[..., Client], caplog: pytest.LogCaptureFixture) -> None:
    """Who connects to the HTTPS port and says nothing, or half a word, is closed after tls_handshake_ms_max, in silence."""
    with self_signed_certificate() as (cert, key):
        client = start({"tls_handshake_ms_max": 300, "http_request_ms": 60_000}, tls_cert=cert, tls_key=key, tls_port=0)
        for raw in (b"", b"\x16\x03\x01\x00\xa5\x01"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sock:
                sock.sendall(raw)
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(100) == b""
        assert [
            record for record in caplog.records if record.levelno >= logging.WARNING and record.name in ("asyncio", "flintmq.http")
        ] == []


def test_a_taken_port_is_named() -> None:
    """Exit 69 with the port and the option."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(Config(port=0, http_port=port, memory=True))
        with pytest.raises(OperatorError, match=f"127.0.0.1:{port} for HTTP.*--http-port") as failed:
            node.start()
        assert failed.value.exit_code == 69
        node.stop()


def test_the_libraries_come_with_the_first_connection() -> None:
    """A broker that nobody speaks HTTP to loads neither starlette nor uvicorn; its port is open all the same."""
    code = (
        "import sys, socket, urllib.request\n"
        "from flintmq.testing.broker import Broker\n"
        "with Broker(http_port=0) as broker:\n"
        "    print(sorted({'uvicorn', 'starlette'} & set(sys.modules)))\n"
        "    print(urllib.request.urlopen(f'http://127.0.0.1:{broker.node.http_port}/health').status)\n"
        "    print(sorted({'uvicorn', 'starlette'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:3] == ["[]", "200", "['starlette', 'uvicorn']"]


def test_a_stop_answers_held_polls(start: Callable[..., Client]) -> None:
    """A broker that stops answers held polls 503 and ends in time; the port is free again."""
    client = start({"http_stop_ms": 20_000})  # before it cuts who is not answered yet; it ends when they are
    client.queue()
    got: list[Any] = []
    pollers = [threading.Thread(target=lambda: got.append(client.get(client.path() + "?hold=60"))) for _ in range(5)]
    for poller in pollers:
        poller.start()
    wait_until(lambda: client.node.pulls.figures()["waiting"] == 5, what="polls are held")
    client.node.stop()
    for poller in pollers:
        poller.join(60)
    assert [(answer.status, answer.json["error"]) for answer in got] == [(503, "closing")] * 5
    assert not client.node.http._thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", client.port), timeout=5)


def test_a_stop_with_half_a_body_on_its_way(start: Callable[..., Client], caplog: pytest.LogCaptureFixture) -> None:
    """Its sender is told that the broker stops, and the log has no trace of it."""
    client = start({"http_stop_ms": 1})  # uvicorn counts whole seconds
    client.queue()
    connection = client.connection()
    connection.putrequest("POST", client.path())
    for name, value in {**basic(), "content-type": "application/json", "content-length": "100", "expect": "100-continue"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    # "100 Continue" says that the body is waited for.
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 100")
    connection.send(b'{"body": ')
    client.node.stop()
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]) == (503, "closing")
    connection.close()
    assert "Traceback" not in caplog.text


def test_200_held_polls(start: Callable[..., Client]) -> None:
    """200 polls held at once on 200 groups of 20 queues: every one gets its message, and none is answered twice or late."""
    client = start()
    names = [f"held{n}" for n in range(20)]
    for name in names:
        client.queue(name)
    connections = []
    assert client.get("/health", {}).status == 200
    for n in range(200):
        connection = client.connection()
        connection.request("GET", client.path(names[n % 20]) + f"?hold=60&group=g{n}", None, basic())
        connections.append(connection)
    wait_until(lambda: client.node.pulls.figures()["waiting"] == 200, timeout=60, what="all polls are held")
    for n in range(200):
        client.node.broker.vhosts["/"].queue(names[n % 20]).core.publish(b"", b"", HEADER, b"%d" % n, 0, 0)
    bodies = set()
    for connection in connections:
        response = connection.getresponse()
        assert response.status == 200
        [message] = json.loads(response.read())["messages"]
        bodies.add(message["body"])
        connection.close()
    assert bodies == {str(n) for n in range(200)}
    assert client.node.actors.gauges()["wakes_lost_total"] == 0


HEADER = bytes.fromhex("003c0000000000000000000100 00".replace(" ", ""))


def test_the_ready_line_tells_the_port() -> None:
    """`flintmq serve --http-port 0`: the port in the ready line works, and SIGTERM ends the broker with 0 while a poll is held."""
    with ChildBroker("--http-port", "0") as broker:
        port = broker.ready["http_port"]
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-FlintMQ-Request: 1\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
        held = socket.create_connection(("127.0.0.1", port), timeout=30)
        pika = pytest.importorskip("pika")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        connection.channel().queue_declare("q")
        connection.close()
        path = "/api/v1/queues/%2F/q/messages?hold=60"
        held.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-FlintMQ-Request: 1\r\nAuthorization: {basic()['Authorization']}\r\n\r\n".encode()
        )
    # Leaving the context asked for exit code 0 within its time. Held already or not: the poll is answered, or its connection closed (reset
    # when nobody had read the request).
    with held, contextlib.suppress(ConnectionResetError):
        assert held.recv(12) in (b"HTTP/1.1 503", b"")


def test_peers_do_not_fill_the_log(shared: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Refused requests and broken HTTP are answers, not log lines."""
    with caplog.at_level(logging.INFO):
        shared.get("/nowhere")
        shared.get(shared.path("nowhere"), {})
        with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as sock:
            sock.sendall(b"\x00\x00\r\n\r\n")
            sock.recv(1000)
    assert caplog.records == []
