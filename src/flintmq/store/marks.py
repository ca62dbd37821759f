"""Records about queues and consumers that are not on the message path: marks, redelivered ranges, names, ends.

in: the store. out: records of the message log (docs/FORMAT.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

MESSAGE_DELETE = 3
QUEUE_MARK = 7
REDELIVERED = 8
NAME = 9
QUEUE_END = 10
NOTE = 42
NAME_CONSUMER = 1
# ranges in one record: it must fit into the smallest write buffer
RANGES_MAX = 128
NAME_BYTES_MAX = 255
FILLER_MAX = 1024


def write_marks(store: Any, tails: Iterable[tuple[int, Sequence[int], Any]], known_at: int = 0) -> int:
    """Queue-Mark for each (queue id, highest index per level, handle or None). Returns how many were written.

    known_at: tail of the log before the indexes were read: what came after that has a record of its own at or above it.
    """
    written = 0
    for queue_id, levels, handle in tails:
        store.messages.append(QUEUE_MARK, struct.pack(f"<QII{len(levels)}Q", queue_id, len(levels), 0, *levels))
        if handle is not None:
            store.marked(handle, known_at)
        written += 1
    return written


def write_redelivered(store: Any, queues: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
    """Queue-Redelivered: the entries that were delivered before, as ranges of positions."""
    for queue_id, ranges in queues:
        for at in range(0, len(ranges), RANGES_MAX):
            part = ranges[at : at + RANGES_MAX]
            payload = struct.pack("<QII", queue_id, len(part), 0) + b"".join(struct.pack("<QQ", *one) for one in part)
            store.messages.append(REDELIVERED, payload)


def write_nothing(store: Any) -> None:
    """One record in each log that says nothing: the first block of a run needs one, and the block that says "stopped cleanly"."""
    for one in (store.messages, store.transaction_records):
        one.append(*nothing(one))


def write_queue_end(store: Any, queue_id: int) -> int:
    """Queue-End; returns the LSN behind it."""
    _, end = store.messages.append(QUEUE_END, struct.pack("<Q", queue_id))
    return int(end)


def nothing(log: Any) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: a record that says nothing, for the block that carries it. `log`: the message or transaction log."""
    if log.name == "messages":
        return REDELIVERED, struct.pack("<QII", 0, 0, 0)
    return filler(0)


def filler(size: int) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: a note that says nothing and takes about `size` bytes, at most 1 KiB, of the transaction log."""
    size = min(max(size, 0), FILLER_MAX)
    return NOTE, struct.pack("<HHI", 0, 0, size) + bytes(size)


def name_record(consumer_id: int, tag: bytes, group: bytes) -> tuple[int, bytes]:
    """Arguments of ManagedLog.append: which consumer tag and group a consumer id stands for."""
    tag, group = tag[:NAME_BYTES_MAX], group[:NAME_BYTES_MAX]
    payload = struct.pack("<IIQ", NAME_CONSUMER, 0, consumer_id)
    return NAME, payload + struct.pack("<H", len(tag)) + tag + struct.pack("<H", len(group)) + group
