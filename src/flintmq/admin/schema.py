"""Checks of values against schemas: what a body may be is said in the tables of operations, and nowhere else looked at by type.

in: a JSON value and a schema (the part of JSON Schema that the tables use). out: nothing, or HttpError 400 with the place and what is
wanted.

S1  What passes has the types that its handler takes for granted: a list or an object never comes to a look-up in a table.
S2  `true` is no number, 1.0 is no whole number, and null is only what says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.admin.http_refusals import HttpError, bad
from flintmq.arguments import is_number, is_whole

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": is_whole,
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


def check(value: Any, schema: Schema, place: str = "the body") -> None:
    """Raises: HttpError 400."""
    several = schema.get("oneOf")
    if several is not None:
        if not any(_meets(value, one, place) for one in several):
            raise _wrong(place, " or ".join(dict.fromkeys(_wanted(one) for one in several)), value)
        return
    types = schema.get("type", ())
    types = (types,) if isinstance(types, str) else types
    if types and not any(_TYPES[one](value) for one in types):
        raise _wrong(place, _wanted(schema), value)
    if value is None:
        return
    words = schema.get("enum")
    if words is not None and value not in words:
        raise _wrong(place, f"one of {', '.join(map(str, words))}", value)
    if isinstance(value, str):
        _check_text(value, schema, place)
    elif isinstance(value, dict):
        _check_object(value, schema, place)
    elif isinstance(value, list):
        _check_list(value, schema, place)
    elif not isinstance(value, bool) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise _wrong(place, _wanted(schema), value)


def _meets(value: Any, schema: Schema, place: str) -> bool:
    try:
        check(value, schema, place)
    except HttpError:
        return False
    return True


def _check_text(value: str, schema: Schema, place: str) -> None:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        raise _wrong(place, _wanted(schema), value)
    pattern = schema.get("pattern")
    if pattern is not None and re.fullmatch(pattern, value) is None:  # ours, of digits
        raise _wrong(place, _wanted(schema), value)


def _check_object(value: dict[str, Any], schema: Schema, place: str) -> None:
    members = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise bad(f"'{name}' is missing in {place}")
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in members:
                known = ", ".join(members) or "none"
                raise bad(f"unknown member '{name[:80]}' in {place}", f"known are: {known}")
    for name, one in members.items():
        if name in value:
            check(value[name], one, f"'{name}'")


def _check_list(value: list[Any], schema: Schema, place: str) -> None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        raise _wrong(place, _wanted(schema), value)
    items = schema.get("items")
    if items:
        for one in value:
            check(one, items, f"an item of {place}")


def _wanted(schema: Schema) -> str:
    types = schema.get("type", "string")
    text = " or ".join(_WORDS[one] for one in ((types,) if isinstance(types, str) else types))
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{text} from {low:g} to {high:g}" if isinstance(low, float) or isinstance(high, float) else f"{text} from {low} to {high}"
    if "maxItems" in schema:
        return f"a list of {schema.get('minItems', 0)} to {schema['maxItems']} items"
    if "pattern" in schema:
        return "digits as a text"
    if "maxLength" in schema:
        return f"{text} of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return text


def _wrong(place: str, wanted: str, value: Any) -> HttpError:
    """Args: value: what is shown of it has a bound, and so has the work to show it."""
    if isinstance(value, str):
        shown = repr(value[:40])
    elif isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > 128:
        shown = "a very large number"
    else:
        shown = repr(value)
    return bad(f"{place} must be {wanted}, not {shown}")
