"""Jobs of core/jobs that count their steps and advance a manual clock (tests only).

in: how many steps a job has, and what each takes. out: whose steps ran, in order, and who was told of its end.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.jobs import job_add, jobs_end, jobs_run


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _step(argument: cython.p_void) -> cython.bint:
    job: cython.pointer(counted_t) = cython.cast(cython.pointer(counted_t), argument)
    with cython.gil:
        cython.cast(JobDriver, job.driver).clock.manual_ns += job.step_ns
        cython.cast(JobDriver, job.driver).note_step(job.number)
    job.left -= 1
    return job.left <= 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ended(argument: cython.p_void, done: cython.bint) -> cython.void:
    job: cython.pointer(counted_t) = cython.cast(cython.pointer(counted_t), argument)
    with cython.gil:
        cython.cast(JobDriver, job.driver).note_end(job.number, done)


@cython.cclass
class JobDriver:
    """A queue of at most 16 jobs."""

    def __init__(self):
        self.steps = []
        self.ends = []

    def note_step(self, number):
        self.steps.append(number)

    def note_end(self, number, done):
        self.ends.append((number, bool(done)))

    def add(self, steps: int, step_ns: int, told: bool = True) -> int:
        """Adds a job of so many steps, each of which takes `step_ns` nanoseconds. Returns its number."""
        job: cython.pointer(counted_t) = cython.address(self.counted[self.count])
        job.job.step = _step
        if told:
            job.job.ended = _ended
        job.job.argument = job
        job.left = steps
        job.step_ns = step_ns
        job.number = self.count
        job.driver = cython.cast(cython.p_void, self)
        self.count += 1
        job_add(cython.address(self.jobs), cython.address(job.job))
        return job.number

    def run(self, budget_ns: int) -> None:
        """One share of a pass."""
        jobs_run(cython.address(self.jobs), cython.address(self.clock), self.clock.manual_ns + budget_ns)

    def end(self) -> None:
        """The loop ends."""
        jobs_end(cython.address(self.jobs))
