# Many entries of a queue at once, for transactions: runs that are held from the head on, and places that are reserved and published
# together. All without the GIL, in sections of a few hundred entries, so that producers and consumers get in between.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport queue_t

cdef enum:                      # run_entry_t.flags
    RUN_REDELIVERED = 1
    RUN_LOGGED = 2              # the log knows it: message_id is its id there

cdef struct run_entry_t:        # an entry that a run holds: 24 bytes
    uint64_t position
    uint64_t message_id         # 0: in memory only; of the page log when it was spilled
    uint32_t body_len
    uint16_t deliveries         # earlier ones
    uint8_t flags
    uint8_t zero

cdef struct run_t:
    run_entry_t *entries        # in the order in which they were taken
    uint64_t count
    uint64_t room
    uint64_t bytes              # of bodies
    uint32_t ranges             # runs of neighbouring positions

cdef struct placed_t:           # a message that enters a queue: 40 bytes
    uint64_t message_id         # 0: it has none any more
    uint64_t position           # 0: not reserved yet
    int64_t expires_at_ms       # 0: never
    uint32_t body_len
    uint32_t number             # its waiting number (docs/FORMAT.md)
    int32_t priority            # -1: not set
    uint32_t zero

cdef struct holding_t:          # one section of run_hold, under the list's lock
    run_t *run
    uint64_t upto
    uint64_t *messages
    uint64_t *bytes_left
    bint alone
    uint32_t ranges_max
    uint32_t taken
    uint32_t passed
    uint32_t cold
    uint64_t bytes
    int outcome                 # HOLD_MORE while it goes on

cdef enum:                      # what run_hold came to
    HOLD_MORE = 0               # call again: there may be more
    HOLD_END = 1                # nothing more is available (below `upto`)
    HOLD_FULL = 2               # a limit
    HOLD_NO_MEMORY = 3
    HOLD_PAGED = 4              # the next entries left memory: page them in (paging.pxd), then call again

# Acquires available entries from `*cursor` on for the broker, at most a few hundred each call, and appends them to the run. `*messages` and `*bytes`: what
# may still be taken, lowered; `alone`: the first one may be larger than that. upto: last position, 0 any.
cdef int run_hold(queue_t *queue, run_t *run, uint64_t *cursor, uint64_t upto, uint64_t *messages, uint64_t *bytes_left, bint alone, uint32_t ranges_max) noexcept nogil
# Logged entries at first..first+count-1 that recovery put back held become the run's. False: no memory.
cdef bint run_adopt(queue_t *queue, run_t *run, uint64_t first, uint64_t count) noexcept nogil
# Appends those of the entries at `positions` that are available or acquired, and leaves them as they are: for a look, nothing is held. False: no memory.
cdef bint run_look(queue_t *queue, run_t *run, const uint64_t *positions, uint64_t count) noexcept nogil
# Held entries are available again in their places, flagged redelivered and counted.
cdef void run_release(queue_t *queue, run_entry_t *entries, uint64_t count) noexcept nogil
# Held entries go; the log was told of those that it knows.
cdef void run_settle(queue_t *queue, run_entry_t *entries, uint64_t count) noexcept nogil
# Reserves a place for each, a held entry without a message, in this order, and writes its position. Returns how many: fewer when the queue is deleted or
# memory is exhausted.
cdef uint64_t run_reserve(queue_t *queue, placed_t *placed, uint64_t count) noexcept nogil
# Reserved places get their messages, which are in the log only, and are available.
cdef void run_publish(queue_t *queue, placed_t *placed, uint64_t count) noexcept nogil
# The level that a message of this priority (-1: none) goes to.
cdef uint32_t run_level(queue_t *queue, int32_t priority) noexcept nogil

# Entries of one queue that a transaction holds.
cdef class Run:
    cdef readonly QueueHandle handle
    cdef run_t run
    cdef readonly uint64_t acquired_us   # wall clock of the first acquire, 0 = not known
    cdef uint64_t appended      # tail of the message log when the last one was taken: all of them are below
    cdef object lock            # of `run` while it grows
