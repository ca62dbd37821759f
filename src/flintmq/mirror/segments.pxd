# Which segments of a shared queue the engine has, or gets, and which of their messages have ended. Plain records under mirror_t.lock, but for
# what is said to be atomic.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t

cdef enum:
    PLACES_WORDS = 8            # of ROW_PLACES bits
    MESSAGE_OVERHEAD = 64       # bytes that a message counts beside its body

cdef enum:                      # row_t.state
    ROW_SETTLED = 1             # its row is in the engine, and so are all of the batches before
    ROW_DIRTY = 2               # what ended is not written
    ROW_LISTED = 4              # on mirror_t.ended
    ROW_ENDS = 8                # the engine has a row of its ends
    ROW_WANTED = 16             # on mirror_t.wanted: somebody needs contents of it
    ROW_MAKING = 32             # its slots are looked at; it may become shorter

cdef struct row_t:
    uint64_t first              # index of its first place
    uint32_t level
    uint32_t places
    uint32_t live               # messages that have not ended
    uint32_t state              # ROW_*
    uint64_t size               # bodies and overhead of the messages in the engine's row
    uint64_t live_size          # ... of those that have not ended
    row_t *next_ended           # links
    row_t *next_wanted
    uint64_t ended[PLACES_WORDS]

cdef struct lane_t:             # one level
    row_t **rows                # by index, from rows[start]
    uint32_t start
    uint32_t count
    uint32_t room
    uint64_t sent               # last index that is in a batch
    uint64_t settled            # atomic: last index whose batch, with all before, is in the engine

cdef enum:                      # mirror_outcome
    MIRROR_WAITS = 0
    MIRROR_SETTLED = 1
    MIRROR_LOST = 2             # the node owns the queue no more: nobody knows what became of it

cdef struct allowance_t:        # what the queues of one virtual host may have waiting for the engine; never freed before the port
    uint64_t bytes              # atomic
    uint64_t bytes_max
    uint32_t rests              # atomic: 0: the engine has room; 1: publishers are to wait; 2: no message may come

cdef struct hub_t
cdef struct mirror_t:           # of one shared queue, on the node that owns it
    uint32_t lock
    uint32_t told               # atomic: it is on the hub's list
    uint32_t level_count
    lane_t *lanes
    queue_t *queue              # outlives this
    hub_t *hub
    mirror_t *next_told
    row_t *ended                # with ends to write, the oldest first
    row_t *ended_last
    uint32_t ended_count
    row_t *wanted
    uint32_t lost               # atomic: the node owns the queue no more
    uint64_t waiting            # atomic: bytes of bodies and overhead that are not settled
    uint64_t bytes_max          # what may wait of this queue
    allowance_t *allowance      # ... and of its virtual host

cdef struct early_t:            # an end in a row that is being made
    uint64_t index
    uint32_t body_len

cdef struct hub_t:              # all mirrors of a node
    uint32_t lock
    int descriptor              # eventfd: readable while `told` has mirrors
    mirror_t *told
    uint32_t early_count        # under the lock of the mirror that makes a row: one of all
    early_t early[512]          # ROW_PLACES

# There is news of the queue: the service looks. Any thread.
cdef void mirror_tell(mirror_t *mirror) noexcept nogil

# Whether a message with a body of so many bytes may come: what waits for the engine is bounded. A queue of which nothing waits takes any.
# rests: as of the allowance, the highest that lets it in: 1 of publishers that can be told to wait.
cdef bint mirror_admits(mirror_t *mirror, uint32_t body_len, uint32_t rests) noexcept nogil
# What became of the message at this position: MIRROR_*.
cdef int mirror_outcome(mirror_t *mirror, uint64_t position) noexcept nogil

# --- under mirror_t.lock
# The row that has this index, NULL: none.
cdef row_t *lane_find(lane_t *lane, uint64_t index) noexcept nogil
# A new last row; NULL: no memory.
cdef row_t *lane_append(lane_t *lane, uint32_t level, uint64_t first, uint32_t places) noexcept nogil
# Takes the row out and frees it; it is on no list.
cdef void lane_remove(lane_t *lane, row_t *row) noexcept nogil
cdef void lane_free(lane_t *lane) noexcept nogil
# A message of the row ended, with its body of so many bytes. False: its place was marked as ended before.
cdef bint row_end(row_t *row, uint64_t index, uint32_t body_len) noexcept nogil
cdef bint row_has_ended(row_t *row, uint64_t index) noexcept nogil
# Something of it is to be written: onto the list, once it is settled.
cdef void mirror_soil(mirror_t *mirror, row_t *row) noexcept nogil
