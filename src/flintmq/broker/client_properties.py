"""What a client says of itself in connection.start-ok: kept as it came while it is short, cut otherwise, shown to operators.

in: the arguments of connection.start-ok. out: octets of a field table, counted in the connection's account; the table, decoded.

K1  At most Limits.client_properties_bytes_max octets are kept. Of a longer table these go: octets of texts behind TEXT_MAX, and then whole
    fields, the last ones first; but connection_name and capabilities stay as far as they fit.
"""

from __future__ import annotations

from typing import Any

from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import decode_table, encode_table

# characters of a text in a table that is cut
TEXT_MAX = 256
# field tables in field tables that are shown
_DEPTH_MAX = 16

_FIRST = ("connection_name", "capabilities", "product", "version", "platform")


def kept(arguments: bytes, properties: dict[str, object], bytes_max: int) -> bytes:
    """The octets of the client's properties, without their length.

    Args: arguments: of connection.start-ok, which begin with the table; properties: the same, decoded. O(size).
    """
    size = int.from_bytes(arguments[:4], "big")
    if size <= bytes_max:
        return arguments[4 : 4 + size]
    chosen: dict[str, object] = {}
    names = [*(name for name in _FIRST if name in properties), *(name for name in properties if name not in _FIRST)]
    room = bytes_max
    for name in names:
        value = properties[name]
        if isinstance(value, str):
            value = value[:TEXT_MAX]
        taken = len(encode_table({name: value}))
        if taken <= room:
            chosen[name] = value
            room -= taken
    return encode_table(chosen)


def told(table: bytes) -> dict[str, Any]:
    """What was kept, as a table. Raises nothing. O(size)."""
    if not table:
        return {}
    try:
        return dict(decode_table(table, _DEPTH_MAX, len(table)))
    except PeerError:
        return {}


def connection_name(table: bytes) -> str:
    """The name that the application gave its connection; "": none."""
    name = told(table).get("connection_name") if b"connection_name" in table else None
    return name if isinstance(name, str) else ""
