"""The thread beside a queue's reader: it tells the broker that the reader works, and commits a batch as soon as Spark's commit log has it.

In: a claim, a commit log or a way to find it. Out: calls of the data plane between those of Spark, which come once in a trigger's interval.
Invariants:
  * it commits what Spark's commit log has, and nothing else: the log is read, never guessed, and it is this query's: its offset is in it;
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
from pyspark_flintmq.commit_log import PAUSE_S, CommitLog
from pyspark_flintmq.found_checkpoint import Finder

log = logging.getLogger(__name__)

# Seconds between two signs of life. The broker counts a reader as working for `subscription_alive_ms`.
BEAT_S = 1.0
# Seconds that the end of a reader waits for a call of the thread that is under way: a broker that is away is not waited for.
END_S = 2.0
# The search for the checkpoint. Seconds between two looks: Spark's files are open for 8 ms and more, once it has the batch's offset and at
# the batch's end. For how long: a batch may take minutes, and on a busy machine its offset seconds. It takes two hundredths of a processor.
SEARCH_S, SEARCH_MAX_S = 0.004, 600.0
# Batches after which the search ends: what was not found until then is not on this machine.
BATCHES_MAX = 10
# Refusals after which there is nothing left to tell: another reader has the subscription, or it is gone.
_OVER = ("FENCED", "NOT_FOUND")


class Presence:
    """See module. Threading: `step` by its own thread or, in tests, by the caller; `stir` and `stop` by the reader's."""

    def __init__(
        self, claim: Claim, commits: CommitLog | None, now: Callable[[], float] = time.monotonic, finder: Finder | None = None
    ) -> None:
        self._claim = claim
        self._commits = commits
        self._now = now
        self._beaten = float("-inf")
        self._parent = os.getppid()
        self._finder = (finder or Finder(self._parent)) if commits is None else None
        # The searched offset, since when, how many batches were there before, and when the logs of all places were read.
        self._sought: dict[str, Any] | None = None
        self._since = 0.0
        self._batches = 0
        self._read = 0.0
        self._answered = True
        self._ending = False
        self._stirred = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. A process that forks afterwards has none."""
        self._thread = threading.Thread(target=self._run, name="flintmq-presence", daemon=True)
        self._thread.start()

    def stir(self) -> None:
        """Spark was given a batch, or goes to work on it: the thread looks at once."""
        self._stirred.set()

    def stop(self) -> None:
        """Ends the thread, looks into the commit log once more, and says good-bye. Never an error."""
        self._ending = True
        self._stirred.set()
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
        self._seek()
        if self._now() - self._beaten >= BEAT_S:
            self._beaten = self._now()
            if not self._quietly(self._claim.beat):
                return False
        return self._quietly(self._commit)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look, unless something is new."""
        if self._commits is not None:
            return self._commits.pause_s
        if self._finder is None or self._claim.prepared() is None or self._now() - self._since >= SEARCH_MAX_S:
            return BEAT_S
        return SEARCH_S

    def _run(self) -> None:
        while True:
            self._stirred.wait(self.pause_s)
            self._stirred.clear()
            if self._ending or not self.step():
                return

    def _seek(self) -> None:
        """Looks for the checkpoint while Spark writes to it."""
        finder, end = self._finder, self._claim.prepared()
        if finder is None or end is None:
            return
        if end != self._sought:
            self._sought, self._since = end, self._now()
            self._batches += 1
        places = len(finder.places)
        if not finder.look() or self._batches > BATCHES_MAX:
            log.info("the checkpoint was not found: batches are committed when Spark asks for the next one")
            self._finder = None
            return
        # The logs of all places: what stands in them is complete a moment after the file was seen.
        if len(finder.places) == places and self._now() - self._read < PAUSE_S:
            return
        self._read = self._now()
        for place in finder.places:
            candidate = CommitLog(place)
            try:
                known = candidate.knows(end)
            except (OSError, ValueError):
                continue
            if known:
                log.info("the query's checkpoint is %s", place)
                self._commits, self._finder = candidate, None
                return

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
