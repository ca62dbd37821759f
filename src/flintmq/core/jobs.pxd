# Long work of a loop, done in slices: see jobs.py. Owned by the loop's thread; no locking.
from libc.stdint cimport int64_t, uint64_t

cdef struct job_t:            # belongs to whoever adds it, and stays in place until `ended` was called
    # One slice: work of at most some 50 us. True: nothing is left to do.
    bint (*step)(void *argument) noexcept nogil
    # Called once, and `step` is not called again. `done` False: the loop ends first. May be NULL, and may free the job.
    void (*ended)(void *argument, bint done) noexcept nogil
    void *argument
    job_t *next

cdef struct jobs_t:           # a queue of jobs; all zero is an empty one
    job_t *first
    job_t *last
    bint over                 # jobs_end was called: what is added from here on has its end at once

cdef struct turn_clock_t:     # the clock of turns and slices
    int64_t manual_ns         # negative: the monotonic clock; else the time it is (tests)

# Nanoseconds of an exact monotonic clock, or the manual time.
cdef int64_t turn_now(const turn_clock_t *clock) noexcept nogil
# Behind the others; once the loop has ended, `ended` is called with False before this returns.
cdef void job_add(jobs_t *jobs, job_t *job) noexcept nogil
# Gives the jobs slices, one after another, until the clock reaches `end_ns`; each job at most one slice more than another.
cdef void jobs_run(jobs_t *jobs, const turn_clock_t *clock, int64_t end_ns) noexcept nogil
# The loop ends: every job is told so.
cdef void jobs_end(jobs_t *jobs) noexcept nogil
