"""One thread for work that follows a durable outcome and takes its time, so that the log's writer goes on.

in: callables. out: they run in order, one at a time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("flintmq.store")


class Background:
    """Threading: `run` from any thread."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name="flintmq-transactions", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Runs it soon; at once, in the caller's thread, after `stop`."""
        with self._wake:
            if not self.stopping:
                self._work.append(work)
                self._wake.notify()
                return
        self._do(work)

    def stop(self) -> None:
        """Ends the thread when everything was done."""
        with self._wake:
            self.stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._work and not self.stopping:
                    self._wake.wait()
                if not self._work:
                    return
                work = self._work.popleft()
            self._do(work)

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("internal error in the work of a transaction's outcome")
