"""Names and argument tables <-> what a SQL column can hold, without loss.

in: AMQP names (str, perhaps with surrogate escapes or NUL), field tables of the codec. out: text that every database takes.

I1  decode(encode(v)) == v with the same types, for every value the codec can make (lists, not tuples, come back).
I2  Two tables have one `canonical_table` exactly when ports.freeze makes them equal.
I3  Nothing but JSON is parsed; an unknown tag raises ValueError.

Tables are JSON text. What JSON has no type for is an object of one tagged key: {"!bytes": base64}, {"!timestamp": int},
{"!decimal": str}, {"!float": "nan"}; a user's own key that begins with "!" gets one more in front.
Names are kept as they are, except that backslash, NUL and lone surrogates (bytes that were not UTF-8) become escapes.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any

from flintmq.digests import blake2b
from flintmq.ports import BindingRecord, Table, type_class


class Timestamp(int):
    """Stand-in for the codec's type of this name (the store does not import the protocol): an int that is told apart by its type."""

    __slots__ = ()


# of a table without fields
EMPTY_TABLE = "{}"
_DUMP = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode
# Our own stored text is matched here, and names whose length is bounded: both patterns are linear.
_SPECIAL = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:\\|0|u[0-9a-f]{4})")


def encode_name(name: str) -> str:
    """Text of a name: any str. ASCII without backslash or NUL stays as it is."""
    if name.isascii() and "\\" not in name and "\0" not in name:
        return name
    return _SPECIAL.sub(_escape, name)


def decode_name(text: str) -> str:
    """The name back."""
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _escape(match: re.Match[str]) -> str:
    text = match.group()
    if text == "\\":
        return "\\\\"
    return "\\0" if text == "\0" else f"\\u{ord(text):04x}"


def _unescape(match: re.Match[str]) -> str:
    text = match.group()
    if text == "\\\\":
        return "\\"
    return "\0" if text == "\\0" else chr(int(text[2:], 16))


def encode_table(table: Table) -> str:
    """JSON text (ASCII) of a table. Raises: TypeError for a value that no field table can hold."""
    return _DUMP(_tagged(table)) if table else EMPTY_TABLE


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"!float": str(value)}
    if isinstance(value, Mapping):
        return {("!" + key if key.startswith("!") else key): _tagged(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"!bytes": b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return {"!decimal": str(value)}
    if isinstance(value, int) and type_class(value) == "timestamp":
        return {"!timestamp": int(value)}
    raise TypeError(f"a table cannot hold {type(value).__name__}")


def decode_table(text: str, timestamp: Callable[[int], Any] = Timestamp) -> dict[str, Any]:
    """The table back. Args: timestamp: makes a timestamp of its number. Raises: ValueError when the text is not of `encode_table`."""
    if text == EMPTY_TABLE:
        return {}
    value = _untagged(json.loads(text), timestamp)
    if not isinstance(value, dict):
        raise ValueError("the arguments are not a table")
    return value


def _untagged(value: Any, timestamp: Callable[[int], Any]) -> Any:
    if isinstance(value, list):
        return [_untagged(item, timestamp) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key.startswith("!") and not key.startswith("!!"):
            return _tag(key, item, timestamp)
    return {(key[1:] if key.startswith("!") else key): _untagged(item, timestamp) for key, item in value.items()}


def _tag(key: str, item: Any, timestamp: Callable[[int], Any]) -> Any:
    if key == "!bytes":
        return b64decode(item, validate=True)
    if key == "!timestamp":
        return timestamp(item)
    if key == "!decimal":
        return Decimal(item)
    if key == "!float":
        return float(item)
    raise ValueError(f"unknown tag {key!r} in stored arguments")


def canonical_table(table: Table) -> str:
    """One text for all tables that are equal as RabbitMQ compares them (ports.freeze)."""
    return _DUMP(_canonical(table))


def _canonical(value: Any) -> Any:
    kind = type_class(value)
    if isinstance(value, Mapping):
        return [kind, [[key, _canonical(value[key])] for key in sorted(value)]]
    if isinstance(value, list | tuple):
        return [kind, [_canonical(item) for item in value]]
    if isinstance(value, bytes | bytearray | memoryview):
        return [kind, bytes(value).hex()]
    if isinstance(value, float):
        return [kind, str(value)]
    if isinstance(value, Decimal):
        return [kind, _canonical_decimal(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return [kind, int(value)]
    return [kind, value]


def _canonical_decimal(value: Decimal) -> Any:
    """Equal for 1.0 and 1.00, without the rounding of Decimal.normalize."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)
    number = int("".join(map(str, digits)) or "0")
    if number == 0:
        return "0"
    while number % 10 == 0:
        number //= 10
        exponent += 1
    return f"{'-' if sign else ''}{number}e{exponent}"


def binding_identity(record: BindingRecord) -> bytes:
    """32 bytes that name a binding within its vhost and source; they stand in for keys and arguments too long for an index."""
    arguments = canonical_table(record.arguments) if record.arguments else EMPTY_TABLE
    fields = (record.source, record.destination_kind, record.destination, record.routing_key.hex(), arguments)
    text = f"[{','.join(map(encode_basestring_ascii, fields))}]"  # a list in JSON, in a third of the encoder's time
    return blake2b(text.encode("ascii"), digest_size=32).digest()
