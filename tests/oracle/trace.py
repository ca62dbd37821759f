"""The content header of a copy for the firehose in plain Python, as protocol/v0_9_1/tracing.py makes it: what its tests compare it with.

Written from RabbitMQ's rabbit_trace.erl, 3.10.
"""

from __future__ import annotations

from flintmq.config import Limits
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.protocol.v0_9_1.splice import (
    array_field,
    field_text,
    join_properties,
    join_table,
    longstr_field,
    split_array,
    split_properties,
    split_table,
    table_field,
)

HEADER_MAX = Limits().frame_size_max - 8


def _int(value: int) -> bytes:
    return b"I" + value.to_bytes(4, "big")


def _properties(header: bytes) -> list[tuple[bytes, bytes]]:
    """The properties of a message as fields of a table; the values in its own headers keep their types."""
    values, parts = decode_properties(header)[1], split_properties(header)[1]
    fields = []
    for name, value in values.items():
        if name == "headers":
            field = table_field(split_table(parts[name]))
        elif name == "timestamp":
            field = b"T" + parts[name]
        else:
            field = _int(value) if isinstance(value, int) else longstr_field(str(value).encode("utf-8", "surrogateescape"))
        fields.append((name.encode(), field))
    return fields


def keys_of(header: bytes) -> list[bytes]:
    """The keys in CC and BCC, of each the first one; what is no text is no key."""
    try:
        fields = split_table(split_properties(header)[1].get("headers", b""))
    except PeerError:
        return []
    keys = []
    for wanted in (b"CC", b"BCC"):
        value = next((value for name, value in fields if name == wanted), b"")
        for item in split_array(value[5:]) if value[:1] == b"A" else []:
            text = field_text(item)
            if text is not None and text.decode("utf-8", "replace").encode() == text:
                keys.append(text)
    return keys


def trace_header(
    message: tuple[bytes, bytes, bytes],
    keys: list[bytes],
    place: bytes,
    user: bytes,
    channel: int,
    redelivered: int | None,
    queues: list[bytes],
    body_size: int,
) -> bytes:
    """Arguments as those of tracing.trace_header, but for the keys, which are all but the message's own."""
    exchange, key, header = message

    def made(properties: list[tuple[bytes, bytes]], keys: list[bytes], names: list[bytes]) -> bytes:
        fields = [
            (b"exchange_name", longstr_field(exchange)),
            (b"routing_keys", array_field([longstr_field(one) for one in (key, *keys)])),
            (b"properties", table_field(properties)),
            *split_table(place),
            *([] if redelivered is None else [(b"redelivered", _int(redelivered))]),
            (b"channel", _int(channel)),
            *split_table(user),
            *([(b"routed_queues", array_field([longstr_field(name) for name in names]))] if redelivered is None else []),
        ]
        return join_properties(body_size, {"headers": join_table(fields)})

    try:
        properties = _properties(header)
    except PeerError:
        properties = []
    if len(made(properties, keys, [])) > HEADER_MAX:
        properties, keys = [], []
    names: list[bytes] = []
    size = len(made(properties, keys, []))
    for name in queues if redelivered is None else []:
        size += 5 + len(name)
        if size > HEADER_MAX:
            break
        names.append(name)
    return made(properties, keys, names)
