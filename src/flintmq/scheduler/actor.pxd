# Actors: the functions that everybody outside the scheduler uses. No GIL, any thread, unless said otherwise.
#
# One actor = one serial worker of something, say a (queue, group) pair: its requests are processed one after the other, never two at
# once, in the order of their arrival; different actors run on different workers. Who runs next is the run queue's business (lines.pxd).
#
#     request_t  --actor_dispatch-->  mailbox  --worker-->  process()  --> DONE    answered
#                                        ^                            --> AGAIN   first of the next slice
#                                        |                            --> FAILED  answered FAILED, the actor pauses
#                                     actor_wake  <--  waiters  <--   --> PARK    until actor_wake, or its time is over: EMPTY
#
# A request accepted by actor_dispatch is answered exactly once: answer(request) is called with request.outcome set. From then on the
# scheduler never touches it again, so answer() may free it. A request that was NOT accepted (BUSY, CLOSED) is the caller's, unanswered.
#
# Times: nanoseconds of the system's clock (system_now; CLOCK_MONOTONIC, or the manual clock), absolute.
# Locks: table shard -> actor -> timers -> run queue; all are short spin locks, none is held over process() or answer().
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# Records and numbers, for who cimports them from here.
from flintmq.scheduler.types cimport (
    ACTORS_COLD, ACTORS_FLIGHT, ACTORS_PULL, ACTORS_PYTHON, ACTORS_SPACES, ACTORS_STREAM, ACTORS_TEST, DISPATCH_BUSY, DISPATCH_CLOSED,
    DISPATCH_OK, HISTOGRAM_SIZE, HOLD_NONE, OUTCOME_BUSY, OUTCOME_CLOSED, OUTCOME_COUNT, OUTCOME_EMPTY, OUTCOME_EXPIRED, OUTCOME_FAILED,
    OUTCOME_FILTERED_EMPTY, OUTCOME_INVALID, OUTCOME_MESSAGES, OUTCOME_NONE, PLACE_AGAIN, PLACE_MAILBOX, PLACE_NONE, PLACE_RUNNING,
    PLACE_WAITING, POLICY_FIFO, POLICY_LAST_RUN, POLICY_TOTAL, POLICY_VRUNTIME, PROCESS_AGAIN, PROCESS_DONE, PROCESS_FAILED, PROCESS_PARK,
    STATE_CLOSED, STATE_SCHEDULED, STATE_SUSPEND, SUSPENSIONS_MAX, TABLE_SHARDS, WEIGHT_DEFAULT, WEIGHT_MAX, WHEEL_LEVELS, WHEEL_SLOTS,
    WINDOW_SECONDS, WORKERS_MAX, request_t, list_t, histogram_t, actor_t, run_entry_t, worker_t, run_queue_t, timers_t, shard_t,
    actor_system_t,
)

# --- actors -----------------------------------------------------------------------------------------------------------
# The actor of a key, made if need be, with one more reference; NULL: no memory or too many actors (answer BUSY). weight 0: as it is
# (default: WEIGHT_DEFAULT). An actor that only the table knows is retired after Limits.actor_idle_ms without work.
cdef actor_t *actor_get(actor_system_t *system, uint32_t space, uint64_t a, uint64_t b, uint32_t weight) noexcept nogil
cdef void actor_incref(actor_t *actor) noexcept nogil
cdef void actor_put(actor_t *actor) noexcept nogil
# Hands a request to an actor: DISPATCH_*. O(1) (O(log n) with a deadline); never blocks, never calls process() itself.
cdef int actor_dispatch(actor_t *actor, request_t *request) noexcept nogil
# actor_get + actor_dispatch + actor_put; a retired actor is made anew.
cdef int system_dispatch(actor_system_t *system, uint32_t space, uint64_t a, uint64_t b, uint32_t weight, request_t *request) noexcept nogil
# There may be something for those who wait: all of them look again, oldest first. Call it AFTER the change is visible to process().
# O(1): lists are moved by the worker. Without waiters it costs two atomic operations.
cdef void actor_wake(actor_t *actor) noexcept nogil
# The same where all waiters wait for the same thing: the oldest looks; when it is answered the next looks; one that parks again ends it.
cdef void actor_wake_next(actor_t *actor) noexcept nogil
# Stops the actor until actor_resume(token). The token is never 0 and good for this suspension only; 0: SUSPENSIONS_MAX reached, or closed.
# A process() that runs ends; no other starts. Deadlines and holds go on being answered.
cdef uint64_t actor_suspend(actor_t *actor) noexcept nogil
# False: the token is stale (resumed before); nothing happens.
cdef bint actor_resume(actor_t *actor, uint64_t token) noexcept nogil
# Answers everything that waits with CLOSED and accepts nothing more. A process() that runs goes on to its end; only then the key is free
# for a new actor, so that the two never overlap. The caller keeps its reference.
cdef void actor_close(actor_t *actor) noexcept nogil
# Closes it if it has nothing to do and is not suspended (whoever holds references): False: it has.
cdef bint actor_retire(actor_t *actor) noexcept nogil

# --- for process() ----------------------------------------------------------------------------------------------------
# Answers a request: at most once, and only from its process() or by the receiver from there.
cdef void request_answer(request_t *request, uint8_t outcome) noexcept nogil
# Adds I/O wait (preads and the like, measured by the caller) to the cost of the running slice; CPU time of the thread is counted anyway.
cdef void actor_charge_io(actor_t *actor, int64_t ns) noexcept nogil
# True: process() of a long request should return AGAIN soon (the slice is spent, or the actor was suspended or closed).
cdef bint actor_should_yield(actor_t *actor, int64_t started_ns) noexcept nogil

# --- for dispatchers --------------------------------------------------------------------------------------------------
# The client is gone: takes the request out and answers it INVALID here and now. False: too late, it runs or was answered. The caller must
# hold a reference to the actor and know that the request is still alive, for example because its answer() does not free it. A request that
# another thread is about to dispatch is not there yet: False.
cdef bint request_cancel(request_t *request) noexcept nogil
cdef int64_t system_now(actor_system_t *system) noexcept nogil

# --- for the scheduler's own modules ----------------------------------------------------------------------------------
cdef actor_t *actor_find(actor_system_t *system, uint32_t space, uint64_t a, uint64_t b) noexcept nogil    # with a reference, or NULL
cdef bint actor_has_work(actor_t *actor) noexcept nogil                # under actor.lock
cdef bint actor_schedule(actor_t *actor) noexcept nogil                # into the run queue, if idle, open and with work
cdef void actor_arm(actor_t *actor, int64_t at_ns) noexcept nogil      # under actor.lock
cdef void actor_finish_close(actor_t *actor) noexcept nogil            # its last slice is over: out of the table
