"""Clocks for tests with a broker: time goes on by itself, and stands still where a slow machine would make a difference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flintmq.clock import SystemClock


class HeldClock(SystemClock):
    """Both clocks stand while they are held."""

    held_ms = held_ns = 0

    def wall_ms(self) -> int:
        return self.held_ms or super().wall_ms()

    def monotonic_ns(self) -> int:
        return self.held_ns or super().monotonic_ns()

    def hold(self) -> None:
        self.held_ms, self.held_ns = self.wall_ms(), self.monotonic_ns()


@contextmanager
def held(broker: Any) -> Iterator[None]:
    """Nothing that goes by the clock of the broker (which has a HeldClock) is due in here, however long it takes."""
    clock = broker.node.broker.clock
    clock.hold()
    try:
        yield
    finally:
        clock.held_ms = clock.held_ns = 0
