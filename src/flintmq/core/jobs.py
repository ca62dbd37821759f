"""Long work in slices: purges, closes, sweeps that would hold a loop's connections if they ran in one piece (see jobs.pxd).

in: jobs, each with a step function that does a little and says whether anything is left. out: calls of the steps, in turn, for as long as
the caller allows. The loop calls `jobs_run` once a pass (net/loop.py) and does not sleep while a job waits.

I1  Jobs take turns: between two steps of one job every other job of the queue has one.
I2  `ended` is called once for each job, after its last step.
I3  The last job has none behind it.
I4  A job that is added after jobs_end is ended at once: nobody would ever run it.
"""

from __future__ import annotations

import cython
from cython import NULL, cfunc, exceptval, inline, nogil, pointer, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.libc.stdint import int64_t


def turn_now(clock: pointer[cython.const[turn_clock_t]]) -> int64_t:
    if clock.manual_ns >= 0:
        return clock.manual_ns
    return monotonic_ns()


def job_add(jobs: pointer[jobs_t], job: pointer[job_t]) -> void:
    if jobs.over:
        if job.ended != NULL:
            job.ended(job.argument, False)
        return
    job.next = NULL
    if jobs.first == NULL:
        jobs.first = job
    else:
        check(jobs.last.next == NULL, b"jobs I3 nothing stands behind the last job", 0, 0)
        jobs.last.next = job
    jobs.last = job


@cfunc
@inline
@nogil
@exceptval(check=False)
def _take(jobs: pointer[jobs_t]) -> pointer[job_t]:
    job: pointer[job_t] = jobs.first
    jobs.first = job.next
    check(jobs.first != NULL or job == jobs.last, b"jobs I3 a queue ends with its last job", 0, 0)
    return job


def jobs_run(jobs: pointer[jobs_t], clock: pointer[cython.const[turn_clock_t]], end_ns: int64_t) -> void:
    job: pointer[job_t]
    while jobs.first != NULL and turn_now(clock) < end_ns:
        job = _take(jobs)
        if not job.step(job.argument):
            job_add(jobs, job)
        elif job.ended != NULL:
            job.ended(job.argument, True)


def jobs_end(jobs: pointer[jobs_t]) -> void:
    job: pointer[job_t]
    jobs.over = True
    while jobs.first != NULL:
        job = _take(jobs)
        if job.ended != NULL:
            job.ended(job.argument, False)
