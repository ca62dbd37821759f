"""Free memory of a Spark worker goes back to the system when the worker has had nothing to do for a moment.

In: beginnings and ends of tasks that read. Out: calls of glibc's malloc_trim; nothing where there is another C library.
Why: record batches of 8 MiB come and go while a task reads. A heap that gives each of them back takes a tenth more processor time (the
kernel fills the pages with zeros again), and one that keeps them holds 30 MiB for each worker of an idle session.
Invariants: while a task reads, nothing is given back; it never fails, and a process that was forked has no thread of its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator

# Seconds without a task: the next one of a query that is busy comes sooner.
IDLE_S = 1.0


def _trim() -> None:
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


class Heap:
    """Args: trim: gives back what is free; now, sleep: a clock. Threading: any."""

    def __init__(
        self, trim: Callable[[], None] = _trim, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._trim, self._now, self._sleep = trim, now, sleep
        self._lock = threading.Lock()
        self._reading = 0
        self._ended = 0.0
        # the process whose thread waits; 0: none does
        self._waits = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While a task reads."""
        with self._lock:
            self._reading += 1
        try:
            yield
        finally:
            with self._lock:
                self._reading -= 1
                self._ended = self._now()
                wanted, self._waits = self._waits != os.getpid(), os.getpid()
            if wanted:
                threading.Thread(target=self._wait, name="flintmq-heap", daemon=True).start()

    def _wait(self) -> None:
        while True:
            with self._lock:
                left_s = self._ended + IDLE_S - self._now()
                if self._reading or left_s <= 0:
                    idle = not self._reading  # else the end of that task comes here again
                    self._waits = 0
                    break
            self._sleep(left_s)
        if idle:
            self._trim()


HEAP = Heap()
