"""Checks of a request: its query parameters, its JSON body, the names in its path.

in: bytes and texts of a peer. out: values of the right type and range, or HttpError 400 with the cause and the fix. Unknown names are
refused: a misspelt parameter must not be taken for its default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.schema import Schema, check

NAME_MAX = 255
_UTF8 = "send names as UTF-8, percent-encoded"
# How a path says the names "." and "..": a browser takes both, and %2E, for steps in the path. No name in UTF-8 has the octet 0xFF.
_DOTS = {"%ff.": ".", "%ff..": ".."}


def path_name(segment: str, kind: str) -> str:
    """A percent-encoded name of the path. Raises: HttpError 400, also when it is not UTF-8, as names of JSON answers must be."""
    dots = _DOTS.get(segment.lower()) if len(segment) <= len("%ff..") else None
    if dots is not None:
        return dots
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise bad(f"the name of the {kind} in the path is not UTF-8", _UTF8) from None
    if not 1 <= len(name.encode()) <= NAME_MAX:
        raise bad(f"the {kind} in the path has no name of 1 to {NAME_MAX} bytes")
    return name


def query(sent: bytes, known: Iterable[str]) -> dict[str, str]:
    """Query parameters, each at most once, known, and UTF-8. `sent`: the percent-encoded query. Raises: HttpError 400."""
    names = tuple(known)
    values: dict[str, str] = {}
    # Bytes that are not UTF-8 are kept apart from all text: replaced, two groups would become one.
    for name, value in parse_qsl(sent.decode("ascii", "surrogateescape"), keep_blank_values=True, errors="surrogateescape"):
        if name not in names:
            shown = name[:80].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            raise bad(f"unknown parameter '{shown}'", f"known are: {', '.join(names)}")
        if name in values:
            raise bad(f"parameter '{name}' is given twice")
        if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            raise bad(f"parameter '{name}' is not UTF-8", _UTF8)
        values[name] = value
    return values


def number(values: Mapping[str, str], name: str, default: int, low: int, high: int, unit: str = "") -> int:
    """A whole number of a query. Raises: HttpError 400."""
    text = values.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise bad(f"{name}={text[:40]!r} is no whole number from {low} to {high}{unit and ' ' + unit}")
    return int(text)


def seconds_ms(values: Mapping[str, str], name: str, default_ms: int, low_ms: int, high_ms: int) -> int:
    """A time in seconds, fractions allowed, as milliseconds. Raises: HttpError 400."""
    text = values.get(name)
    if text is None:
        return default_ms
    whole, _, fraction = text.partition(".")
    plain = text.isascii() and len(text) <= 20 and (whole + fraction).isdigit() and whole.isdigit()
    milliseconds = int(whole) * 1000 + int((fraction + "000")[:3]) if plain else -1
    if not low_ms <= milliseconds <= high_ms:
        raise bad(f"{name}={text[:40]!r} is no time from {low_ms / 1000:g} to {high_ms / 1000:g} seconds")
    return milliseconds


def word(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first is the default. Raises: HttpError 400."""
    text = values.get(name, choices[0])
    if text not in choices:
        raise bad(f"{name}={text[:40]!r} is none of: {', '.join(choices)}")
    return text


def parameters(sent: bytes, schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """The query's parameters as their schemas say: whole numbers, flags, words of a list, texts; times in seconds become milliseconds. One
    that is not sent has the schema's default, or is left out. Raises: HttpError 400."""
    values = query(sent, schemas)
    typed: dict[str, Any] = {}
    for name, schema in schemas.items():
        default = schema.get("default")
        if name not in values:
            if default is not None:
                typed[name] = round(default * 1000) if schema["type"] == "number" else default
        elif schema["type"] == "integer":
            typed[name] = number(values, name, 0, schema["minimum"], schema["maximum"])
        elif schema["type"] == "number":
            typed[name] = seconds_ms(values, name, 0, round(schema["minimum"] * 1000), round(schema["maximum"] * 1000))
        elif schema["type"] == "boolean":
            typed[name] = word(values, name, ("true", "false")) == "true"
        else:
            typed[name] = word(values, name, tuple(schema["enum"])) if "enum" in schema else values[name]
    return typed


# bytes of JSON that are read in one call
_AT_ONCE = 128 * 1024
_SPACE = re.compile(r"[ \t\n\r]*")


def _finite(text: str) -> float:
    """NaN and Infinity are no JSON though Python reads them, and 1e999 would become one."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _in_pieces(text: str) -> Any:
    """As json.loads. Members of the object, and items of lists in them, are read one by one: a definitions file of 4 MiB would keep the
    interpreter for 50 ms in one call. Raises: ValueError, as that does."""
    text = text.removeprefix("\ufeff")
    place = _skip(text, 0)
    if text[place : place + 1] != "{":
        value, place = _DECODER.raw_decode(text, place)
    else:
        value, place = {}, _skip(text, place + 1)
        while text[place : place + 1] != "}":
            name, place = _DECODER.raw_decode(text, place)
            if not isinstance(name, str):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, place)
            place = _skip(text, _expect(text, _skip(text, place), ":"))
            value[name], place = _list(text, place) if text[place : place + 1] == "[" else _DECODER.raw_decode(text, place)
            place = _next(text, _skip(text, place), "}")
        place += 1
    place = _skip(text, place)
    if place != len(text):
        raise json.JSONDecodeError("Extra data", text, place)
    return value


def _list(text: str, place: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    place = _skip(text, place + 1)
    while text[place : place + 1] != "]":
        one, place = _DECODER.raw_decode(text, place)
        items.append(one)
        place = _next(text, _skip(text, place), "]")
    return items, place + 1


def _next(text: str, place: int, end: str) -> int:
    """Where the next item begins, or `end` stands."""
    if text[place : place + 1] == end:
        return place
    place = _skip(text, _expect(text, place, ","))
    if text[place : place + 1] == end:
        raise json.JSONDecodeError("Illegal trailing comma", text, place)
    return place


def _skip(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    assert space is not None  # it matches nothing, too
    return space.end()


def _expect(text: str, place: int, sign: str) -> int:
    if text[place : place + 1] != sign:
        raise json.JSONDecodeError(f"Expecting {sign!r} delimiter", text, place)
    return place + 1


def json_object_any(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises: HttpError 400."""
    try:
        value = json.loads(body, parse_float=_finite, parse_constant=_finite) if len(body) <= _AT_ONCE else _in_pieces(body.decode())
    except RecursionError:
        raise bad("the body is nested too deeply", "send a JSON object, as docs/HTTP.md shows") from None
    except json.JSONDecodeError as error:
        raise bad(f"the body is no JSON: {error}"[:200], "send a JSON object, as docs/HTTP.md shows") from None
    except UnicodeDecodeError:
        raise bad("the body is no JSON: it is not UTF-8", "send a JSON object, as docs/HTTP.md shows") from None
    except ValueError as error:  # a number: ours, or of more digits than Python takes
        reason = str(error) if "is no number" in str(error) else "a number in it has too many digits"
        raise bad(f"the body is no JSON: {reason}", "send a JSON object, as docs/HTTP.md shows") from None
    if not isinstance(value, dict):
        raise bad("the body is no JSON object")
    return value


def checked_object(body: bytes, schema: Schema) -> dict[str, Any]:
    """A JSON object that meets the schema (admin.schema); {} when the body is empty. Raises: HttpError 400."""
    value = json_object_any(body) if body.strip() else {}
    check(value, schema)
    return value


def json_object(body: bytes, known: Iterable[str]) -> dict[str, Any]:
    """A JSON object with known members only. Raises: HttpError 400."""
    value = json_object_any(body)
    names = tuple(known)
    for name in value:
        if name not in names:
            raise bad(f"unknown member '{name[:80]}'", f"known are: {', '.join(names)}")
    return value


def too_large(most: int, fix: str) -> HttpError:
    """413."""
    return HttpError(413, "too_large", f"the body is larger than {most} bytes", fix)
