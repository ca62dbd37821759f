"""Conditions of a search for messages: on routing key, exchange, properties, headers, the body as text and as JSON.

in: conditions of a client's JSON; messages as they lie in a queue. out: whether a message meets all of them.

F1  No pattern of a client is run: texts are compared, looked for, or compared at their beginning. A condition costs O(bytes) of a message;
    a body is looked at in pieces, so that 128 MiB keep nobody from the interpreter.
F2  A body is read as JSON at most once, and only up to Limits.search_json_bytes_max; what is no JSON meets no condition on JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from flintmq.admin.http_refusals import bad
from flintmq.admin.messages import plain
from flintmq.arguments import is_number
from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import decode_properties

PLACES = ("routing_key", "exchange", "header", "property", "body", "json")
OPERATIONS = ("eq", "ne", "contains", "prefix", "exists", "gt", "lt")
CONDITIONS_MAX = 16
_PATH_MAX, _STEPS_MAX = 512, 32
# characters of the value of a condition
VALUE_MAX = 4096
_ABSENT = object()
# members of a condition, and what they are when they are left out
_MEMBERS: tuple[tuple[str, Any], ...] = (("in", ""), ("op", "eq"), ("name", ""), ("path", "$"), ("value", None))

# bytes of a body that are looked at in one piece
_PIECE = 64 * 1024


class Readable(Protocol):
    """core.content_view.ContentView"""

    exchange: bytes
    routing_key: bytes
    header: bytes

    @property
    def body_bytes(self) -> int: ...
    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes: ...


class Condition(NamedTuple):
    """place: of PLACES; name: of the header or property; path: in the JSON; operation: of OPERATIONS; value."""

    place: str
    name: str
    path: tuple[str | int, ...]
    operation: str
    value: Any


def parse_path(text: str) -> tuple[str | int, ...]:
    """`$.a.b[0]["c d"]`, the `$` may be left out. Raises: HttpError 400."""
    steps: list[str | int] = []
    rest = text[1:] if text.startswith("$") else text
    if len(text) > _PATH_MAX:
        raise bad(f"a JSON path has at most {_PATH_MAX} characters")
    while rest:
        if rest[0] == "[":
            inner, closing, rest = rest[1:].partition("]")
            if not closing:
                raise bad(f"the JSON path {text[:80]!r} has a bracket that is not closed")
            if inner[:1] in "\"'" and len(inner) >= 2 and inner[-1] == inner[0]:
                steps.append(inner[1:-1])
            elif inner.isascii() and inner.isdigit() and len(inner) <= 9:
                steps.append(int(inner))
            else:
                raise bad(f"the JSON path {text[:80]!r} has neither an index nor a quoted name in brackets", "write $.a[0] or $['a b']")
        else:
            rest = rest.removeprefix(".")
            end = min((index for index in (rest.find("."), rest.find("[")) if index >= 0), default=len(rest))
            if not end:
                raise bad(f"the JSON path {text[:80]!r} has an empty step", "write $.a.b[0]")
            steps.append(rest[:end])
            rest = rest[end:]
    if len(steps) > _STEPS_MAX:
        raise bad(f"a JSON path has at most {_STEPS_MAX} steps")
    return tuple(steps)


def parse_conditions(given: list[dict[str, Any]]) -> list[Condition]:
    """Args: given: as the schema of the operation has it (admin.v1). Raises: HttpError 400 for what a schema can't say."""
    return [_condition(one) for one in given]


def _condition(given: dict[str, Any]) -> Condition:
    place, operation, name, path, value = (given.get(key, default) for key, default in _MEMBERS)
    if (place in ("header", "property")) != bool(name):
        raise bad("'name' is the name of a header or property, of at most 255 characters, and of nothing else")
    if "path" in given and place != "json":
        raise bad("'path' is a text, and is for JSON")
    if isinstance(value, str) and len(value) > VALUE_MAX:
        raise bad(f"'value' must be a text of at most {VALUE_MAX} characters, a number, true, false or null")
    if operation in ("contains", "prefix") and not isinstance(value, str):
        raise bad(f"'{operation}' needs a text as 'value'")
    if operation in ("gt", "lt") and not is_number(value):
        raise bad(f"'{operation}' needs a number as 'value'")
    return Condition(place, name, parse_path(path), operation, value)


class Filter:
    """All of some conditions. Args: conditions; limits. Use by one thread at a time."""

    def __init__(self, conditions: list[Condition], limits: Limits) -> None:
        self._conditions = conditions
        self._limits = limits
        self.long = 0  # bodies that were too long to be read as JSON

    def matches(self, message: Readable) -> bool:
        """O(bytes)."""
        properties: Mapping[str, Any] | None = None
        tree: Any = None
        for one in self._conditions:
            if one.place == "routing_key":
                value: Any = message.routing_key.decode("utf-8", "replace")
            elif one.place == "exchange":
                value = message.exchange.decode("utf-8", "replace")
            elif one.place == "body":
                if not _body_meets(message, one.operation, one.value):
                    return False
                continue
            elif one.place == "json":
                if tree is None:
                    tree = (self._json(message),)
                value = _at(tree[0], one.path)
            else:
                if properties is None:
                    properties = self._properties(message.header)
                table = properties.get("headers", {}) if one.place == "header" else properties
                value = plain(table[one.name]) if one.name in table else _ABSENT
            if not _meets(value, one.operation, one.value):
                return False
        return True

    def _properties(self, header: bytes) -> Mapping[str, Any]:
        try:
            return decode_properties(header, self._limits.table_depth_max, self._limits.table_fields_max)[1]
        except PeerError:
            return {}

    def _json(self, message: Readable) -> Any:
        if message.body_bytes > self._limits.search_json_bytes_max:
            self.long += 1
            return _ABSENT
        try:
            return json.loads(message.body())
        except (ValueError, RecursionError):
            return _ABSENT


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        elif isinstance(value, dict) and str(step) in value:
            value = value[str(step)]
        else:
            return _ABSENT
    return value


def _body_meets(message: Readable, operation: str, wanted: Any) -> bool:
    """A condition on the body as a text: its bytes are compared with those of `wanted`."""
    if operation in ("eq", "ne"):  # no longer than a condition's value can be
        short = message.body_bytes <= 4 * VALUE_MAX
        return (short and _same(message.body().decode("utf-8", "replace"), wanted)) == (operation == "eq")
    if operation not in ("contains", "prefix"):
        return operation == "exists"
    sought = wanted.encode("utf-8", "replace")
    if operation == "prefix":
        return bool(message.body(0, len(sought)) == sought)
    return any(sought in message.body(offset, _PIECE + len(sought)) for offset in range(0, max(message.body_bytes, 1), _PIECE))


def _meets(value: Any, operation: str, wanted: Any) -> bool:
    if operation == "exists":
        return value is not _ABSENT
    if operation == "ne":
        return not _same(value, wanted)
    if value is _ABSENT:
        return False
    if operation == "eq":
        return _same(value, wanted)
    if operation in ("gt", "lt"):
        if not is_number(value):
            return False
        return bool(value > wanted if operation == "gt" else value < wanted)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return wanted in text if operation == "contains" else text.startswith(wanted)


def _same(value: Any, wanted: Any) -> bool:
    """Numbers by value, and a number written as a text is that number: what is typed into a form is a text."""
    if value is _ABSENT or isinstance(value, bool) != isinstance(wanted, bool):
        return str(value).lower() == wanted if isinstance(value, bool) and isinstance(wanted, str) else False
    if isinstance(value, int | float) and isinstance(wanted, str):
        return str(value) == wanted
    return bool(value == wanted)
