"""Spans as a request of OTLP/HTTP in JSON.

in: spans (broker.spans.Span), facts of this broker. out: the bytes of an ExportTraceServiceRequest.

Source: OpenTelemetry Protocol 1.x, "JSON Protobuf Encoding": ids in hexadecimal, 64-bit numbers as text, lowerCamelCase.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_SCOPE = "flintmq"


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}


def _attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in facts.items()]


def _span(span: Any) -> dict[str, Any]:
    value = {
        "traceId": span.trace,
        "spanId": span.span,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_us * 1000),
        "endTimeUnixNano": str(span.end_us * 1000),
        "attributes": _attributes(span.attributes),
    }
    return value | ({"traceState": span.state} if span.state else {})


def request(spans: Iterable[Any], resource: Mapping[str, Any], version: str) -> bytes:
    """One request for all of them. Each span is written by itself: other threads have their turns with the interpreter."""
    head = json.dumps({"attributes": _attributes(resource)}, separators=(",", ":"))
    scope = json.dumps({"name": _SCOPE, "version": version}, separators=(",", ":"))
    rows = ",".join(json.dumps(_span(one), separators=(",", ":")) for one in spans)
    return f'{{"resourceSpans":[{{"resource":{head},"scopeSpans":[{{"scope":{scope},"spans":[{rows}]}}]}}]}}'.encode()
