"""One account of the memory that clients make the broker hold (see memory_account.pxd).

in: growth and shrinking of buffers, maps and lists. out: what the memory alarm and the metrics read.

M1  A kind's counter is the sum of that kind's allocations: who adds on growth takes the same away when it frees.
"""

from __future__ import annotations

from cython import address, cast, cclass, declare, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load64
from cython.cimports.flintmq.core.content import content_bytes_mapped
from cython.cimports.libc.stdint import int64_t, uint64_t

_counters = declare(uint64_t[10])
# by MEMORY_*
KINDS = ("output", "input", "unacked", "transactions", "entries", "channels", "definitions", "streams", "connections", "routes")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def memory_add(kind: c_int, change: int64_t) -> void:
    at_add64(address(_counters[kind]), cast(uint64_t, change))


def memory_of(kind: c_int) -> uint64_t:
    return at_load64(address(_counters[kind]))


def memory_held() -> uint64_t:
    total: uint64_t = content_bytes_mapped()
    kind: c_int
    for kind in range(MEMORY_KINDS):
        total += at_load64(address(_counters[kind]))
    return total


@cclass
class MemoryTotal:
    """What several holders have together, of whatever kinds."""

    @property
    def held(self) -> int:
        """Bytes that they have."""
        return cast(int64_t, at_load64(address(self.bytes)))


@cclass
class MemoryShare:
    """What one holder has in the account, of one kind; what is left goes with the object (M1).

    Args: kind: one of KINDS; total: counts what this holder adds and takes away, too. Raises: ValueError for another kind.
    """

    def __cinit__(self, kind: str, total: MemoryTotal | None = None):
        if kind not in _NUMBERS:
            raise ValueError(f"{kind!r} is no kind of memory")
        self.kind = _NUMBERS[kind]
        self.bytes = 0
        self.total = total

    def __dealloc__(self):
        memory_add(self.kind, -self.bytes)

    def add(self, change: int) -> None:
        """The holder has `change` bytes more, or less. Any thread, with the GIL. O(1)."""
        moved: int64_t = change
        self.bytes += moved
        memory_add(self.kind, moved)
        if self.total is not None:
            at_add64(address(self.total.bytes), cast(uint64_t, moved))  # its holders may be in different threads

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
