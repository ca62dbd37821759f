"""Many messages at once in a distributed transaction: facts of runs that are held and of blocks that are staged, and the form of a block.

in: calls of the data plane (docs/DATAPLANE.md). out: plain values; `ROW` and `INLINE`, the bytes of rows and inline contents.

A block is a run of entries, each of them: u32 length of header and body, u32 index of its route, u32 length of the header, u8 content
flags, u8 priority, u16 0, i64 expiration in milliseconds from now (-1: none), header payload, body, padding to 8 bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from flintmq.slotted import slotted

# position, id, where its content stands in the message log (0: inline), body length, earlier deliveries, flags (1: redelivered), 0
ROW = struct.Struct("<QQQIHBB")
# before an inline content (route, header, body): its length, length of the header, published time in microseconds (0: not known)
INLINE = struct.Struct("<IIQ")
# an entry of a block
BLOCK_ENTRY = struct.Struct("<IIIBBHq")
# HeldRun has an attribute of that name
Octets = bytes


@slotted(frozen=True)
class RunFacts:
    """The entries that `hold_run` took. bytes: of bodies; first, last: positions, 0 when count is 0."""

    count: int
    bytes: int
    first: int
    last: int


class BlockFacts(NamedTuple):
    """A block that was staged. messages: entries of the block; enqueues: places of all of them; bytes: of all bodies; unroutable:
    messages whose route leads nowhere, which are left out."""

    messages: int
    enqueues: int
    bytes: int
    unroutable: int


class HeldRun(Protocol):
    """The entries of one queue that a transaction holds by `hold_run`, in the queue's order. bytes: of bodies."""

    @property
    def queue_id(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    def ranges(self) -> list[tuple[int, int]]:
        """(first position, count) of its runs of neighbouring positions, in order."""
        ...

    def positions(self) -> list[int]:
        """Of all its entries, in order."""
        ...

    def rows(self, first: int, count: int) -> tuple[Octets, list[Octets]]:
        """Rows of its entries first..first+count-1 (from 0; fewer at its end), and the contents of those whose `where` is 0, in row order,
        each an INLINE and its content. The same each time while the transaction is prepared, but for `where`, which follows copies;
        may read the disk. Raises: KeyError a content is gone or unreadable (or the run has ended)."""
        ...
