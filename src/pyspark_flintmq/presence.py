"""The thread beside a queue's reader: it tells the broker that the reader works, and commits a batch as soon as Spark's commit log has it.

In: a claim, a commit log or none. Out: calls of the data plane between those of Spark, which come once in a trigger's interval.
Invariants:
  * it commits what Spark's commit log has, and nothing else: the log is read, never guessed;
  * it ends with the reader, or when the process that started the reader is gone: a reader that nobody asks any more must not look alive;
  * its errors stop nothing: Spark's next call makes the same call, and explains.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark_flintmq.claim import Claim
from pyspark_flintmq.commit_log import CommitLog

log = logging.getLogger(__name__)

# Seconds between two signs of life. The broker counts a reader as working for `subscription_alive_ms`.
BEAT_S = 1.0
# Seconds that the end of a reader waits for a call of the thread that is under way: a broker that is away is not waited for.
END_S = 2.0
# Refusals after which there is nothing left to tell: another reader has the subscription, or it is gone.
_OVER = ("FENCED", "NOT_FOUND")


class Presence:
    """See module. Threading: `step` by its own thread or, in tests, by the caller; `stop` by the reader's."""

    def __init__(self, claim: Claim, commits: CommitLog | None, now: Callable[[], float] = time.monotonic) -> None:
        self._claim = claim
        self._commits = commits
        self._now = now
        self._beaten = float("-inf")
        self._parent = os.getppid()
        self._answered = True
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. A process that forks afterwards has none."""
        self._thread = threading.Thread(target=self._run, name="flintmq-presence", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, looks into the commit log once more, and says good-bye. Never an error."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive() or not self._answered:
                return
        self._quietly(self._commit)
        self._quietly(lambda: self._claim.beat(leave=True))

    def step(self) -> bool:
        """One look. False: there is nothing to come back for."""
        if os.getppid() != self._parent:
            return False
        if self._now() - self._beaten >= BEAT_S:
            self._beaten = self._now()
            if not self._quietly(self._claim.beat):
                return False
        return self._quietly(self._commit)

    def _run(self) -> None:
        pause = BEAT_S if self._commits is None else self._commits.pause_s
        while not self._ending.wait(pause) and self.step():
            pass

    def _commit(self) -> None:
        end = self._claim.awaited()
        if end is not None and self._commits is not None and self._commits.has(end):
            self._claim.spark_has(end)

    def _quietly(self, call: Callable[[], Any]) -> bool:
        """Whether it makes sense to go on."""
        try:
            call()
            self._answered = True
        except Exception as error:
            log.info("%s", error)
            self._answered = False
            return getattr(error, "code", "") not in _OVER
        return True
