"""Event streams: who gets what, what a slow client loses, and that nobody waits for one."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pika

from flintmq.admin.events import Listener
from flintmq.admin.samples import Ring, Series
from flintmq.core.shares import Holding, Pool, Who
from flintmq.loglines import LineLogger
from tests.admin.api import Api
from tests.admin.conftest import Client, basic


class Stream:
    """Reads one stream; `until(kind)` is the data of the next event of that kind."""

    def __init__(self, client: Client, path: str = "/api/v1/events", user: str = "guest") -> None:
        self.connection: HTTPConnection = client.connection(10)
        self.connection.request("GET", path, headers=basic(user, user))
        self.response: HTTPResponse = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        assert self.response.getheader("content-type", "").startswith("text/event-stream")
        assert self.response.readline() == b"retry: 2000\n"  # from here on it listens

    def until(self, kind: str) -> Any:
        while True:
            line = self.response.readline()
            assert line, "the stream ended"
            if line == f"event: {kind}\n".encode():
                return json.loads(self.response.readline().removeprefix(b"data: "))

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def test_what_comes_and_goes_is_told(shared: Client, name: str) -> None:
    stream = Stream(shared)
    shared.queue(name)
    found = stream.until("event")
    assert (found["kind"], found["queue"], found["vhost"]) == ("queue.created", name, "/")
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    assert stream.until("event")["kind"] == "connection.opened"
    connection.channel().basic_consume(name, lambda *_: None)
    assert stream.until("event")["kind"] == "consumer.came"
    connection.close()
    kinds = {stream.until("event")["kind"] for _ in range(2)}
    assert kinds == {"consumer.gone", "connection.closed"}
    stream.close()


def test_an_overview_comes_each_second(shared: Client) -> None:
    stream = Stream(shared, "/api/v1/events?topics=overview")
    first, second = stream.until("overview"), stream.until("overview")
    assert 0 < second["at_ms"] - first["at_ms"] < 5_000 and first["healthy"]
    stream.close()


def test_a_tenant_is_told_of_its_virtual_hosts_alone(shared: Client) -> None:
    api = Api(shared)
    for vhost in ("seen", "hidden"):
        api.put(f"vhosts/{vhost}")
    api.user("tenant", "management", "seen")
    stream = Stream(shared, "/api/v1/events?topics=events,overview", "tenant")
    shared.node.broker.vhosts["hidden"].run(shared.node.broker.vhosts["hidden"].declare_queue("secret"))
    shared.node.broker.vhosts["seen"].run(shared.node.broker.vhosts["seen"].declare_queue("told"))
    assert stream.until("event")["queue"] == "told"
    stream.close()


def test_a_stream_ends_with_its_user(start: Callable[..., Client]) -> None:
    client = start(limits={"sse_look_ms": 20})
    api = Api(client)
    api.user("gone", "monitoring")
    stream = Stream(client, "/api/v1/logs", "gone")
    api.delete("users/gone")
    stream.until("end")
    assert stream.response.read().strip() == b""
    stream.close()


def test_log_lines_are_told_and_the_log_is_left_as_it_was(start: Callable[..., Client]) -> None:
    client = start(limits={"sse_look_ms": 20})
    before, handlers = LineLogger.sink, list(logging.getLogger().handlers)
    lines: list[str] = []
    LineLogger.sink = lambda name, text: lines.append(text)
    try:
        stream = Stream(client, "/api/v1/logs")
        logging.getLogger("flintmq.test").warning("a line\nof two")
        assert stream.until("log")["line"].endswith("flintmq.test: a line\\nof two")
        LineLogger("flintmq.short").info("the short way")
        assert stream.until("log")["line"].endswith("[INFO] flintmq.short: the short way") and lines[-1] == "the short way"
        stream.close()
        deadline = time.monotonic() + 10
        while logging.getLogger().handlers != handlers and time.monotonic() < deadline:
            logging.getLogger("flintmq.test").warning("a client that left is seen when something is sent to it")
            time.sleep(0.02)
        assert logging.getLogger().handlers == handlers
    finally:
        LineLogger.sink = before


def test_one_more_stream_than_the_limit_is_refused(start: Callable[..., Client]) -> None:
    client = start(limits={"sse_clients_max": 1})
    stream = Stream(client)
    answer = client.get("/api/v1/events")
    assert answer.status == 503 and answer.json["error"] == "busy"
    stream.close()


def test_a_stop_does_not_wait_for_streams(start: Callable[..., Client]) -> None:
    client = start(limits={"http_stop_ms": 3_600_000})
    streams = [Stream(client) for _ in range(3)]
    client.node.stop()  # a stop that waited would take an hour
    for stream in streams:
        stream.close()


def test_a_slow_listener_loses_the_oldest_and_is_told() -> None:
    async def run() -> None:
        listener = Listener("u", frozenset(["events"]), lambda vhost: True, lambda: True, 3, Holding(Pool(1, 1, 1), Who("u", "1"), 0))
        for number in range(10):
            listener.put(b"%d " % number)
        assert listener.take() == b'event: lost\ndata: {"count": 7}\n\n7 8 9 '
        listener.put(b"x")
        assert listener.take() == b"x" and listener.lost_all == 7

    asyncio.run(run())


def test_what_is_dropped_on_its_way_is_told_too(start: Callable[..., Client]) -> None:
    """A storm of one tenant's events pushed out those of others, and lines of the log, and nobody was told."""
    client = start(limits={"sse_waiting_max": 8})
    stream = Stream(client)
    hub, held = client.node.broker.events.hub, threading.Event()
    hub._loop.call_soon_threadsafe(held.wait)
    for number in range(100):
        hub.event("queue.created", "/", {"queue": str(number)})
    held.set()
    assert stream.until("lost")["count"] >= 100 - 4 * 8
    stream.close()


# --- samples ------------------------------------------------------------------------------------------------------------------


def test_a_ring_keeps_the_last_samples_at_its_distance() -> None:
    ring = Ring(10, 4, 2)
    for now in range(100, 175):
        ring.add(now, (now, -now))
    assert ring.columns(10) == [[140, 150, 160, 170], [-140, -150, -160, -170]] and ring.last_s == 170
    assert ring.columns(2) == [[160, 170], [-160, -170]]


def test_a_ring_fills_what_was_missed() -> None:
    ring = Ring(1, 10, 1)
    for now in (5, 6, 9, 9, 8):
        ring.add(now, (now,))
    assert ring.columns(10) == [[5, 6, 6, 6, 9]]
    ring.add(10**9, (7,))  # the clock was set, or the machine slept: no more work than the ring is long
    assert ring.columns(10) == [[9] * 9 + [7]]


def test_the_ring_that_reaches_far_enough_is_asked() -> None:
    series = Series(("a",), ((1, 10), (5, 10)))
    for now in range(100):
        series.add(now, (now,))
    assert series.of(5)["every_s"] == 1 and series.of(5)["samples"]["a"] == [95, 96, 97, 98, 99]
    assert series.of(30)["every_s"] == 5 and series.of(10_000)["samples"]["a"] == list(range(50, 100, 5))


def test_queues_that_nothing_happens_to_make_room(start: Callable[..., Client]) -> None:
    client = start(limits={"samples_queues_max": 2})
    client.get("/api/v1/overview")
    assert client.node.http is not None
    for number in range(4):
        client.queue(f"q{number}")
        client.publish("x", name=f"q{number}")
    deadline = time.monotonic() + 20
    found: list[str] = []
    while len(found) < 2 and time.monotonic() < deadline:
        answers = {f"q{number}": client.get(f"/api/v1/queues/%2F/q{number}/samples").json["samples"] for number in range(4)}
        found = [name for name, samples in answers.items() if samples]
        time.sleep(0.1)
    assert len(found) == 2
