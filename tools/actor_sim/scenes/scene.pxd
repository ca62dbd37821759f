# One interleaving: an actor system, a few virtual threads that use it in all ways at once, and the model that watches.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.scheduler.actor cimport actor_system_t, actor_t, request_t

cdef enum:
    KEYS_MAX = 4
    PRODUCERS_MAX = 5
    ASKS_MAX = 160
    WORKERS_MAX_SIM = 4

cdef enum:                  # what a request does
    ASK_DONE = 0            # answered MESSAGES at once
    ASK_TAKE = 1            # takes an item of its key's store, or parks
    ASK_AGAIN = 2           # AGAIN a few times, then done
    ASK_FAIL = 3            # FAILED
    ASK_HAND = 4            # answered later, by another thread
    ASK_FILTER = 5          # FILTERED_EMPTY
    ASK_KINDS = 6

cdef enum:                  # what the threads do, as a bit set: the mix of a run
    MIX_PARK = 1            # stores, appends and wakes
    MIX_WAKE_NEXT = 2       # appends wake the oldest instead of all
    MIX_TIMES = 4           # deadlines and holds
    MIX_SUSPEND = 8
    MIX_CANCEL = 16
    MIX_RETIRE = 32
    MIX_CLOSE = 64
    MIX_FAIL = 128
    MIX_AGAIN = 256
    MIX_HAND = 512
    MIX_LONG = 1024         # requests that cost time, up to more than a quantum
    MIX_SMALL = 2048        # a mailbox of 3
    MIX_STOP = 4096         # the system is stopped while it works
    MIX_MEMORY = 8192       # allocations fail now and then
    MIX_ALL = 16383

cdef struct ask_t:          # a request and what is known of it
    request_t request       # first: the scheduler's pointer is the ask's
    scene_t *scene
    uint32_t key
    uint32_t producer
    uint32_t number         # of this producer, from 1
    uint32_t kind
    uint32_t steps          # ASK_AGAIN: still to do
    uint32_t looks
    uint32_t answers
    uint32_t outcome
    uint32_t accepted       # 0: not dispatched; 1: accepted; 2: refused
    uint32_t taken
    uint32_t handed         # waits for the answering thread
    uint32_t cancelling     # request_cancel was called
    uint32_t cancelled      # and said true
    int64_t burn_ns
    int64_t sent_ns
    int64_t answered_ns
    int64_t late_ns         # since when it is seen to be overdue

cdef struct key_t:          # one key, over all actors it has had
    actor_t *held           # a reference kept through the run; NULL: none
    uint64_t stock          # items in the store; atomic
    uint64_t appended
    uint64_t taken
    uint32_t inside         # a process() runs
    uint32_t suspensions    # tokens in force
    uint32_t starts         # processes begun since the first of them
    uint32_t closes
    uint64_t started        # dispatches begun
    uint64_t ended          # answers and refusals
    ask_t *again            # returned AGAIN: comes first
    uint32_t first_seen[PRODUCERS_MAX]      # number of the producer's last request that was looked at
    uint32_t fails          # in a row
    uint64_t looks
    uint64_t failures
    int64_t rest_until_ns   # after a failure
    int64_t late_ns         # since when this pause is seen to be over
    int64_t late_pause_ns
    # slice under way
    uint64_t slice_mark
    uint32_t slice_calls
    int64_t slice_burnt_ns
    uint32_t slice_over

cdef struct scene_t:
    actor_system_t *system
    uint32_t mix
    uint32_t keys
    uint32_t workers
    uint32_t producers
    uint32_t operations     # of each producer
    uint32_t mailbox_max
    uint32_t running        # producers not at their end
    uint32_t stopping       # the stop has begun
    uint32_t refused_busy
    uint32_t refused_closed
    uint32_t accepted
    uint32_t workers_left
    int64_t vmin
    int64_t quantum_ns
    uint64_t looks
    key_t key[KEYS_MAX]
    ask_t asks[ASKS_MAX]
    uint32_t asked
    uint32_t held           # asks in `handed`
    uint64_t suspends
    uint64_t resumes
    uint64_t resumes_stale
    uint64_t wakes
    uint64_t retires
    uint64_t failures
    uint64_t cancels

cdef struct part_t:         # what a virtual thread needs to know
    scene_t *scene
    uint32_t number

# Bodies of the virtual threads; the context is a part_t.
cdef void scene_producer(void *raw) noexcept nogil
cdef void scene_answerer(void *raw) noexcept nogil
cdef void scene_worker(void *raw) noexcept nogil
cdef void scene_timer(void *raw) noexcept nogil
