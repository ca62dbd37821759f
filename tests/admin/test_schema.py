"""Bodies and parameters of odd types: each operation answers them with a status of its own, never with 500; and the checks themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.admin import api
from flintmq.admin.arguments import _finite, _in_pieces
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.operations import PREFIX
from flintmq.admin.schema import check
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client, basic

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    10**400,
    "",
    "x",
    "\x00",
    chr(0xDC80),
    "é" * 300,
    [],
    ["a", 1, None, {}],
    {},
    {"a": {"b": [1]}},
    {"": ""},
    [[[[[[[[[[]]]]]]]]]],
]
ODD_TEXTS = ["", "x", "-1", "1e999", "9" * 400, "[]", "null", "%00", "%ff", "true", "0.0.0", "%ED%B2%80", "é"]
NAMES = {"vhost": "%2F", "queue": "q", "exchange": "amq.topic", "destination": "q", "kind": "q", "end": "source", "user": "eve"}
API = [(one.method, one.path.removeprefix("/api/")) for one in api.operations()]
BODIES = {(one.method, one.path.removeprefix("/api/")): one.body for one in api.operations() if one.body is not None}
LONG = re.compile("/(events|logs)$")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Broker(http_port=0, limits={"housekeeping_ms": 20, "parameters_max": 10_000}) as broker:
        yield Client(broker)


def operations(client: Client) -> list[tuple[str, str, Any]]:
    """(method, path, description) of those of /api/v1, as they describe themselves."""
    document = client.get(f"{PREFIX}/openapi.json").json
    return [(method.upper(), path, one) for path, methods in document["paths"].items() for method, one in methods.items()]


def path_of(path: str, odd: str | None = None) -> str:
    """The path with names that are there, or with an odd one in each place."""
    return re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "name") if odd is None else odd, path)


def ask(client: Client, method: str, path: str, body: Any = ..., raw: bytes | None = None) -> int:
    client.queue("q")  # some operations delete it
    text = raw if raw is not None else None if body is ... else json.dumps(body).encode()
    answer = client.request(method, path, text)
    assert answer.status != 500, f"{method} {path} {str(body)[:200]}: {answer.raw!r}"
    if answer.status == 400:
        assert answer.json["reason"], path
    return answer.status


def bodies(schema: Any) -> Iterator[Any]:
    """Bodies of odd types, and odd members in bodies that are right otherwise."""
    yield from ODD
    members = schema.get("properties", {})
    for name, one in members.items():
        for odd in ODD:
            yield {name: odd}
            yield {**{other: good(value) for other, value in members.items()}, name: odd}
            inner = one.get("items", {}).get("properties", {})
            for item in inner:
                yield {name: [{**dict.fromkeys(inner, "q"), item: odd}]}


def good(schema: Any) -> Any:
    types = schema.get("type", "string")
    kind = types if isinstance(types, str) else types[0]
    if "enum" in schema:
        return schema["enum"][0]
    if "oneOf" in schema:
        return good(schema["oneOf"][0])
    low = schema.get("minimum", 1)
    return {"string": "q", "integer": low, "number": low, "boolean": True, "object": {}, "array": [], "null": None}[kind]


def test_each_body_of_rabbitmqs_api_has_a_schema() -> None:
    """An operation whose handler reads a body stands in the table: a new one can't leave it out, as Call.json refuses to read without."""
    assert {(method, path) for method, path in API if method == "PUT"} - set(BODIES) == {
        ("PUT", "queues/{vhost}/{queue}/pause"),
        ("PUT", "queues/{vhost}/{queue}/resume"),
    }


@pytest.mark.parametrize(("method", "path"), sorted(BODIES))
def test_odd_bodies_of_rabbitmqs_api(client: Client, method: str, path: str) -> None:
    for body in bodies(BODIES[method, path]):
        ask(client, method, f"/api/{path_of(path)}", body)
    ask(client, method, f"/api/{path_of(path)}", raw=b"{")
    ask(client, method, f"/api/{path_of(path)}", raw=b'{"a":' * 20_000)


@pytest.mark.parametrize(("method", "path"), sorted(set(API)))
def test_odd_names_and_parameters_of_rabbitmqs_api(client: Client, method: str, path: str) -> None:
    if (method, path) == ("DELETE", "users/{user}") or path.startswith("connections"):
        return
    for odd in ODD_TEXTS:
        ask(client, method, "/api/" + path_of(path, quote(odd, safe="%") or "%00"), {} if method in ("PUT", "POST") else ...)
    if method == "GET":
        for name in (
            "page",
            "page_size",
            "name",
            "use_regex",
            "sort",
            "sort_reverse",
            "columns",
            "disable_stats",
            "if-unused",
            "lengths_age",
        ):
            for odd in ODD_TEXTS:
                ask(client, method, f"/api/{path_of(path)}?page=1&{name}={quote(odd, safe='%')}")


def test_odd_bodies_and_parameters_of_v1(client: Client) -> None:
    for method, path, one in operations(client):
        schema = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        where = path_of(path)
        for body in bodies(schema) if schema is not None else ():
            ask(client, method, where, body)
        for parameter in one["parameters"]:
            for odd in ODD_TEXTS:
                if parameter["in"] == "query":
                    query = f"?{parameter['name']}={quote(odd, safe='%')}"
                    if (LONG.search(path) and odd in ("", "x")) or not LONG.search(path):
                        ask(client, method, where + query)
                elif parameter["in"] == "path":
                    other = path.replace("{" + parameter["name"] + "}", quote(odd, safe="%") or "%00")
                    if not LONG.search(path):
                        ask(client, method, path_of(other), {} if method in ("PUT", "POST") else ...)


def test_odd_headers(client: Client) -> None:
    """Properties of a message that is published as it is, and what an event stream goes on from."""
    for odd in ("", "null", "[]", "{", '{"headers": 1}', '{"priority": 1e400}', '{"priority": {}}', '{"expiration": []}', "9" * 5_000):
        headers = {**basic(), "Content-Type": "application/octet-stream", "X-FlintMQ-Properties": odd}
        client.queue("q")
        assert client.request("POST", client.path(), b"x", headers).status in (201, 400)


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        ([], {"type": "string"}, "the body must be a text, not a list of 0"),
        (True, {"type": "integer"}, "the body must be a whole number, not True"),
        (1.0, {"type": "integer"}, "a whole number"),
        (7, {"type": "integer", "minimum": 1, "maximum": 5}, "a whole number from 1 to 5, not 7"),
        (10**60, {"type": "integer", "minimum": 1, "maximum": 5}, "a very large number"),
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "string"}}}, "'a' must be a text, not 1"),
        ({}, {"type": "object", "required": ["a"]}, "'a' is missing in the body"),
        ({"b": 1}, {"type": "object", "properties": {}, "additionalProperties": False}, "unknown member 'b'"),
        ([1, "x"], {"type": "array", "items": {"type": "integer"}}, "an item of the body must be a whole number"),
        ([1], {"type": "array", "minItems": 2, "maxItems": 3}, "a list of 2 to 3 items"),
        (None, {"type": "string"}, "a text, not None"),
        ("x", {"type": "string", "enum": ["a", "b"]}, "one of a, b"),
        ([], {"oneOf": [{"type": "string"}, {"type": "integer"}]}, "a text or a whole number"),
    ],
)
def test_what_is_refused_names_its_place(value: Any, schema: Any, reason: str) -> None:
    with pytest.raises(HttpError) as refused:
        check(value, schema)
    assert refused.value.status == 400 and reason in refused.value.reason


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (None, {"type": ["string", "null"]}),
        ("5", {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "[0-9]+"}]}),
        ({"x": []}, {"type": "object", "properties": {"a": {"type": "string"}}}),
        ([], {}),
    ],
)
def test_what_passes(value: Any, schema: Any) -> None:
    check(value, schema)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), TREES, max_size=6) | TREES, st.sampled_from([None, 1]))
def test_what_is_read_in_pieces_is_what_was_written(value: Any, indent: int | None) -> None:
    assert _in_pieces(json.dumps(value, indent=indent)) == value


@given(st.text(alphabet='{}[]",:1 aNt\\', max_size=12))
def test_what_is_no_json_is_none_in_pieces_either(text: str) -> None:
    def outcome(read: Any) -> Any:
        try:
            return read(text)
        except ValueError:
            return ValueError

    assert outcome(_in_pieces) == outcome(lambda one: json.loads(one, parse_constant=_finite))
