# A checkpoint as a start uses it: which entries its runs have, and what of them ended in the log behind it (docs/adr/0017). Plain C, no GIL,
# but for what loads it.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.index_log cimport IndexLog, index_log_t
from flintmq.store.log.log cimport log_t
from flintmq.store.vectors cimport vector_t

cdef enum:
    PAST_RUNS = 64              # runs that stay decoded

cdef struct past_segment_t:     # a segment of a queue: its entries are in a run
    uint64_t base               # index of its first slot
    uint32_t count              # slots
    uint32_t live               # entries of the run
    uint64_t bytes              # of their bodies
    uint32_t redelivered
    uint32_t spilled            # those that the run alone does not bring back: spilled ones, and those of the message list
    int64_t expiry_min
    uint64_t flagged_upto
    uint64_t run                # name of the run
    uint64_t *ended             # a bit for each slot about whose entry something else tells; NULL: none
    uint32_t ended_count
    uint32_t owner              # number of its past_owner_t
    uint32_t level
    bint touched                # its run must be read: not all of its entries come back as they stand there
    bint purged                 # a purge ended all that stood there
    bint taken                  # its entries are in Recovery's array

cdef struct past_owner_t:       # a queue
    uint64_t id
    uint64_t first              # of its segments, which stand together in the order of their positions
    uint64_t count
    bint restored               # somebody has them, or they are to be counted out

cdef struct past_container_t:
    uint64_t sequence
    uint64_t count
    uint64_t live
    uint64_t bytes

cdef struct past_listed_t:      # a message of the message list
    uint64_t lsn                # where it is
    uint64_t id
    uint32_t places
    uint32_t names
    const uint8_t *data         # the places as in a Message-Copy, then the names

cdef struct past_decoded_t:
    uint64_t segment            # number plus 1; 0: none
    uint32_t count
    restored_t *entries

cdef struct past_t:
    uint64_t begin              # LSN from which the message log is read
    vector_t segments
    vector_t owners
    map64_t owner_index         # queue id + 1 -> number
    uint64_t container_size     # of the message log
    vector_t containers         # those in which something lived, by their sequence
    vector_t listed             # by LSN
    map64_t moved               # id -> LSN, of messages that were copied forward before
    vector_t gone               # uint64: LSNs of messages that ended in the log behind
    index_log_t *runs
    uint8_t *bytes              # of a run that is read
    past_decoded_t decoded[64]
    bint unread                 # a run could not be read
    bint failed                 # no memory

# Number of the queue's past_owner_t; -1: the checkpoint has nothing of it. O(1).
cdef int64_t past_owner(past_t *past, uint64_t queue_id) noexcept nogil
# The segment that has this position; NULL: none. O(log segments of the queue).
cdef past_segment_t *past_find(past_t *past, uint32_t owner, uint64_t position) noexcept nogil
# Something else tells about the entry at this position, which is the segment's: the run does not count for it.
cdef void past_end(past_t *past, past_segment_t *segment, uint64_t position) noexcept nogil
# Whether past_end was called for it.
cdef bint past_ended(past_segment_t *segment, uint64_t position) noexcept nogil
# Where the message was when the checkpoint was written.
cdef uint64_t past_where(past_t *past, uint64_t message_id) noexcept nogil
# A message that lived then has ended.
cdef void past_gone(past_t *past, uint64_t lsn) noexcept nogil
# What the run has at this position; NULL: nothing. Valid until the next call. May wait for the disk.
cdef const restored_t *past_entry(past_t *past, past_segment_t *segment, uint64_t position) noexcept nogil
# All entries of the segment's run, those that ended among them; `*count` of them. NULL: it can't be read (`unread`, or `failed`).
# Valid until the next call. May wait for the disk.
cdef restored_t *past_run(past_t *past, past_segment_t *segment, uint32_t *count) noexcept nogil

# The first segment of the queue that ends at or behind this position; number of the one behind the last if there is none.
cdef uint64_t past_place(past_t *past, uint32_t owner, uint64_t position) noexcept nogil
# Position of the segment's first slot.
cdef uint64_t past_first(past_segment_t *segment) noexcept nogil

cdef inline past_segment_t *past_segment(past_t *past, uint64_t number) noexcept nogil:
    return <past_segment_t *>past.segments.data + number

cdef inline past_owner_t *past_owner_at(past_t *past, uint64_t number) noexcept nogil:
    return <past_owner_t *>past.owners.data + number

cdef class Past:
    cdef past_t past
    cdef readonly IndexLog reader        # of the runs: files of the index log as they stood before this start
    cdef readonly object checkpoint      # store.checkpoint.Checkpoint
    cdef readonly dict tails             # queue id -> highest index of each level
    cdef readonly dict marks             # queue id -> highest index of each level that may have been delivered
    cdef list _deaths                    # bytes of the parts
    # The message log as the checkpoint has it, and what ended behind it. The log is new; everything at or above `begin` is counted by the
    # caller, before. Log lock held. False: no memory.
    cdef bint adopt_containers(self, log_t *log)
    cdef bint adopt_ends(self, log_t *log)
