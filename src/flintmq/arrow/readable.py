"""Header tables as people and Spark read them: text pairs.

in: field tables as bytes, or decoded. out: (name, text or None) pairs: strings as they are, numbers in decimal, true/false, null,
times in ISO 8601, everything nested as JSON with sorted names; bytes that are not UTF-8 as `base16:` and hexadecimal digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from flintmq.protocol.v0_9_1.tables import Timestamp, decode_table


def readable_pairs(table: bytes) -> list[tuple[bytes, bytes | None]]:
    """The field table (without its length) as pairs of UTF-8; bytes of names that are none are replaced. Raises: PeerError."""
    pairs: dict[bytes, bytes | None] = {}
    for name, text in readable_headers(decode_table(table)):
        pairs.setdefault(_utf8(name), None if text is None else _utf8(text))
    return list(pairs.items())


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def readable_headers(headers: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """A decoded field table as text pairs, in its order."""
    return [(key, _readable(value)) for key, value in headers.items()]


def _readable(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal) and not isinstance(value, Timestamp):
        return str(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """`value` with only JSON types inside."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "base16:" + value.hex()
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat()
        except (ValueError, OverflowError, OSError):
            return str(int(value))
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value
