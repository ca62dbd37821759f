# What recovery knows while it reads the message log, and its result: plain C, no GIL. recovery_read.py fills it in, recovery.py takes the result.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t
from flintmq.store.past cimport past_segment_t, past_t
from flintmq.store.vectors cimport vector_t
from flintmq.store.log.record cimport record_t

cdef enum:                      # recovery.Enqueue, .Dequeue, .Content, .Outcome; tests/store/test_recovery.py compares them
    ENQUEUE_PLAIN = 0
    ENQUEUE_COMMITTED = 1
    ENQUEUE_ROLLED_BACK = 2
    ENQUEUE_OPEN = 3
    ENQUEUE_PREPARED = 4
    ENQUEUE_UNKNOWN = 5
    DEQUEUE_PLAIN = 1
    CONTENT_PRESENT = 0
    CONTENT_BELOW_BASE = 1
    CONTENT_TORN = 2
    CONTENT_DAMAGED = 3
    OUTCOME_LIVE = 0
    OUTCOME_HELD = 1
    OUTCOME_PENDING = 2
    OUTCOME_LOST = 4

cdef enum:
    LEVEL_SHIFT = 56            # of a position
    INDEX_MASK = 0x00FFFFFFFFFFFFFF

cdef enum:                      # seen_t.flags
    SEEN_ENDED = 1              # its life ended
    SEEN_PLACE = 2              # `word` and `queue` are its one plain place
    SEEN_GONE = 4               # ... from which it was dequeued
    SEEN_EXPIRES = 8            # ... and which expires: see work_t.expiries
    SEEN_EXTRA = 16             # `word` is the number of its extra_t: several places, transactions, chunks
    SEEN_MOVED = 32             # its id is not its LSN: see work_t.moved
    SEEN_OLD = 64               # a later entry (a Message-Copy) replaced it
    SEEN_MISSING = 128          # no Message-Start was read, only what names it
    SEEN_LIVE = 256             # result
    SEEN_PAST = 1024            # a checkpoint knows it: the log behind that is read for what became of it
    SEEN_NO_SHAPE = 512         # a Message whose Message-Shape was not read: nothing says where it stood

cdef struct seen_t:             # a message: 32 bytes, ascending LSN
    uint64_t lsn                # of its Message-Start, Message or -Copy (of a missing one: of the first record that names it; so may be of SEEN_PAST)
    uint64_t word
    uint32_t bytes
    uint32_t body_len
    uint32_t queue              # number of a queue_info_t
    uint32_t flags

cdef struct extra_t:
    uint32_t first              # place_t, number + 1; 0 = none
    uint32_t last
    uint32_t names              # name_t, number + 1
    uint32_t missing            # bytes of content not read yet
    uint32_t total
    uint32_t older              # Message-Copy: seen_t that it replaces, number + 1

cdef struct seen_place_t:
    uint64_t position           # see position_waits (record.pxd): its transaction's Commit gives it
    int64_t expires_at_ms
    uint64_t enqueued_by
    uint64_t dequeued_by
    uint32_t queue
    uint32_t next               # number + 1
    uint32_t row                # of a place that waits: first row_t of its queue in the Commit, number + 1; 0 = there is none
    uint8_t enqueue             # recovery.Enqueue
    uint8_t dequeue             # recovery.Dequeue
    uint8_t outcome             # recovery.Outcome

cdef struct name_node_t:
    uint64_t tx
    uint32_t next               # number + 1

cdef struct moved_t:            # the id of a SEEN_MOVED entry, ascending index
    uint64_t index
    uint64_t id

cdef struct tx_info_t:
    uint64_t id
    uint32_t state              # recovery.Enqueue: COMMITTED ... UNKNOWN
    uint32_t first_row
    uint32_t row_count
    uint32_t references         # result: live messages that name it
    bint lost_start             # its id is behind the end of the transaction log

cdef struct row_t:              # of a Commit record
    uint64_t queue_id
    uint64_t first              # 0: it gives none
    uint64_t count
    uint32_t more               # the next row of this queue in this Commit, number + 1; 0 = none

cdef struct queue_info_t:
    uint64_t id
    uint32_t status             # recovery.Queue
    bint ended                  # Queue-End was read
    uint64_t named              # places named
    uint64_t high[1]            # highest index used on level 0
    uint64_t *levels            # 256 of them, once another level was used
    bint marked                 # a Queue-Delivered was read; the last one counts:
    uint64_t delivered[1]       # highest index of level 0 that may have been delivered
    uint64_t *delivered_levels  # 256 of them, once it said so of another level
    uint64_t purges             # result: the first of its purged runs, in order, and how many
    uint64_t purge_count
    uint64_t spans              # result: the first of its ranges that were delivered before, in order, and how many
    uint64_t span_count
    uint32_t past               # number of its past_owner_t, plus 1; 0: the checkpoint has nothing of it
    uint64_t start              # result: its entries in the array of all entries
    uint64_t count

cdef struct seen_shape_t:       # a Message-Shape
    uint64_t lsn
    uint64_t position
    uint32_t queue
    uint32_t bytes              # of its route and content header

cdef struct range_t:
    uint64_t first
    uint64_t last
    uint32_t queue

cdef struct lost_t:
    uint64_t message_id
    uint64_t queue_id           # 0: not known where it stood
    uint64_t position
    uint32_t row                # of the decision table; NO_POSITION, NO_PLACE, TAKEN

cdef enum:
    LOST_NO_POSITION = 100      # its transaction committed without a position for it
    LOST_NO_PLACE = 101         # the log is damaged behind it, and no record says where it stood
    LOST_TAKEN = 102            # another message has its position
    LOST_NO_SHAPE = 103         # the record that says where it stood does not check

# --- the result (recovery.pxd hands it out)
cdef struct live_t:             # a live message: where its content is now (Message-Start or the last Message-Copy)
    uint64_t lsn
    uint64_t id                 # equals lsn unless it was copied; 0: what stands at `lsn` is dead
    uint32_t bytes              # of its Start or Copy and its chunks, in the log; of a Message: those of its copy (shapes.pxd)
    uint32_t places             # how many places (below) it has; 0 = one plain place, not listed

cdef struct location_t:         # a place of a message that stands on several queues, or that a transaction touched
    uint64_t queue_id
    uint64_t position           # see position_waits (record.pxd): a prepared transaction gives it its position when it commits
    int64_t expires_at_ms
    uint64_t enqueued_by        # prepared transaction that wants to put it there; 0 = it is there
    uint64_t dequeued_by        # prepared transaction that wants to take it; 0 = none

cdef struct named_t:            # a record of this live message names this transaction, which stays valid as long as the message lives
    uint64_t message_id
    uint64_t tx

cdef struct gap_t:              # a place in the transaction log where no transaction begins (work_gap)
    uint64_t first
    uint64_t end                # LSN behind it

cdef struct work_t:
    past_t *past                # the checkpoint behind which the log is read; NULL: the whole log is
    const uint64_t *base        # of the scan
    const uint64_t *container_size
    uint64_t tx_tail            # transactions from this id on never became durable
    uint64_t tx_named_max       # highest transaction id that a record names
    uint64_t origin             # LSN that grain 0 begins with
    vector_t seen
    vector_t grains             # uint32: first seen_t at or behind the begin of each 4 KiB of LSNs
    vector_t moved              # moved_t
    vector_t extras
    vector_t places
    vector_t names
    vector_t txs
    vector_t rows
    vector_t queues
    vector_t ranges
    vector_t purges             # range_t: positions that Queue-Purge ended
    vector_t lost
    vector_t gaps
    vector_t shapes             # seen_shape_t of the container that is read, ascending LSN
    uint64_t last_shape         # number of the one that was named last
    map64_t moved_index         # id -> seen_t of moved ones
    map64_t expiries            # number of a seen_t + 1 -> expiry
    map64_t tx_index
    map64_t queue_index
    uint32_t last_queue         # number + 1
    bint failed                 # out of memory
    bint all_delivered          # a part of the log can't be read: a mark of deliveries may have stood there
    uint64_t malformed          # records that check and make no sense
    uint64_t unknown_kinds
    uint64_t stray              # records about places or messages that are not known
    uint64_t kinds[256]         # records by type
    # --- result of work_decide
    uint64_t live_count
    uint64_t location_count
    uint64_t name_count
    uint64_t entry_count
    uint64_t lost_count         # those beyond the array's limit, too
    uint64_t dead_count
    uint64_t kept_count         # elements of the result's `live`: live ones, and places in the log at which something died
    uint64_t homeless_count

cdef void work_init(work_t *work) noexcept nogil
cdef void work_free(work_t *work) noexcept nogil
# Frees what only reading needs; queues and the memory of `seen` stay.
cdef void work_trim(work_t *work) noexcept nogil
# Number of the queue's queue_info_t, made when it is new; -1: no memory.
cdef int64_t work_queue(work_t *work, uint64_t queue_id) noexcept nogil
# The transaction's tx_info_t, made when it is new: UNKNOWN, or OPEN when its id was never durable. NULL: no memory.
cdef tx_info_t *work_tx(work_t *work, uint64_t tx) noexcept nogil
# The record at this LSN of the transaction log says nothing, it only takes room: at a start, so that ids which the message log names are
# not given again (logs.filler). A transaction with an id from there on, up to the next record, was lost with the tail that was cut off.
cdef void work_gap(work_t *work, uint64_t lsn) noexcept nogil
cdef void work_gap_end(work_t *work, uint64_t lsn) noexcept nogil   # LSN of the next record, if it is one
# The queue's mark of deliveries begins anew; then, per level, the highest index that may have been delivered.
cdef void work_mark(work_t *work, uint32_t queue) noexcept nogil
cdef void work_mark_level(work_t *work, uint32_t queue, uint64_t level, uint64_t index) noexcept nogil
# Whether an entry counts as delivered before, after an unclean stop.
cdef bint work_delivered(work_t *work, uint32_t queue, uint64_t position) noexcept nogil
# The highest index of a level that counts as delivered, after an unclean stop; all bits: every one does.
cdef uint64_t work_mark_at(work_t *work, uint32_t queue, uint64_t level) noexcept nogil
# What the mark says, by level, without zeros at the end but for the first level.
cdef tuple work_levels(queue_info_t *queue)
cdef void work_used(work_t *work, uint32_t queue, uint64_t position) noexcept nogil
# The log tells about the entry at this position: a run of the checkpoint does not. O(log segments of the queue).
cdef void work_known(work_t *work, uint32_t queue, uint64_t position) noexcept nogil
# The segment of the checkpoint that has this position; NULL: none.
cdef past_segment_t *work_segment(work_t *work, uint32_t queue, uint64_t position) noexcept nogil
# Id of the message of an entry of `seen`; `*next` goes through `moved` along with rising entries, from 0.
cdef uint64_t seen_id(work_t *work, uint64_t index, uint64_t *next) noexcept nogil

# --- accessors: numbers of place_at are one-based, as they are stored
cdef inline seen_t *seen_at(work_t *work, uint64_t index) noexcept nogil:
    return <seen_t *>work.seen.data + index

cdef inline extra_t *extra_of(work_t *work, seen_t *entry) noexcept nogil:
    return <extra_t *>work.extras.data + entry.word

cdef inline seen_place_t *place_at(work_t *work, uint32_t number) noexcept nogil:
    return <seen_place_t *>work.places.data + (number - 1)

cdef inline queue_info_t *queue_at(work_t *work, uint32_t number) noexcept nogil:
    return <queue_info_t *>work.queues.data + number

cdef inline row_t *row_at(work_t *work, uint32_t number) noexcept nogil:
    return <row_t *>work.rows.data + number

# --- messages
# Number of the message's entry; -1: none is known. O(log of the messages in 4 KiB).
cdef int64_t seen_find(work_t *work, uint64_t message_id) noexcept nogil
# A new entry at this LSN, which is higher than that of every other; -1: no memory.
cdef int64_t seen_append(work_t *work, uint64_t lsn) noexcept nogil
# The same for an entry whose id is not its LSN.
cdef int64_t seen_append_moved(work_t *work, uint64_t lsn, uint64_t message_id) noexcept nogil
# One more place of an entry that has its extra_t; NULL: no memory.
cdef seen_place_t *seen_add_place(work_t *work, seen_t *entry, uint32_t queue, uint64_t position, int64_t expires_at_ms) noexcept nogil
# The entry's extra_t, made (with its plain place) when it has none; NULL: no memory.
cdef extra_t *seen_need_extra(work_t *work, uint64_t index) noexcept nogil
# Notes that a record of the message names the transaction.
cdef void seen_name(work_t *work, extra_t *extra, uint64_t tx) noexcept nogil
# Number + 1 of the first row of this queue in the transaction's Commit; 0 when there is none.
cdef uint32_t row_of(work_t *work, tx_info_t *info, uint64_t queue_id) noexcept nogil
# The place's position; 0: its transaction committed and gave it none. A place that waits for an outcome keeps its waiting position.
cdef uint64_t place_position(work_t *work, seen_place_t *place) noexcept nogil
