"""What others wait while one client asks the HTTP service for the largest objects that it may have (rows of bench.others).

in: FlintMQ with HTTP (RabbitMQ has no row here). out: rows for the table of bench.others. The objects are made over AMQP before the clock;
then connections of one user ask for them again and again and read the whole answer.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.rawamqp import RawChannel

HOST = "127.0.0.1"
MIB = 1024 * 1024
# connections that ask at the same time
CLIENTS = 2
# bytes of arguments of a queue or a consumer; of headers of a message
ARGUMENTS = 100_000
# of a binding: Limits.binding_arguments_bytes_max
BOUND = 30_000
_HEADERS = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "X-FlintMQ-Request": "1"}


@dataclass(frozen=True, slots=True)
class HttpRow:
    """setup: makes the objects; ask: method, path and body of the request."""

    title: str
    setup: Callable[[RawChannel], None]
    method: str
    path: str
    body: dict[str, object] | None = None


def _large(count: int, size: int, **properties: object) -> Callable[[RawChannel], None]:
    def setup(channel: RawChannel) -> None:
        channel.queue("others-http")
        for _ in range(count):
            channel.publish(b"\x01" * size, routing_key="others-http", **properties)
        while channel.ready("others-http") < count:
            time.sleep(0.05)

    return setup


def _queues(channel: RawChannel) -> None:
    for number in range(500):
        channel.queue(f"others-http-{number}", arguments={"x-note": "\u00fc" * (ARGUMENTS // 2)})


def _consumers(channel: RawChannel) -> None:
    channel.queue("others-http")
    for number in range(1_000):
        channel.call("basic.consume", queue="others-http", consumer_tag=f"c{number}", arguments={"x-note": "n" * ARGUMENTS})


def _bindings(channel: RawChannel) -> None:
    channel.queue("others-http")
    channel.call("exchange.declare", exchange="others-http", type="headers")
    for number in range(500):
        channel.call("queue.bind", queue="others-http", exchange="others-http", arguments={"n": number, "x-note": "n" * BOUND})


def _many(channel: RawChannel) -> None:
    for number in range(5_000):
        channel.queue(f"others-http-{number}")


_GET = {"count": 50_000, "ackmode": "ack_requeue_true", "encoding": "auto"}
_OF = "%2F/others-http"
ROWS = {
    "http-health": HttpRow("/health, beside the others", lambda channel: None, "GET", "/health"),
    "http-get-body": HttpRow("get: one body of 100 MiB", _large(1, 100 * MIB), "POST", f"/api/queues/{_OF}/get", _GET),
    "http-pull-body": HttpRow(
        "pull: one body of 100 MiB", _large(1, 100 * MIB), "GET", f"/api/v1/queues/{_OF}/messages?visibility=1&hold=1"
    ),
    "http-peek-body": HttpRow("peek: one body of 100 MiB", _large(1, 100 * MIB), "GET", f"/api/v1/queues/{_OF}/peek?body_bytes=1048576"),
    "http-search-body": HttpRow(
        "search in a body of 100 MiB",
        _large(1, 100 * MIB),
        "POST",
        f"/api/v1/queues/{_OF}/search",
        {"filter": [{"in": "body", "op": "contains", "value": "no"}]},
    ),
    "http-get-headers": HttpRow(
        "get: 1,000 headers of 100 kB", _large(1_000, 0, headers={"h": "h" * ARGUMENTS}), "POST", f"/api/queues/{_OF}/get", _GET
    ),
    "http-get-many": HttpRow("get: 50,000 of 16 bytes", _large(50_000, 16), "POST", f"/api/queues/{_OF}/get", _GET),
    "http-queues": HttpRow("a page of 500 queues of 100 kB", _queues, "GET", "/api/queues?page=1&page_size=500"),
    "http-queues-all": HttpRow("a list of 500 queues of 100 kB", _queues, "GET", "/api/queues"),
    "http-definitions": HttpRow("definitions: 500 queues of 100 kB", _queues, "GET", "/api/definitions"),
    "http-queue": HttpRow("a queue: 1,000 consumers of 100 kB", _consumers, "GET", f"/api/queues/{_OF}"),
    "http-consumers": HttpRow("1,000 consumers of 100 kB", _consumers, "GET", "/api/consumers"),
    "http-bindings": HttpRow("500 bindings of 30 kB", _bindings, "GET", "/api/bindings"),
    "http-many": HttpRow("a list of 5,000 queues", _many, "GET", "/api/queues"),
}


@contextlib.contextmanager
def asking(row: HttpRow, port: int) -> Iterator[list[int]]:
    """Asks from CLIENTS threads until the block ends; bytes of all answers, in one cell."""
    stop, size = threading.Event(), [0]

    def ask() -> None:
        while not stop.is_set():
            connection = http.client.HTTPConnection(HOST, port, timeout=120)
            headers = _HEADERS if row.body is None else _HEADERS | {"Content-Type": "application/json"}
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request(row.method, row.path, None if row.body is None else json.dumps(row.body), headers)
                response = connection.getresponse()
                while not stop.is_set() and (piece := response.read(MIB)):
                    size[0] += len(piece)
            connection.close()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield size
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
