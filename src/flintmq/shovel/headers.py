"""What a shovel changes in the properties of a message: x-shovelled, the time, fixed properties. All else keeps its wire bytes.

in: a content header payload as received. out: the payload of the publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flintmq.protocol.v0_9_1.splice import (
    array_field,
    join_properties,
    join_table,
    long_field,
    longstr_field,
    split_array,
    split_properties,
    split_table,
    table_field,
)

Change = Callable[[bytes, bytes, bool, bytes], bytes | None]
_SIZES = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


def text_table(values: Mapping[str, Any]) -> bytes:
    """A table field of texts."""
    return table_field([(name.encode(), longstr_field(str(value).encode())) for name, value in values.items() if value is not None])


def prepend(fields: list[tuple[bytes, bytes]], name: bytes, item: bytes) -> None:
    """Puts a table in front of the array `name`, which is made when there is none (or something else)."""
    items = [item]
    for index, (known, value) in enumerate(fields):
        if known == name:
            if value[:1] == b"A":
                items += split_array(value[5:])
            fields[index] = name, array_field(items)
            return
    fields.append((name, array_field(items)))


def put(fields: list[tuple[bytes, bytes]], name: bytes, value: bytes) -> None:
    """Sets a field."""
    for index, (known, _) in enumerate(fields):
        if known == name:
            fields[index] = name, value
            return
    fields.append((name, value))


def _encoded(name: str, value: Any) -> bytes:
    size = _SIZES.get(name)
    if size is not None:
        return int(value).to_bytes(size, "big")
    raw = str(value).encode()
    return bytes((len(raw),)) + raw


def shovelled(forward: Mapping[str, Any] | None, timestamp: bool, properties: Mapping[str, Any]) -> Change | None:
    """Args: forward: members of x-shovelled, or None; timestamp: x-shovelled-timestamp is wanted; properties: that are set. None: nothing
    changes."""
    if forward is None and not timestamp and not properties:
        return None
    item = None if forward is None else text_table(forward)
    fixed = {name: _encoded(name, value) for name, value in properties.items()}

    def change(exchange: bytes, key: bytes, redelivered: bool, payload: bytes) -> bytes:
        size, parts = split_properties(payload)
        parts.update(fixed)
        if item is not None or timestamp:
            fields = split_table(parts.get("headers", b""))
            if item is not None:
                prepend(fields, b"x-shovelled", item)
            if timestamp:
                put(fields, b"x-shovelled-timestamp", long_field(int(time.time())))
            parts["headers"] = join_table(fields)
        return join_properties(size, parts)

    return change
