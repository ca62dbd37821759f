"""Clocks for tests with a broker: time goes on by itself, and stands still where a slow machine would make a difference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flintmq.clock import SystemClock


class HeldClock(SystemClock):
    """The wall clock stands while it is held."""

    held_ms = 0

    def wall_ms(self) -> int:
        return self.held_ms or super().wall_ms()

    def hold(self) -> None:
        self.held_ms = self.wall_ms()


@contextmanager
def held(broker: Any) -> Iterator[None]:
    """Nothing that goes by the clock of the broker (which has a HeldClock) is due in here, however long it takes."""
    clock = broker.node.broker.clock
    clock.hold()
    try:
        yield
    finally:
        clock.held_ms = 0
