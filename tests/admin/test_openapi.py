"""The OpenAPI document says what is served, and what is served answers as it says, whatever is sent."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.admin.app import Application
from flintmq.admin.router import Router
from tests.admin.conftest import Client, basic

STREAMS = ("/api/v1/events", "/api/v1/logs")


@pytest.fixture(scope="module")
def served(shared: Client) -> dict[str, Any]:
    shared.queue("q")
    answer = shared.get("/api/v1/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


def test_the_table_is_what_is_served(shared: Client, served: dict[str, Any]) -> None:
    assert served["openapi"] == "3.1.0"
    app = Application(shared.node.http._parts)  # type: ignore[union-attr]
    told = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert told == {(one.method, one.path) for one in app.operations if one.is_own}
    router = Router(app, app.operations)
    assert all(router.find(path)[0][method].path == path for method, path in told)
    names = [one["operationId"] for methods in served["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method.upper(), path, one) for path, methods in document["paths"].items() for method, one in methods.items()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, more or less, and some that it does not."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "oneOf" in schema:
        return st.one_of(*map(of_schema, schema["oneOf"]))
    kinds = {
        "string": st.text(max_size=12) | st.just("q") | st.just("/"),
        "integer": st.integers(schema.get("minimum", -5) - 1, min(schema.get("maximum", 5) + 1, 2**70)),
        "number": st.floats() | st.integers(-2, 9),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of(*(kinds[one] for one in kind))
    if kind == "array":
        return st.lists(of_schema(schema["items"]), max_size=3)
    if kind == "object":
        known = {name: of_schema(one) for name, one in schema.get("properties", {}).items()}
        return st.fixed_dictionaries({}, optional=known) if known else st.dictionaries(st.text(max_size=6), JSON, max_size=3)
    return kinds.get(kind, JSON)  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_call_is_answered_as_the_document_says(shared: Client, served: dict[str, Any], data: st.DataObject) -> None:
    chosen = [one for one in operations(served) if one[1] not in STREAMS]
    method, path, one = data.draw(st.sampled_from(chosen))
    query = []
    for parameter in one["parameters"]:
        if parameter["in"] == "query" and data.draw(st.booleans()):
            value = data.draw(of_schema(parameter["schema"]) if parameter["name"] != "hold" else st.just(0))
            text = value if isinstance(value, str) else json.dumps(value)
            query.append(f"{parameter['name']}={quote(text.encode('utf-8', 'surrogatepass'), safe='')}")
    segments = st.sampled_from(["/", "q", "%", "..", "no", "a/b", "\x00", "é"])
    url = re.sub(
        r"\{(\w+)\}", lambda match: quote("/" if match[1] == "vhost" and data.draw(st.booleans()) else data.draw(segments), safe=""), path
    )
    body = None
    if "requestBody" in one:
        schema = one["requestBody"]["content"]["application/json"]["schema"]
        body = json.dumps(data.draw(of_schema(schema) | JSON)).encode()
    answer = shared.request(method, url + ("?" + "&".join(query) if query else ""), body, basic())
    assert str(answer.status) in one["responses"], (method, url, query, body, answer)
    assert answer.status != 500, (method, url, query, body, answer)
    assert answer.headers["content-type"].startswith("application/json")
    if answer.status >= 400:
        assert {"error", "reason", "fix"} <= answer.json.keys() and answer.json["reason"]
