"""Entries of blocks: made as the Flight service makes them (what an entry says of its header is what the header says), and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from flintmq.transactions.bulk import BLOCK_ENTRY

# flags of a content (core/content.pxd) by the flag of the property in a content header
_FLAGS = {0x0100: 2, 0x2000: 4, 0x0200: 8, 0x0800: 16}
_PRIORITY_ABSENT = 255
CONTENT_PRIORITY = 16


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


def enrol(coordinator: Any, session: Any, xid: Any, queue_ids: Iterable[int], body: bytes, **properties: Any) -> Any:
    """One message for some queues, in the branch: a block of one entry. Returns its BlockFacts."""
    block = entry(body, 0, {"delivery_mode": 2, **properties})
    return coordinator.enqueue_block(session, xid, block, [(b"", b"q")], [list(queue_ids)])


def take(coordinator: Any, session: Any, xid: Any, queue_id: int, count: int = 1) -> Any:
    """The queue's next entries, in the branch. Returns its RunFacts."""
    return coordinator.hold_run(session, xid, queue_id, messages_max=count, bytes_max=1 << 40)


class BlockEntry(NamedTuple):
    """One message of a block. priority: None = not set; expiration_ms: -1 = none."""

    route: int
    header: bytes
    body: bytes
    flags: int
    priority: int | None
    expiration_ms: int


def block_entries(block: bytes, routes: int) -> Iterator[BlockEntry]:
    """The entries of a block for `routes` routes. Raises: ValueError where it is malformed; what came before was well formed."""
    at, end = 0, len(block)
    while at < end:
        if end - at < BLOCK_ENTRY.size:
            raise ValueError(f"{end - at} bytes at {at} of a block are no entry")
        length, route, header_len, flags, priority, zero, expiration_ms = BLOCK_ENTRY.unpack_from(block, at)
        start = at + BLOCK_ENTRY.size
        at = start + length + (-length % 8)
        if at > end or header_len > length or route >= routes or zero or expiration_ms < -1:
            raise ValueError(f"an entry of a block makes no sense: length {length}, header {header_len}, route {route}")
        header, body = bytes(block[start : start + header_len]), bytes(block[start + header_len : start + length])
        if header_len < 14 or header[:4] != b"\0\x3c\0\0" or int.from_bytes(header[4:12], "big") != len(body):
            raise ValueError("the header of a block's entry is no content header of its body")
        yield BlockEntry(route, header, body, flags, priority if flags & CONTENT_PRIORITY else None, expiration_ms)
