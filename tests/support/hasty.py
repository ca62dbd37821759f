"""Time for the data plane's client in which no pause between two tries takes long, so that a call has much time and a test needs little.

In: a test's monkeypatch. Out: each pause of the client is over at once, and was PAUSE_S long by its own clock. What a single try may take
is real: a busy machine has all of the call's time for the first one.
"""

from __future__ import annotations

import time

import pytest

PAUSE_S = 20.0


class HastyTime:
    """What the client uses of the module `time`."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        self._skipped_s += PAUSE_S


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all clients of this process, until the test ends."""
    monkeypatch.setattr("flintmq.flight.client.time", HastyTime())
