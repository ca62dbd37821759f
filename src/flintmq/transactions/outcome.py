"""The reply of a command whose effect must be durable first: usable from a waiting thread and from an I/O loop.

in: one `resolve` (by the coordinator, in the log's writer thread). out: `result` for a thread, `add_callback` for a loop.

I1  It is resolved once. After a failed disk it never is: the node stops instead of answering.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from flintmq.transactions.xa_status import XaStatus

_log = logging.getLogger(__name__)


class Outcome:
    """A status that will be there when the disk has it. Threading: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status: XaStatus | None = None
        self._callbacks: list[Callable[[XaStatus], None]] = []
        self._event: threading.Event | None = None  # made by the first thread that waits: most outcomes have none

    @property
    def done(self) -> bool:
        """True once the status is known and durable."""
        return self._status is not None

    def result(self, timeout: float | None = None) -> XaStatus:
        """Waits up to `timeout` seconds (None: for ever). Never call it on an I/O loop or in a durability callback.

        Raises: TimeoutError; the command goes on and may still succeed.
        """
        with self._lock:
            if self._status is not None:
                return self._status
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        if not event.wait(timeout) or self._status is None:
            raise TimeoutError("the transaction log has not answered yet")
        return self._status

    def add_callback(self, callback: Callable[[XaStatus], None]) -> None:
        """Calls `callback(status)` once: at once if it is known, else from the log's writer thread. It must not block or raise."""
        with self._lock:
            if self._status is None:
                self._callbacks.append(callback)
                return
            status = self._status
        self._call(callback, status)

    def resolve(self, status: XaStatus) -> None:
        """Sets the status. For the coordinator. Raises: ValueError the second time."""
        with self._lock:
            if self._status is not None:
                raise ValueError("an outcome is resolved once")
            self._status = status
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            self._call(callback, status)

    @staticmethod
    def _call(callback: Callable[[XaStatus], None], status: XaStatus) -> None:
        try:
            callback(status)
        except Exception:  # a front end's bug must not stop the log's writer, which serves all others
            _log.exception("a callback of a transaction outcome failed")
