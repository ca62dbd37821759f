"""A clock for a broker in the test's process: it stands until the test moves it, for the compiled half, too.

in: times that a test sets. out: the broker's `clock`, and the wall clock of `flintmq.core.clock`.

Timers that wait on the monotonic clock don't ring by it: what is due is found by the housekeeping, so a broker has a short housekeeping_ms.
"""

from __future__ import annotations

import time
from types import TracebackType

from flintmq.clock import ManualClock
from flintmq.core.clock import stand_at


class StandingClock(ManualClock):
    """`with StandingClock() as clock`: begins at the time that it is."""

    def __init__(self) -> None:
        super().__init__(wall_ms=time.time_ns() // 1_000_000)

    def __enter__(self) -> StandingClock:
        stand_at(self.wall_ms())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stand_at(0)

    def advance(self, *, ms: int) -> None:
        super().advance(ms=ms)
        stand_at(self.wall_ms())
