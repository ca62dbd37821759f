"""What a transaction has done so far: its writes, merged for its own reads, and the reads that it declared.

in: the calls of a Transaction. out: a Request, which an engine decides.

W1  A cleared range hides what was there before and what the transaction wrote there before; what it writes there later is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flintmq.kv.engine import STAMP_BYTES, EngineLimits, TooLarge

Rows = list[tuple[bytes, bytes]]
# (begin, end, limit, reverse) -> rows of the version that the transaction reads
Fetch = Callable[[bytes, bytes, int, bool], Rows]


@dataclass(slots=True)
class Request:
    """One transaction, ready to be decided. `writes`: None clears the key; `cleared` ranges come before the writes."""

    read_version: int = 0
    points: set[bytes] = field(default_factory=set)
    ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    writes: dict[bytes, bytes | None] = field(default_factory=dict)
    cleared: list[tuple[bytes, bytes]] = field(default_factory=list)
    stamped: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.writes or self.cleared or self.stamped)

    def keys_of(self, stamp: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of the stamped writes."""
        return [(prefix + stamp + suffix, value) for prefix, suffix, value in self.stamped]


def is_hidden(key: bytes, cleared: list[tuple[bytes, bytes]]) -> bool:
    """Whether a cleared range covers the key."""
    return any(begin <= key < end for begin, end in cleared)


class Writes:
    """Collects a transaction. Args: limits: of the engine."""

    def __init__(self, limits: EngineLimits) -> None:
        self.request = Request()
        self._limits = limits
        self._size_bytes = 0
        self._count = 0

    def set(self, key: bytes, value: bytes) -> None:
        self._account(len(key), len(value))
        self.request.writes[key] = value

    def clear(self, key: bytes) -> None:
        self._account(len(key), 0)
        self.request.writes[key] = None

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._account(len(begin) + len(end), 0)
        for key in [key for key in self.request.writes if begin <= key < end]:
            del self.request.writes[key]
        self.request.cleared.append((begin, end))

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self._account(len(prefix) + STAMP_BYTES + len(suffix), len(value))
        self.request.stamped.append((prefix, suffix, value))

    def _account(self, key_bytes: int, value_bytes: int) -> None:
        limits = self._limits
        if key_bytes > 2 * limits.key_bytes or value_bytes > limits.value_bytes:
            raise TooLarge(f"a row of {key_bytes} + {value_bytes} bytes is above the engine's limits")
        self._size_bytes += key_bytes + value_bytes
        self._count += 1
        if self._size_bytes > limits.transaction_bytes or self._count > limits.transaction_writes:
            raise TooLarge(f"a transaction of {self._count} rows and {self._size_bytes} bytes is above the engine's limits")

    def own(self, key: bytes) -> tuple[bool, bytes | None]:
        """(whether the transaction itself decides the key, its value)."""
        if key in self.request.writes:
            return True, self.request.writes[key]
        return is_hidden(key, self.request.cleared), None

    def merge(self, fetch: Fetch, begin: bytes, end: bytes, limit: int, reverse: bool) -> Rows:
        """Rows of the range as the transaction sees them (W1)."""
        writes, cleared = self.request.writes, self.request.cleared
        if not writes and not cleared:
            return fetch(begin, end, limit, reverse)
        own = {key: value for key, value in writes.items() if begin <= key < end}
        rows: dict[bytes, bytes] = {}
        low, high = begin, end
        while len(rows) < limit + len(own):
            part = fetch(low, high, limit + len(own), reverse)
            for key, value in part:
                if key not in own and not is_hidden(key, cleared):
                    rows[key] = value
            if len(part) < limit + len(own):
                break
            if reverse:
                high = part[-1][0]
            else:
                low = part[-1][0] + b"\0"
        rows.update({key: value for key, value in own.items() if value is not None})
        return sorted(rows.items(), reverse=reverse)[:limit]

    def declare_range(self, begin: bytes, end: bytes, rows: Rows, limit: int, reverse: bool) -> None:
        """The part of the range that was looked at: up to the last row when the limit cut it."""
        if len(rows) >= limit and rows:
            if reverse:
                begin = rows[-1][0]
            else:
                end = rows[-1][0] + b"\0"
        self.request.ranges.append((begin, end))
