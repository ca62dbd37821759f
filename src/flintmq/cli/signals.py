"""SIGTERM, SIGINT and SIGHUP for the main thread of `flintmq serve`.

in: signals. out: what they ask for, and an end of the main thread's sleep.
Invariant: a handler runs between any two instructions of the main thread, so it takes no lock and calls no logger: the main thread may
have that lock. `threading.Event.set` takes the one that `Event.wait` holds on its way to sleep and back: a node that got its signal there
never ended. A handler notes what is asked for and raises an eventfd, which `wait` sleeps on.
"""

from __future__ import annotations

import os
import select
import signal
from typing import Any


class Signals:
    """Signals that came so far. Made and used by the main thread.

    stop: number of the first SIGTERM or SIGINT, 0 before it; the second ends the process at once, with exit code 0. hang_up: SIGHUP came;
    whoever sees to it clears it.
    """

    def __init__(self) -> None:
        self.stop = 0
        self.hang_up = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)

    def take(self) -> None:
        """From now on signals come here. Raises: ValueError, not on the main thread."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hang_up)

    def wait(self, seconds: float) -> None:
        """Sleeps until a signal comes, or came since the last call; at most so long."""
        if self._poll.poll(seconds * 1000):
            os.eventfd_read(self._wake)

    def _on_stop(self, number: int, frame: Any) -> None:
        if self.stop:
            os._exit(0)
        self.stop = number
        os.eventfd_write(self._wake, 1)

    def _on_hang_up(self, number: int, frame: Any) -> None:
        self.hang_up = True
        os.eventfd_write(self._wake, 1)
