"""Guesses of passwords are slowed: by user and source, and by source.

in: checks that ended, right or wrong. out: whether the next check from there runs at all.

T1  A wrong password takes a token of (user, source) and one of the source; both come back with time. Without one no check runs: whoever
    asks hears "too many logins", be the password right or wrong, so that a guess learns nothing.
T2  What slows one source slows nobody else: nobody locks a user out from another address. Those whose password was verified lately do
    not come here (Users.check_cached).
T3  The table has Limits.login_failures_max entries; the one that was not used for longest makes room.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from flintmq.clock import Clock
from flintmq.config import Limits

_NS = 1_000_000_000


class Throttle:
    """Args: clock; limits. Any thread; each call is O(1)."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._max = limits.login_failures_max
        # tokens of a full bucket, and nanoseconds until one comes back
        self._of_user = limits.login_user_failures, limits.login_user_failure_s * _NS
        self._of_source = limits.login_source_failures, limits.login_source_failure_ms * 1_000_000
        self._lock = threading.Lock()
        # key -> (failures that count, monotonic ns at which that was so)
        self._failures: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self.refused_total = 0

    def refuses(self, user: str, source: str) -> bool:
        """Whether no check may run now."""
        now = self._clock.monotonic_ns()
        with self._lock:
            full = (
                self._count((user, source), self._of_user, now) >= self._of_user[0]
                or self._count(("", source), self._of_source, now) >= self._of_source[0]
            )
            self.refused_total += full
        return full

    def failed(self, user: str, source: str) -> None:
        """A check found the password wrong."""
        now = self._clock.monotonic_ns()
        with self._lock:
            for key, bucket in (((user, source), self._of_user), (("", source), self._of_source)):
                self._failures[key] = min(self._count(key, bucket, now) + 1, bucket[0]), now
                self._failures.move_to_end(key)
            while len(self._failures) > self._max:
                self._failures.popitem(last=False)

    def passed(self, user: str, source: str) -> None:
        """A check found the password right: what went wrong before was a slip."""
        with self._lock:
            self._failures.pop((user, source), None)

    def _count(self, key: tuple[str, str], bucket: tuple[int, int], now: int) -> int:
        """Failures that count still; the rest of the time to the next one that is forgiven is lost with each failure."""
        count, since = self._failures.get(key, (0, now))
        count_now = count - (now - since) // bucket[1]
        if count_now <= 0:
            self._failures.pop(key, None)
            return 0
        return count_now
