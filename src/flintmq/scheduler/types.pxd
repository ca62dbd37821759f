# Records of the scheduler: requests, actors, workers, run queue, timers, the system. actor.pxd says what they mean and who may touch them;
# the scheduler's own modules take them from here, so that none of them needs another for its declarations.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:                      # the state word of an actor; only ever changed by compare-and-swap
    STATE_CLOSED = 1            # accepts nothing any more; never taken back (a new actor takes its key)
    STATE_SCHEDULED = 2         # in the run queue, running, or pausing after a failure: exactly one of them
    STATE_SUSPEND = 4           # times the number of suspensions: is not run while there is one

cdef enum:                      # request_t.outcome; exactly one per accepted request
    OUTCOME_NONE = 0
    OUTCOME_MESSAGES = 1        # process found something
    OUTCOME_FILTERED_EMPTY = 2  # something was there, the filter took all of it away; the cursor moved
    OUTCOME_EMPTY = 3           # looked, nothing there (at once, or until the hold was over)
    OUTCOME_EXPIRED = 4         # its deadline came (or was too near) before anybody looked
    OUTCOME_INVALID = 5         # cancelled, or process found that nobody wants the answer
    OUTCOME_BUSY = 6            # mailbox full, too many parked, or no memory
    OUTCOME_FAILED = 7          # process failed
    OUTCOME_CLOSED = 8          # the actor was closed, or the system stopped
    OUTCOME_COUNT = 9

cdef enum:                      # what process() returns
    PROCESS_DONE = 0            # answered with request_answer (or handed to who will): the request must not be touched any more
    PROCESS_PARK = 1            # nothing there: wait for actor_wake; not answered. Without a hold it is answered EMPTY at once
    PROCESS_AGAIN = 2           # not finished: comes first in the actor's next slice; not answered
    PROCESS_FAILED = 3          # broken request: the scheduler answers FAILED; the actor pauses (10 ms, doubled up to 1 s)

cdef enum:                      # what actor_dispatch returns
    DISPATCH_OK = 0
    DISPATCH_BUSY = 1           # mailbox full or no memory
    DISPATCH_CLOSED = 2         # closed or retired: actor_get again gives a new one (system_dispatch does all that)

cdef enum:                      # request_t.place: where a request is; changed under the actor's lock only
    PLACE_NONE = 0
    PLACE_MAILBOX = 1
    PLACE_WAITING = 2           # parked (in waiters or woken)
    PLACE_AGAIN = 4
    PLACE_RUNNING = 5           # in process(), or being answered

cdef enum:                      # namespaces of keys: parts of the broker never share an actor by accident
    ACTORS_TEST = 0
    ACTORS_COLD = 1             # a = queue id: cold reads of ordinary queues (store/content_loader)
    ACTORS_STREAM = 2           # a = queue id, b = group or consumer id: reads of a stream
    ACTORS_PULL = 3             # a = queue id, b = group id: pull requests
    ACTORS_FLIGHT = 4           # reads of the data plane
    ACTORS_PYTHON = 5           # anything else that Python dispatches
    ACTORS_SPACES = 8

cdef enum:                      # ordering of the run queue
    POLICY_VRUNTIME = 0         # start-time fair queueing by weighted time
    POLICY_LAST_RUN = 1         # least recently run first
    POLICY_TOTAL = 2            # least time ever first
    POLICY_FIFO = 3

cdef enum:
    WEIGHT_DEFAULT = 100        # an actor of weight 200 gets twice the time of one of weight 100
    WEIGHT_MAX = 10000
    SUSPENSIONS_MAX = 8         # suspensions of one actor at once
    HISTOGRAM_SIZE = 48         # two buckets an octave, from 1 us to 17 s
    WINDOW_SECONDS = 10
    WHEEL_LEVELS = 4
    WHEEL_SLOTS = 64            # 64 ms, 4 s, 4 min, 4.6 h
    TABLE_SHARDS = 64
    WORKERS_MAX = 256

cdef struct request_t:          # by the dispatcher, zeroed, then process, answer, context and times set; alive until answered
    request_t *next             # the scheduler's
    request_t *prev
    actor_t *actor              # set by dispatch; valid until answered
    actor_system_t *system      # set by dispatch
    int (*process)(actor_t *actor, request_t *request) noexcept nogil       # on a worker; PROCESS_*
    void (*answer)(request_t *request) noexcept nogil   # worker, timer or closing thread; must neither block nor take a lock held at dispatch
    void *context               # the dispatcher's
    int64_t deadline_ns         # not looked at later than this: answered then. 0: no deadline
    int64_t hold_ns             # may stay parked until then, then EMPTY. 0: until deadline_ns (neither: parked without end). HOLD_NONE: never parks
    int64_t enqueued_ns         # set by dispatch
    uint64_t arrival            # set by dispatch: order within its actor
    uint32_t heap_place         # place in the actor's heap of deadlines, from 1; 0: not in it
    uint32_t epoch              # the actor's epoch before the last look
    uint8_t place               # PLACE_*
    uint8_t outcome             # OUTCOME_*, valid in answer()
    uint8_t looked              # process() was called at least once
    uint8_t parked              # was parked since its last look: answered EMPTY when its time is over

cdef enum:
    HOLD_NONE = -1              # pull once

cdef struct list_t:             # requests in order, doubly linked
    request_t *first
    request_t *last
    uint32_t count              # of the mailbox; lists of parked ones are not counted one by one

cdef struct histogram_t:        # counts are halved together when they add up to 4,096: the recent past weighs most
    uint16_t counts[HISTOGRAM_SIZE]
    uint32_t total

cdef struct actor_t:
    uint32_t state              # atomic
    uint32_t refs               # atomic: the table, holders, the schedule, the timer wheel; the last drop frees
    uint32_t lock               # of mailbox, waiters, woken, again, heap, suspensions
    uint32_t space              # key: ACTORS_*, a, b
    uint64_t a
    uint64_t b
    actor_system_t *system
    actor_t *table_next
    uint32_t in_table           # under the shard's lock
    uint32_t weight
    # requests
    list_t mailbox
    list_t waiters              # parked, by arrival
    list_t woken                # parked before, to be looked at again; by arrival
    request_t *again
    request_t **heap            # everything above that has a deadline or an end of hold
    uint32_t heap_count
    uint32_t heap_room
    uint64_t arrivals
    uint32_t waiting            # atomic copy of waiters.count + woken.count
    uint32_t epoch              # atomic: wakes so far
    uint32_t look_all           # atomic: a wake of all is pending
    uint32_t look_next          # atomic: a wake of the oldest is pending
    bint chain                  # the oldest waiter looks next, until one finds nothing
    uint8_t suspensions         # bit set of the slots in use
    uint32_t suspension[SUSPENSIONS_MAX]        # generation of each slot
    uint32_t generation
    # time; of the run queue (under its lock) or of the worker that runs the actor
    int64_t vrun                # weighted nanoseconds
    uint64_t total_ns           # atomic
    int64_t last_run_ns         # start of the last slice
    int64_t io_ns               # charged by the process() that runs
    int64_t idle_ns             # since when it has nothing to do
    int64_t pause_until_ns      # back-off after a failure; 0: none
    uint32_t failures           # in a row
    # timer wheel (under its lock)
    actor_t *timer_next
    actor_t *timer_prev
    int64_t armed_ns            # atomic; 0: not in the wheel
    uint32_t timer_slot
    # figures; written by the running worker, read by anybody
    uint32_t window[WINDOW_SECONDS]             # microseconds of weighted time per second; [second % WINDOW_SECONDS]
    uint16_t backlogged         # bit n: had work during the whole of the second n seconds ago
    uint32_t went_idle          # atomic: in the current second
    uint64_t sampled_ns         # total_ns at the last sample
    uint64_t served             # atomic: calls of process
    uint64_t failed             # atomic
    uint64_t woken_ns           # atomic: when the pending wake came; 0: none
    int64_t service_p50_ns      # estimate for deadlines
    histogram_t queue_wait
    histogram_t service

cdef struct run_entry_t:
    int64_t key
    uint64_t ticket             # order of becoming runnable: ties are first come, first served
    actor_t *actor

cdef struct worker_t:
    actor_system_t *system
    uint32_t number
    uint32_t signal             # futex word: 1 = go
    worker_t *idle_next         # stack of sleeping workers (under the run queue's lock)
    actor_t *running            # under the run queue's lock
    int64_t cpu_ns              # thread CPU time at the last reading
    int64_t since_cpu_ns        # time awake since then
    int64_t mark_ns             # clock when the running request began
    uint64_t slices             # atomic
    uint64_t requests           # atomic

cdef struct run_queue_t:
    uint32_t lock
    uint32_t policy             # POLICY_*
    run_entry_t *entries        # binary heap by (key, ticket)
    uint32_t count
    uint32_t room
    uint64_t ticket
    int64_t vmin                # virtual time: never goes back
    worker_t *idle              # sleeping workers
    uint32_t waking             # one worker was woken and has not looked yet
    uint32_t stopping

cdef struct timers_t:           # one hierarchical wheel for all actors; ticks of 1 ms
    uint32_t lock
    uint32_t signal             # futex word of the timer thread
    int64_t sleep_until_ns      # atomic; what the timer thread sleeps for; 0: it does not sleep
    int64_t tick                # milliseconds; everything up to it was fired
    uint32_t count
    uint64_t occupied[WHEEL_LEVELS]
    actor_t *slots[WHEEL_LEVELS][WHEEL_SLOTS]

cdef struct shard_t:
    uint32_t lock
    uint32_t count
    uint32_t mask
    actor_t **buckets

cdef struct actor_system_t:
    # settings
    uint32_t mailbox_max
    uint32_t parked_max
    uint32_t actors_max
    uint32_t worker_count
    int64_t quantum_ns
    int64_t slice_min_ns
    int64_t idle_ns             # actors idle for longer are retired; 0: never
    int64_t pause_ns
    int64_t pause_max_ns
    uint32_t manual             # the clock shows manual_ns, there are no threads
    uint64_t manual_ns          # atomic
    uint32_t stopping           # atomic
    run_queue_t queue
    timers_t timers
    shard_t shards[TABLE_SHARDS]
    worker_t *workers
    # upkeep
    int64_t sample_ns           # next sample
    uint32_t second             # samples taken
    int64_t sweep_ns            # next sweep of one shard
    uint32_t sweep_at
    uint32_t ran                # atomic: something ran since the last sample
    uint32_t quiet              # samples since something ran
    uint32_t backlogged         # actors with work during the whole of the last second
    double jain_1
    double jain_10
    double lag_1                # quanta
    double lag_10
    # figures; atomic
    uint32_t actors             # in the table
    uint32_t alive              # not freed yet: in the table or held
    uint32_t parked
    uint64_t dispatched
    uint64_t refused_busy
    uint64_t refused_closed
    uint64_t outcomes[OUTCOME_COUNT]
    uint64_t suspended
    uint64_t resumed
    uint64_t resumed_stale
    uint64_t wakes
    uint64_t wakes_spurious     # a woken waiter that found nothing
    uint64_t wakes_raced        # a wake between look and park
    uint64_t wakes_lost         # found by a timer; must stay 0
    uint64_t holds_ended        # parked until the end of the hold
    uint64_t dropped_estimate   # deadline nearer than the actor's usual service time
    uint64_t dropped_deadline   # deadline came while in the mailbox
    uint64_t dropped_parked     # too many parked
    uint64_t paused
    uint64_t created
    uint64_t retired
    histogram_t wake_wait       # wake -> look (under figures_lock)
    uint32_t figures_lock
