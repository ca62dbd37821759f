"""When leases end: a thread that sleeps until the first of them, so that a message is back at its time, not at the next housekeeping.

in: times at which something ends. out: calls of `give_back`, which ends what is due and says when the next is.

C1  Nothing armed is slept over: arming and going to sleep decide under the same lock.
C2  Two passes are GAP_S apart at least, however many leases end: what ends in between waits for the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("flintmq.pulls")

# seconds between two passes: a pass looks at every group (a tenth of a microsecond each, 10,000 groups at most)
GAP_S = 0.01


class LeaseClock:
    """Args: give_back(): ends what is due; returns the monotonic nanoseconds of what ends next, 0: nothing. Any thread."""

    def __init__(self, give_back: Callable[[], int]) -> None:
        self._give_back = give_back
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_ns = 0  # under _changed, as `armed_ns` tells it
        self.passes = 0

    @property
    def armed_ns(self) -> int:
        """When the next pass begins, monotonic nanoseconds; 0: nothing ends that it knows of."""
        return self._at_ns

    def start(self) -> None:
        """Without it times are noted and nothing is called."""
        self._thread = threading.Thread(target=self._run, name="flintmq-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """After it nothing is called. Again is no error."""
        with self._changed:
            self._ended.set()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def arm(self, at_ns: int) -> None:
        """Something ends at that time (0: nothing does). The earliest that was armed counts; one too many is a look for nothing."""
        if at_ns <= 0 or 0 < self._at_ns <= at_ns:  # a look without the lock: what is armed only becomes earlier, or is passed
            return
        with self._changed:
            if self._at_ns == 0 or at_ns < self._at_ns:
                self._at_ns = at_ns
                self._changed.notify()

    def _run(self) -> None:
        while self._waited():
            self.passes += 1
            try:
                self.arm(self._give_back())
            except Exception:
                log.exception("internal error: leases that are over do not go back before the next housekeeping")
            self._ended.wait(GAP_S)

    def _waited(self) -> bool:
        """Until something is due: True. False: the end."""
        with self._changed:
            while not self._ended.is_set():
                left_ns = self._at_ns - time.monotonic_ns()
                if self._at_ns and left_ns <= 0:
                    self._at_ns = 0
                    return True
                self._changed.wait(left_ns / 1e9 if self._at_ns else None)
            return False
