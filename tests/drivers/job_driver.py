"""Jobs of core/jobs that count their steps and advance a manual clock (tests only).

in: how many steps a job has, and what each takes. out: whose steps ran, in order, and who was told of its end.
"""

from __future__ import annotations

from cython import address, bint, cast, cclass, cfunc, exceptval, gil, nogil, p_void, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.jobs import job_add, jobs_end, jobs_run


@cfunc
@nogil
@exceptval(check=False)
def _step(argument: p_void) -> bint:
    job: pointer[counted_t] = cast(pointer[counted_t], argument)
    with gil:
        cast(JobDriver, job.driver).clock.manual_ns += job.step_ns
        cast(JobDriver, job.driver).note_step(job.number)
    job.left -= 1
    return job.left <= 0


@cfunc
@nogil
@exceptval(check=False)
def _ended(argument: p_void, done: bint) -> void:
    job: pointer[counted_t] = cast(pointer[counted_t], argument)
    with gil:
        cast(JobDriver, job.driver).note_end(job.number, done)


@cclass
class JobDriver:
    """A queue of at most 16 jobs."""

    def __init__(self):
        self.steps = []
        self.ends = []

    def note_step(self, number: c_int) -> void:
        self.steps.append(number)

    def note_end(self, number: c_int, done: bint) -> void:
        self.ends.append((number, bool(done)))

    def add(self, steps: int, step_ns: int, told: bool = True) -> int:
        """Adds a job of so many steps, each of which takes `step_ns` nanoseconds. Returns its number."""
        job: pointer[counted_t] = address(self.counted[self.count])
        job.job.step = _step
        if told:
            job.job.ended = _ended
        job.job.argument = job
        job.left = steps
        job.step_ns = step_ns
        job.number = self.count
        job.driver = cast(p_void, self)
        self.count += 1
        job_add(address(self.jobs), address(job.job))
        return job.number

    def run(self, budget_ns: int) -> None:
        """One share of a pass."""
        jobs_run(address(self.jobs), address(self.clock), self.clock.manual_ns + budget_ns)

    def end(self) -> None:
        """The loop ends."""
        jobs_end(address(self.jobs))
