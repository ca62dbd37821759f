"""The rows of shared queues in an engine: keys, and the values that are JSON (docs/adr/0015).

in: names, ids, positions. out: keys in the order in which they are scanned; values that compare equal when they mean the same.

Segments and ends stand by level and position, so a scan gives the messages of a queue as they are served.
"""

from __future__ import annotations

import json
import secrets
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

from flintmq.engines.engine import Range

ID_BYTES = 8
_BIG = struct.Struct(">Q")
_PARTS = struct.Struct(">BI")
# the first byte of a segment's row (mirror/rows.pxd), and of one that says how many parts have it
ROW, IN_PARTS = 1, 2


def new_id() -> bytes:
    """Of a queue's life, as it stands in keys: 16 characters."""
    return secrets.token_hex(ID_BYTES).encode()


def owner_key(queue: bytes) -> bytes:
    return b"o/" + queue


def mark_key(queue: bytes) -> bytes:
    return b"q/" + queue + b"/m"


def quiet_key(queue: bytes) -> bytes:
    """The row says that nobody consumes. It is its absence that a consumer needs: a full engine deletes, and puts nothing."""
    return b"q/" + queue + b"/q"


def segment_key(queue: bytes, position: int) -> bytes:
    return b"q/" + queue + b"/s" + _BIG.pack(position)


def ends_key(queue: bytes, position: int) -> bytes:
    return b"q/" + queue + b"/e" + _BIG.pack(position)


def part_key(queue: bytes, position: int, number: int) -> bytes:
    return b"q/" + queue + b"/p" + _BIG.pack(position) + number.to_bytes(4, "big")


def parts_of(queue: bytes, position: int) -> Range:
    return part_key(queue, position, 0), part_key(queue, position + 1, 0)


def kind_of(queue: bytes, kind: bytes) -> Range:
    """All rows of one kind: `s` segments, `e` ends, `p` parts."""
    prefix = b"q/" + queue + b"/" + kind
    return prefix, prefix + b"\xff" * 9


def rows_of(queue: bytes) -> Range:
    """All rows of the queue but its owner row."""
    return b"q/" + queue + b"/", b"q/" + queue + b"0"


def position_of(key: bytes) -> int:
    """Of the key of a segment, or of its ends."""
    return int(_BIG.unpack(key[-8:])[0])


def row_numbers(row: bytes) -> tuple[int, int]:
    """(epoch, batch) of a segment's row."""
    epoch, batch = struct.unpack_from("<QQ", row, 8)
    return int(epoch), int(batch)


def renumbered(row: bytes, epoch: int, batch: int) -> bytes:
    """The same segment in another batch. O(bytes)."""
    return row[:8] + struct.pack("<QQ", epoch, batch) + row[24:]


def parts_value(row: bytes, count: int) -> bytes:
    """The value of a row that is in parts: its head, and how many there are."""
    return _PARTS.pack(IN_PARTS, count) + row[:40]


def parts_count(value: bytes) -> int:
    """0: the value is the row itself."""
    return int(_PARTS.unpack_from(value)[1]) if value[0] == IN_PARTS else 0


def head_of(value: bytes) -> bytes:
    """The row, or of one in parts its head."""
    return value if value[0] == ROW else value[_PARTS.size :]


def _dumps(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who serves a queue. epoch: rises with each take-over; life: of the node's process, so that its next one is another owner."""

    epoch: int
    node: str
    life: str

    def pack(self) -> bytes:
        return _dumps(asdict(self))

    @staticmethod
    def unpack(value: bytes) -> Owner:
        """Raises: ValueError."""
        row = _object(value, {"epoch": int, "life": str, "node": str})
        return Owner(row["epoch"], row["node"], row["life"])

    def next(self, node: str, life: str) -> Owner:
        return Owner(self.epoch + 1, node, life)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a new owner has to know beside the segments.

    epoch: of the owner that wrote it; settled: all batches of that epoch up to here are in; tails: the last index in use of each level;
    flagged: messages up to these indices may have been delivered to consumers of earlier owners.
    """

    epoch: int = 0
    settled: int = 0
    tails: list[int] = field(default_factory=list)
    flagged: list[int] = field(default_factory=list)

    def pack(self) -> bytes:
        return _dumps(asdict(self))

    @staticmethod
    def unpack(value: bytes | None) -> Mark:
        """Raises: ValueError."""
        if value is None:
            return Mark()
        row = _object(value, {"epoch": int, "flagged": list, "settled": int, "tails": list})
        return Mark(row["epoch"], row["settled"], *([int(index) for index in row[name]] for name in ("tails", "flagged")))


def _object(value: bytes, fields: dict[str, type]) -> dict[str, Any]:
    try:
        row = json.loads(value)
    except ValueError as error:
        raise ValueError(f"a row of shared queues is no JSON: {value[:80]!r}") from error
    if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in fields.items()):
        raise ValueError(f"a row of shared queues has not the fields {', '.join(sorted(fields))}: {value[:80]!r}")
    return row
