"""Header tables as people and Spark read them: text pairs.

in: decoded field tables. out: (name, text or None) pairs: strings as they are, numbers in decimal, true/false, null,
times in ISO 8601, everything nested as JSON with sorted names; bytes that are not UTF-8 as `base16:` and hexadecimal digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any


def readable_headers(headers: Mapping[str, Any], seconds: Any = datetime) -> list[tuple[str, str | None]]:
    """A decoded field table as text pairs, in its order. Args: seconds: type of a time that is a number of seconds since 1970."""
    return [(key, _readable(value, seconds)) for key, value in headers.items()]


def _readable(value: Any, seconds: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal) and not isinstance(value, seconds):
        return str(value)
    plain = _plain(value, seconds)
    return plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _plain(value: Any, seconds: Any) -> Any:
    """`value` with only JSON types inside."""
    if isinstance(value, dict):
        return {str(key): _plain(item, seconds) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, seconds) for item in value]
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "base16:" + value.hex()
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
    if isinstance(value, seconds):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat()
        except (ValueError, OverflowError, OSError):
            return str(int(value))
    if isinstance(value, Decimal):
        return str(value)
    return value
