"""Long work of a loop in Python, in slices (Loop.job); what needs no Python is in core/jobs.

in: pairs (step, ended). out: calls of both on the loop's thread; a step that raises costs that work, not the loop.
"""

from __future__ import annotations

import collections

from cython import bint, cclass, void
from cython.cimports.flintmq.core.jobs import turn_now
from cython.cimports.libc.stdint import int64_t


@cclass
class Chores:
    def __cinit__(self, log: object):
        self.log = log
        self.steps = collections.deque()

    def add(self, step: object, ended: object) -> None:
        """See Loop.job."""
        if self.over:
            self._ended(ended, False)
            return
        self.steps.append((step, ended))
        self.waiting = True

    def _ended(self, ended, done):
        try:
            if ended is not None:
                ended(done)
        except Exception:
            self.log.exception("internal error at the end of a job of the loop")

    def run(self, end_ns: int64_t) -> void:
        done: bint
        while self.steps and turn_now(self.clock) < end_ns:
            step, ended = self.steps.popleft()
            try:
                done = step()
            except Exception:
                self.log.exception("internal error in a job of the loop: it is given up")
                self._ended(ended, False)
                continue
            if done:
                self._ended(ended, True)
            else:
                self.steps.append((step, ended))
        self.waiting = len(self.steps) != 0

    def end(self) -> void:
        self.over = True
        while self.steps:
            self._ended(self.steps.popleft()[1], False)
        self.waiting = False
