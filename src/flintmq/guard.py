"""A loop over many objects goes on when one of them fails.

in: one object's part of a loop. out: whether it was done; what it raised is counted by place, and said in the log.

The housekeeping of all queues must not end at the one queue whose message can't be dead-lettered: whoever walks over objects that
clients made passes each object's part through `guarded`. A fault that stays comes round with each pass, so the log has one entry for a
place and an interval, with the number of those left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from flintmq.config import Limits

log = logging.getLogger("flintmq.guard")

_INTERVAL_S = Limits().guard_log_ms / 1000


class Guard:
    """Counts and reports what `run` caught. Any thread.

    Args: interval_s: at most one log entry for a place in that time; clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float = _INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()  # place -> exceptions
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[float, int]] = {}  # place -> when the log had the last entry, and the count then

    def run(self, place: str, subject: object, function: Callable[..., Any], *args: Any) -> bool:
        """Calls `function(*args)`, one object's part of the loop `place`; `subject`: the object, for the log. False when it raised."""
        try:
            function(*args)
            return True
        except Exception as error:
            self.caught(place, subject, error)
            return False

    def caught(self, place: str, subject: object, error: Exception) -> None:
        """Counts an exception that ended one object's part, and says so if this place was quiet for long enough. `place`: a constant
        of the code: each has its line in the metrics."""
        now = self._clock()
        with self._lock:
            self.counts[place] += 1
            count = self.counts[place]
            last, before = self._logged.get(place, (-self._interval_s, 0))
            if now - last < self._interval_s:
                return
            self._logged[place] = (now, count)
        unlogged = count - before - 1
        hidden = f" ({unlogged} more like it were not logged)" if unlogged else ""
        log.error("%s: %s failed, the others go on%s", place, subject, hidden, exc_info=error)


_process = Guard()
guarded = _process.run
caught = _process.caught


def counts() -> dict[str, int]:
    """Exceptions of this process by place, for the metrics."""
    return dict(_process.counts)
