"""Entries of blocks as the Flight service makes them: what an entry says of its header is what the header says."""

from __future__ import annotations

from typing import Any

from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from flintmq.transactions.bulk import BLOCK_ENTRY

# flags of a content (core/content.pxd) by the flag of the property in a content header
_FLAGS = {0x0100: 2, 0x2000: 4, 0x0200: 8, 0x0800: 16}
_PRIORITY_ABSENT = 255


def entry(body: bytes, route: int = 0, properties: dict[str, Any] | None = None) -> bytes:
    """One message of a block."""
    header = encode_properties(len(body), properties or {})
    found = scan_properties_of(header)
    assert found is not None
    flags = sum(flag for bit, flag in _FLAGS.items() if found["flags"] & bit) | (found["delivery_mode"] == 2)  # type: ignore[operator]
    priority = 0 if found["priority"] == _PRIORITY_ABSENT else found["priority"]
    size = len(header) + len(body)
    head = BLOCK_ENTRY.pack(size, route, len(header), flags, priority, 0, found["expiration_ms"])
    return head + header + body + bytes(-size % 8)
