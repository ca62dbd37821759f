"""The thread that sends spans: what a collector gets, and what a slow, absent or unwilling one costs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.broker.spans import INTERNAL, Span, Spans
from flintmq.config import Limits
from flintmq.errors import OperatorError
from flintmq.otel import otlp
from flintmq.otel.exporter import HEADERS, SERVICE, Exporter, read_endpoint, read_headers
from tests.otel.collector import Collector
from tests.support.broker import wait_until

LIMITS = Limits().replace(spans_pause_ms=5, spans_retry_ms_max=1, spans_batch=3, spans_tries=3, spans_max=100, spans_stop_ms=60_000)
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def a_span(number: int) -> Span:
    facts = {"text": "ä", "number": number, "flag": True, "list": ["a", "b"]}
    return Span(TRACE, f"{number:016x}", PARENT, "other=1", f"span {number}", INTERNAL, 1_000_000, 1_000_000 + number, facts)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr("flintmq.otel.exporter._PAUSE_MS", 1)
    running: list[Exporter] = []

    def make(url: str, count: int, environment: dict[str, str] | None = None, limits: Limits = LIMITS) -> tuple[Spans, Exporter]:
        spans = Spans(limits)
        for number in range(1, count + 1):
            spans._add("/", a_span(number))
        exporter = Exporter(spans, url, "node", "1.2", limits, environment or {})
        running.append(exporter)
        exporter.start()
        return spans, exporter

    yield make
    for exporter in running:
        exporter.stop()
        exporter._thread.join(60)
        assert not exporter._thread.is_alive()


Make = Callable[..., tuple[Spans, Exporter]]


def test_all_spans_come_once_in_order_and_in_batches(made: Make) -> None:
    environment = {HEADERS: "Authorization=Bearer%20abc, x-tenant = 7", SERVICE: "shop"}
    with Collector() as collector:
        _, exporter = made(collector.url, 7, environment)
        found = collector.wait_spans(7)
        exporter.stop()
        assert [int(one["spanId"], 16) for one in found] == list(range(1, 8))
        assert max(len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) for _, _, body in collector.requests) == 3
        path, headers, body = collector.requests[0]
        assert path == "/v1/traces" and headers["content-type"] == "application/json"
        assert headers["authorization"] == "Bearer abc" and headers["x-tenant"] == "7"
        resource = {one["key"]: one["value"]["stringValue"] for one in body["resourceSpans"][0]["resource"]["attributes"]}
        assert resource == {"service.name": "shop", "service.instance.id": "node", "service.version": "1.2"}
        assert exporter.sent == 7 and exporter.failures == 0


def test_a_span_as_otlp_writes_it() -> None:
    import json

    (row,) = json.loads(otlp.request([a_span(5)], {}, "1"))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert row == {
        "traceId": TRACE,
        "spanId": "0000000000000005",
        "parentSpanId": PARENT,
        "traceState": "other=1",
        "name": "span 5",
        "kind": 1,
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "1000005000",
        "attributes": [
            {"key": "text", "value": {"stringValue": "ä"}},
            {"key": "number", "value": {"intValue": "5"}},
            {"key": "flag", "value": {"boolValue": True}},
            {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}},
        ],
    }


def test_what_may_be_tried_again_is(made: Make) -> None:
    with Collector((503, 429)) as collector:
        spans, exporter = made(collector.url, 2)
        collector.wait_requests(3)
        exporter.stop()
        assert len(collector.requests) == 3 and exporter.sent == 2 and spans.dropped == 0


@pytest.mark.parametrize("status", [400, 401, 301, 307, 500])
def test_what_is_refused_is_lost_and_the_next_batch_goes_on(made: Make, status: int) -> None:
    with Collector((status,)) as collector:
        spans, exporter = made(collector.url, 5)
        collector.wait_requests(2)
        exporter.stop()
        assert [path for path, _, _ in collector.requests] == ["/v1/traces"] * 2
        assert (exporter.sent, spans.dropped) == (2, 3)


def test_a_collector_that_is_away_loses_spans_and_nobody_waits(made: Make, caplog: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with caplog.at_level(logging.WARNING, "flintmq.otel"):
            spans, exporter = made(f"http://127.0.0.1:{port}", 9, {HEADERS: "authorization=geheim"})
            wait_until(lambda: spans.dropped == 9, 60, 0.005, "all are lost")
            assert exporter.sent == 0 and exporter.failures == 9
    assert len([one for one in caplog.records if one.name == "flintmq.otel"]) == 1 and "geheim" not in caplog.text


def test_a_slow_collector_fills_the_buffer_which_drops(made: Make) -> None:
    with Collector(hold=True) as collector:
        spans, _ = made(collector.url, 3)
        collector.wait_requests(1)
        for number in range(1_000):
            spans._add("/", a_span(number + 4))
        assert spans.waiting() <= LIMITS.spans_max and spans.dropped == 1_000 - spans.waiting()
        collector.go.set()


def test_a_connection_that_was_closed_meanwhile_costs_nothing(made: Make) -> None:
    with Collector() as collector:
        spans, exporter = made(collector.url, 1)
        collector.wait_spans(1)
        wait_until(lambda: exporter.sent == 1, 60, 0.005, "the answer came")
        assert exporter._connection is not None and exporter._connection.sock is not None
        exporter._connection.sock.shutdown(socket.SHUT_RDWR)
        spans._add("/", a_span(2))
        collector.wait_spans(2)
        exporter.stop()
        assert exporter.failures == 0 and exporter.sent == 2


def test_what_waits_at_the_end_is_sent(made: Make) -> None:
    with Collector() as collector:
        _, exporter = made(collector.url, 2, limits=LIMITS.replace(spans_pause_ms=3_600_000))
        exporter.stop()
        assert len(collector.spans()) == 2


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://127.0.0.1:4318", "/v1/traces"),
        ("http://collector/", "/v1/traces"),
        ("https://host/otlp", "/otlp/v1/traces"),
        ("https://host/v1/traces", "/v1/traces"),
    ],
)
def test_endpoints(url: str, path: str) -> None:
    assert read_endpoint(url).path == path


@pytest.mark.parametrize(
    "url", ["", "collector:4318", "grpc://h", "http://", "http://h:0", "http://h:99999", "http://u:p@h", "http://h/?k=v", "http://h/#f"]
)
def test_endpoints_that_are_refused(url: str) -> None:
    with pytest.raises(OperatorError) as refused:
        read_endpoint(url)
    assert "u:p" not in str(refused.value)


@pytest.mark.parametrize("text", ["a", "a b=c", "=v", "a=%0d%0ab", "a=%c3%a4"])
def test_headers_that_are_refused(text: str) -> None:
    with pytest.raises(OperatorError):
        read_headers(text)
