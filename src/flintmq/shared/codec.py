"""A message as bytes of a shared queue.

in: exchange, routing key, content header payload, body, flags, priority. out: one row's content, and back.
"""

from __future__ import annotations

import struct

# format, flags, priority, bytes of exchange, of routing key, of header
_HEAD = struct.Struct(">BBBBBI")
FORMAT = 1

Fields = tuple[bytes, bytes, bytes, bytes, int, int]


def pack_message(exchange: bytes, key: bytes, header: bytes, body: bytes, flags: int, priority: int) -> bytes:
    return b"".join((_HEAD.pack(FORMAT, flags, priority, len(exchange), len(key), len(header)), exchange, key, header, body))


def unpack_message(content: bytes) -> Fields:
    """Raises: ValueError: a later version wrote it, or it is cut."""
    try:
        form, flags, priority, exchange, key, header = _HEAD.unpack_from(content)
    except struct.error as error:
        raise ValueError("a message of a shared queue is cut") from error
    if form != FORMAT:
        raise ValueError(f"a message of format {form}, and this version reads format {FORMAT}")
    ends = [_HEAD.size]
    for size in (exchange, key, header):
        ends.append(ends[-1] + size)
    if ends[-1] > len(content):
        raise ValueError("a message of a shared queue is cut")
    return (
        content[ends[0] : ends[1]],
        content[ends[1] : ends[2]],
        content[ends[2] : ends[3]],
        content[ends[3] :],
        flags,
        priority,
    )
