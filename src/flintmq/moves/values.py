"""Values of parameters against a table of names: RabbitMQ's checks, in its order.

in: a name, a table, an object of JSON. out: errors as lines; none: it is right.

V1  A line shows at most SHOWN_MAX characters of a value, and nothing of a URI.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flintmq.arguments import is_number, is_text
from flintmq.moves.uri import Uri, UriError, parse

SHOWN_MAX = 80
URIS_MAX = 32
# bytes of an AMQP shortstr
NAME_BYTES_MAX = 255
# of a queue's or consumer's arguments: levels, and values in all
TABLE_DEPTH_MAX = 8
TABLE_VALUES_MAX = 256

# (name, value) -> what is wrong with it, or None
Check = Callable[[str, Any], str | None]


class Rule(NamedTuple):
    name: str
    check: Check
    mandatory: bool = False


def shown_value(value: Any) -> str:
    """The value as texts about mistakes show it: JSON, cut."""
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{json.dumps(name[:SHOWN_MAX])}: {shown_value(one)}" for name, one in sorted(value.items())[:8]) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(shown_value, value[:8])) + "]"
    else:
        text = json.dumps(value[:SHOWN_MAX] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def number(least: int = 0, most: int = 2**31 - 1) -> Check:
    """A number; fractions as RabbitMQ takes them."""

    def check(name: str, value: Any) -> str | None:
        if not is_number(value):
            return f"{name} should be a number, actually was {shown_value(value)}"
        if not least <= value <= most:  # no number that is no number either
            return f"{name} should be a number from {least} to {most}, actually was {shown_value(value)}"
        return None

    return check


def whole(least: int = 0, most: int = 2**31 - 1) -> Check:
    """A number without a fraction."""
    inner = number(least, most)

    def check(name: str, value: Any) -> str | None:
        wrong = inner(name, value)
        return wrong or (None if isinstance(value, int) else f"{name} should be a whole number, actually was {shown_value(value)}")

    return check


def boolean(name: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{name} should be true or false, actually was {shown_value(value)}"


def text(name: str, value: Any) -> str | None:
    """A text that is a shortstr of AMQP."""
    if not isinstance(value, str):
        return f"{name} should be a text, actually was {shown_value(value)}"
    return None if is_text(value, 0, NAME_BYTES_MAX) else f"{name} should have at most {NAME_BYTES_MAX} bytes of UTF-8"


def one_of(*words: str) -> Check:
    def check(name: str, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{name} should be a text, actually was {shown_value(value)}"
        return None if value in words else f"{name} should be one of {', '.join(words)}, actually was {shown_value(value)}"

    return check


def uris_of(value: Any) -> list[str]:
    """The texts of a value that was checked."""
    return [value] if isinstance(value, str) else list(value)


def uris(name: str, value: Any) -> str | None:
    """One URI, or a list of them: each is tried in turn."""
    if not isinstance(value, str | list):
        return f"{name} should be a list, actually was {shown_value(value)}"
    texts = [value] if isinstance(value, str) else value
    if not 1 <= len(texts) <= URIS_MAX:
        return f"{name} should have 1 to {URIS_MAX} URIs"
    for one in texts:
        if not isinstance(one, str):
            return f"{name} should be a list of texts, actually was {shown_value(one)}"
        try:
            parse(one)
        except UriError as error:
            return f"{name}: not a valid URI: {error}"
    return None


def read_uris(value: Any, vhost: str = "/") -> list[Uri]:
    """URIs of a value that was checked. Args: vhost: of those that name none."""
    return [parse(one, vhost) for one in uris_of(value)]


def table(name: str, value: Any) -> str | None:
    """A value that can be a field table."""
    if not isinstance(value, Mapping):
        return f"{name} should be an object, actually was {shown_value(value)}"
    level: list[Any] = [value]
    count = 0
    for _ in range(TABLE_DEPTH_MAX):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                wrong = next(filter(None, (text(f"a name in {name}", each) for each in one)), None)
                if wrong is not None:
                    return wrong
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, int) and not -(2**63) <= one < 2**63:
                return f"{name} has a number that is too large"
        count += len(inner)
        if count > TABLE_VALUES_MAX:
            return f"{name} has more than {TABLE_VALUES_MAX} values"
        level = inner
    return f"{name} is nested deeper than {TABLE_DEPTH_MAX}" if any(isinstance(one, Mapping | list) for one in level) else None


def members(name: str, rules: Sequence[Rule], value: Mapping[str, Any]) -> list[str]:
    """The mistake in an object, the last rule first. Args: name: of the parameter, or of the value."""
    wrong: list[str] = []
    for rule in rules:
        if rule.name in value:
            checked = rule.check(rule.name, value[rule.name])
            if checked is not None:
                wrong.append(checked)
        elif rule.mandatory:
            wrong.append(f'Key "{rule.name}" not found in {name}')
    known = {rule.name for rule in rules}
    others = {one: each for one, each in value.items() if one not in known}
    if others:
        wrong.append(f"Unrecognised terms {shown_value(others)} in {name}")
    return wrong[::-1]
