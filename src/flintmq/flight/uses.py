"""When the service rests: nothing reads or writes, and nothing has for a while.

in: begin and end of each transfer. out: one True for each rest, upon which what is kept for the next transfer is given back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Uses:
    """A context manager around each transfer. Thread-safe. Args: now: seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._running = 0
        self._ended = now()
        # whether there was a transfer since the last rest
        self._used = False

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self._used = True

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._running -= 1
            self._ended = self._now()

    def over(self, idle_s: float) -> bool:
        """Whether the last transfer ended `idle_s` seconds ago or earlier; True once for each rest."""
        with self._lock:
            if self._running or not self._used or self._now() - self._ended < idle_s:
                return False
            self._used = False
            return True
