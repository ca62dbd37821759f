"""One account of the memory that clients make the broker hold (see memory_account.pxd).

in: growth and shrinking of buffers, maps and lists. out: what the memory alarm and the metrics read.

M1  A kind's counter is the sum of what is allocated of that kind: who adds on growth takes the same away when it frees.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add64, at_load64
from cython.cimports.flintmq.core.content import content_bytes_mapped
from cython.cimports.libc.stdint import int64_t, uint64_t

_counters = cython.declare(uint64_t[10])
# by MEMORY_*
KINDS = ("output", "input", "unacked", "transactions", "entries", "channels", "definitions", "streams", "connections", "routes")


def memory_add(kind, change):
    at_add64(cython.address(_counters[kind]), cython.cast(uint64_t, change))


def memory_of(kind):
    return at_load64(cython.address(_counters[kind]))


def memory_held():
    total: uint64_t = content_bytes_mapped()
    kind: cython.int
    for kind in range(MEMORY_KINDS):
        total += at_load64(cython.address(_counters[kind]))
    return total


@cython.cclass
class MemoryShare:
    """What one holder has in the account, of one kind; what is left goes with the object (M1).

    Args: kind: one of KINDS. Raises: ValueError for another.
    """

    def __cinit__(self, kind: str):
        self.kind = KINDS.index(kind)
        self.bytes = 0

    def __dealloc__(self):
        memory_add(self.kind, -self.bytes)

    def add(self, change: int) -> None:
        """The holder has `change` bytes more, or less. Any thread, with the GIL. O(1)."""
        moved: int64_t = change
        self.bytes += moved
        memory_add(self.kind, moved)

    @property
    def held(self) -> int:
        """Bytes that it has."""
        return self.bytes


def bytes_held() -> int:
    """Bytes that the memory watermark is compared with: message contents and all kinds of the account."""
    return memory_held()


def bytes_by_kind() -> dict[str, int]:
    """Bytes of each kind, message contents among them."""
    return {"contents": content_bytes_mapped(), **{name: memory_of(kind) for kind, name in enumerate(KINDS)}}
