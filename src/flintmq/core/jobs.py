"""Long work in slices: purges, closes, sweeps that would hold a loop's connections if they ran in one piece (see jobs.pxd).

in: jobs, each with a step function that does a little and says whether anything is left. out: calls of the steps, in turn, for as long as
the caller allows. The loop calls `jobs_run` once a pass (net/loop.py) and does not sleep while a job waits.

I1  Jobs take turns: between two steps of one job every other job of the queue has one.
I2  `ended` is called once for each job, after its last step.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.libc.stdint import int64_t


def turn_now(clock):
    if clock.manual_ns >= 0:
        return clock.manual_ns
    return monotonic_ns()


def job_add(jobs, job):
    job.next = cython.NULL
    if jobs.first == cython.NULL:
        jobs.first = job
    else:
        jobs.last.next = job
    jobs.last = job


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _take(jobs: cython.pointer(jobs_t)) -> cython.pointer(job_t):
    job: cython.pointer(job_t) = jobs.first
    jobs.first = job.next
    return job


def jobs_run(jobs, clock, end_ns):
    job: cython.pointer(job_t)
    while jobs.first != cython.NULL and turn_now(clock) < end_ns:
        job = _take(jobs)
        if not job.step(job.argument):
            job_add(jobs, job)
        elif job.ended != cython.NULL:
            job.ended(job.argument, True)


def jobs_end(jobs):
    job: cython.pointer(job_t)
    while jobs.first != cython.NULL:
        job = _take(jobs)
        if job.ended != cython.NULL:
            job.ended(job.argument, False)
