# Jobs of core/jobs with a manual clock (tests only).
from libc.stdint cimport int64_t
from flintmq.core.jobs cimport job_t, jobs_t, turn_clock_t

cdef struct counted_t:
    job_t job
    int64_t left              # steps
    int64_t step_ns           # what each takes of the clock
    int number
    void *driver

cdef class JobDriver:
    cdef jobs_t jobs
    cdef turn_clock_t clock
    cdef counted_t counted[16]
    cdef int count
    cdef readonly list steps          # numbers of the jobs whose steps ran
    cdef readonly list ends           # (number, done)
    cdef void note_step(self, int number)
    cdef void note_end(self, int number, bint done)
