"""The time port. Everything that waits or measures asks a Clock, so that tests can move time by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time.

    monotonic_ns is for timeouts and measuring; it never goes back. wall_ms (Unix epoch, milliseconds) is for shown times
    to people or stored, such as message expiry; it is clamped so that it never goes back within one process either.
    """

    def monotonic_ns(self) -> int: ...
    def wall_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._wall_ms_last = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._wall_ms_last:
            self._wall_ms_last = now
        return self._wall_ms_last


class ManualClock:
    """A clock that stands still until `advance`: the deterministic twin for tests."""

    def __init__(self, monotonic_ns: int = 1_000_000_000, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ms = wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, *, ms: int) -> None:
        """Moves both clocks forward by `ms` milliseconds (>= 0)."""
        if ms < 0:
            raise ValueError("a clock never goes back")
        self._monotonic_ns += ms * 1_000_000
        self._wall_ms += ms
