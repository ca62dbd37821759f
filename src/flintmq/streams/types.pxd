# The records of the stream core. Plain C.
#
# Words: an *offset* numbers the messages of a stream 0, 1, 2, ...; its *position* on the queue's face is offset + 1, because position 0
# means none there. A *seat* is one consumer's end: alone it has a cursor of its own, in a group it shares the group's.
#
# Locks, outermost first: consumer.send_lock; group.lock or seat.lock; the source's own. The queue's manager lock (lists of seats and
# groups, wakes) is never taken with a group's or seat's lock held, nor the other way round.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport consumer_t, queue_t, slot_t
from flintmq.scheduler.due_clock cimport due_clock_t
from flintmq.store.stream.stream_batch cimport stream_batch_t, stream_filter_t
from flintmq.store.stream.stream_reader cimport stream_reader_t
from flintmq.store.stream.stream_source cimport source_t

cdef enum:
    GROUP_NAME_MAX = 255        # bytes: what a shortstr can hold
    SEAT_BESIDE = 64            # bytes that a seat takes beside its record, in stream_queue_t.owners

cdef enum:                      # open_t.state: what became of an offset that was delivered and is not done
    OPEN_DONE = 0               # acked or dropped: a gap that waits for its neighbours
    OPEN_HELD = 1               # in the hands of `owner`
    OPEN_READY = 2              # came back: delivered again, lowest offset first
    OPEN_DELAYED = 3            # came back, READY at due_ms
    OPEN_DEAD = 4               # over the delivery limit or refused: Python takes it to the dead-letter exchange

cdef enum:                      # open_t.reason of a dead one, besides REASON_REJECT
    DEAD_LIMIT = 100            # delivered too often

cdef struct open_t:
    uint64_t offset
    int64_t due_ms              # HELD: visible again; DELAYED: ready; 0 never. Monotonic milliseconds
    uint32_t owner              # consumer id
    uint16_t count              # deliveries so far, saturating
    uint8_t state
    uint8_t reason

cdef struct open_list_t:        # by offset, ascending, in items[start .. end); what is neither here nor at or above `next` is done
    open_t *items
    uint32_t start
    uint32_t end
    uint32_t room
    uint32_t count              # not DONE
    uint32_t held
    uint32_t ready
    uint32_t delayed
    uint32_t dead
    uint64_t ready_low          # no READY offset is lower
    int64_t due_low             # no due_ms but 0 is lower; 0: none

cdef enum:                      # cursor_t.reading
    READ_IDLE = 0
    READ_ASKED = 1              # a request is on its way to, or in, a worker: `ahead` and `place` are its
    READ_THERE = 2              # `ahead` holds what was read from `asked` on

cdef struct stream_queue_t
cdef struct group_t
cdef struct seat_t

cdef struct cursor_t:           # a place in the stream and what was read ahead of it; under its owner's lock
    stream_queue_t *stream
    group_t *group              # whose it is: one of the two
    seat_t *seat
    uint32_t *lock
    uint64_t next               # behind what `now` covers: the next offset to look at
    stream_batch_t now          # being handed out from `at` on
    uint32_t at
    bint cold                   # `now` came from the disk
    stream_batch_t ahead
    int ahead_outcome           # STREAM_*
    uint32_t reading            # READ_*
    stream_filter_t *asked_filter   # of the request
    bint stale                  # asked_filter is no longer the owner's: the request frees it, what it read is dropped
    uint64_t asked
    int64_t retry_ms            # after a failed read: not before; 0
    stream_reader_t *place
    uint64_t lost               # offsets that retention or damage took before they were delivered: not yet told in a message
    uint64_t lost_all           # atomic, as lost_upto: a lone consumer's are read without its lock
    uint64_t lost_upto          # where it went on after the last of them
    uint64_t damaged            # of these, by damage
    uint64_t cold_reads
    uint64_t cold_messages
    uint64_t failed_reads
    uint64_t io_ns              # of the reads since an actor was charged
    cursor_t *next_asked        # link of whoever keeps requests in a list (tests)

cdef struct seats_t:            # under the manager lock
    seat_t *first
    seat_t *last

cdef struct group_t:
    slot_t slot                 # first: what its deliveries show as slot
    stream_queue_t *stream
    group_t *next_group         # under the manager lock
    uint32_t lock               # all down to "members"
    uint32_t name_len
    uint8_t name[GROUP_NAME_MAX]
    stream_filter_t *filter     # NULL: everything; that of its members
    cursor_t fresh              # never delivered
    cursor_t again              # for redeliveries that are no longer in memory
    open_list_t open
    uint64_t flagged            # offsets below were perhaps delivered before a crash
    int64_t visibility_ms       # 0: no limit
    bint full                   # it waits for its oldest
    arena_t *arena              # for messages that carry x-stream-lost
    # members
    seats_t members             # that may take a message, in the order in which they are woken
    seats_t resting             # that had no credit, or were suspended, when they were to be woken: passed over until that changes
    seat_t *woken               # the one that was told last
    uint64_t looked             # members that wakes looked at
    uint32_t member_count       # atomic
    uint32_t idle               # atomic hint: some member may be on INTERESTED
    uint32_t changed            # atomic: since it was saved
    uint32_t started            # atomic: it has a place
    # figures
    uint64_t delivered
    uint64_t redelivered
    uint64_t acked
    uint64_t nacked
    uint64_t expired            # came back because their visibility time was over
    uint64_t dead               # given to the dead-letter exchange
    uint64_t dropped            # refused or over the limit, and no dead-letter exchange
    uint64_t full_waits
    uint64_t told               # of lost offsets: what Python was told

cdef struct seat_t:
    stream_queue_t *stream
    consumer_t *consumer        # NULL until it is attached
    group_t *group              # NULL: alone
    uint32_t lock               # alone: of `own`
    cursor_t own                # alone
    stream_filter_t *filter     # alone
    content_t *lent             # the content of its last delivery; under the consumer's send_lock
    int64_t visibility_ms       # -1: the group's; 0: the holder keeps its own time (leases)
    seat_t *prev                # on one of the lists of the group, or on that of lone seats of the stream: under the manager lock
    seat_t *next
    bint resting                # on group_t.resting
    arena_t *arena
    uint64_t told

# Has the cursor's request processed (cursor_read) by somebody; the cursor keeps its owner alive until then. Without locks.
ctypedef void (*ask_t)(void *context, cursor_t *cursor) noexcept nogil

cdef struct stream_queue_t:     # ops_context of the queue; lives as long as it
    slot_t slot                 # first: of deliveries to lone consumers
    queue_t *queue
    source_t source
    ask_t ask                   # NULL: read in the asking thread
    void *ask_context
    int64_t *clock              # NULL: the machine's; else milliseconds, set by a test
    due_clock_t *due            # counted; told when something of a group ends. NULL: nobody is, then time passes with the ticks
    group_t *groups             # under the manager lock
    seats_t lone
    map64_t owners              # ids of the consumers of groups; under the manager lock
    # rules
    bint dead_letters           # dead ones wait for Python; else they are dropped
    int32_t delivery_limit      # -1: none
    int64_t delay_ms            # before a nacked message comes again
    uint32_t open_max
    uint32_t batch_messages
    uint64_t batch_bytes
    # atomic figures of lone consumers
    uint64_t appended
    uint64_t refused
    uint64_t lone_acked
    uint64_t lost
    uint64_t wakes              # calls of on_visible
