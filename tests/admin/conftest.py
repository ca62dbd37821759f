"""Brokers with HTTP on a free port, and a client of the standard library."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from flintmq.testing.broker import Broker


def basic(user: str = "guest", password: str = "guest") -> dict[str, str]:
    """Headers of a program's request: who asks, and that no page does."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(), "X-FlintMQ-Request": "1"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Client:
    """One connection for each request; `get(path)`, `post(path, value)`; user guest unless told."""

    def __init__(self, broker: Broker, context: ssl.SSLContext | None = None) -> None:
        self.broker = broker
        self.node = broker.node
        self.port = broker.node.http_port
        self.context = context

    def connection(self, timeout: float = 60) -> http.client.HTTPConnection:
        assert self.port is not None
        if self.context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Headers: of the user guest unless told; what keeps pages of other sites out is added, unless they say otherwise."""
        connection = self.connection()
        kind = {"X-FlintMQ-Request": "1"} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, body, {**kind, **(basic() if headers is None else headers)})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, value: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.request("POST", path, json.dumps(value).encode(), headers)

    # --- the queue's own paths
    def queue(self, name: str = "q", **arguments: Any) -> Any:
        """Declares a queue; what the control plane has of it."""
        return self.node.broker.vhosts["/"].run(
            self.node.broker.vhosts["/"].declare_queue(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})
        )

    @staticmethod
    def path(name: str = "q", verb: str = "") -> str:
        return f"/api/v1/queues/%2F/{quote(name, safe='')}/messages{verb}"

    def publish(self, *bodies: str, name: str = "q") -> None:
        for body in bodies:
            octets = {**basic(), "Content-Type": "application/octet-stream"}
            assert self.request("POST", self.path(name), body.encode(), octets).status == 201

    def pull(self, query: str = "", name: str = "q") -> list[dict[str, Any]]:
        answer = self.get(self.path(name) + query)
        assert answer.status == 200, answer.raw
        messages: list[dict[str, Any]] = answer.json["messages"]
        return messages


@pytest.fixture
def start() -> Iterator[Callable[..., Client]]:
    """`start(limits={...}, ...)`: a client of a broker that stops after the test."""
    with ExitStack() as stack:

        def make(limits: dict[str, Any] | None = None, **options: Any) -> Client:
            if "queue_hot_bytes" in (limits or {}):
                options.setdefault("content_memory", 0)  # the window is what the test is about
            return Client(stack.enter_context(Broker(limits={"housekeeping_ms": 20, **(limits or {})}, http_port=0, **options)))

        yield make


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    """A broker of this module."""
    with Broker(limits={"housekeeping_ms": 20}, http_port=0) as broker:
        yield Client(broker)


_names = iter(range(1_000_000))


@pytest.fixture
def name() -> str:
    """A queue name that no other test of the module uses."""
    return f"q{next(_names)}"
