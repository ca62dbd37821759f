# The records of the queue core. All are plain C: no Python object, no GIL. Functions over them stand in entry_list.pxd,
# consumer_manager.pxd and queue_core.pxd.
#
# Words used here: a *position* is 64 bits: the list's level (0 = served first) in the top 8 bits, the index inside the level
# in the lower 56. It orders entries as they are delivered, is assigned when the entry becomes visible and is never reused.
# Position 0 means "none": indices start at 1. A standard queue has one level, so its positions are 1, 2, 3, ...
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.selectors.program cimport program_t

cdef extern from *:             # the two parts of a position
    """
    #ifndef FLINTMQ_POSITION_H
    #define FLINTMQ_POSITION_H
    #define FLINTMQ_INDEX_MASK UINT64_C(0x00FFFFFFFFFFFFFF)
    #define FLINTMQ_LEVEL_SHIFT 56
    #endif
    """
    const uint64_t INDEX_MASK "FLINTMQ_INDEX_MASK"
    const uint32_t LEVEL_SHIFT "FLINTMQ_LEVEL_SHIFT"

cdef enum:                      # entry states, bits 0..2 of slot_t.state
    ENTRY_EMPTY = 0             # nothing was ever put here (or a gap that recovery left)
    ENTRY_AVAILABLE = 1
    ENTRY_ACQUIRED = 2          # by the consumer in the owner field, by the broker when that is 0
    ENTRY_DEQUEUED = 3
    ENTRY_DELETED = 4
    ENTRY_PAGED = 5             # its segment is becoming a shell: look at segment_t.slots again (paging.pxd)

cdef enum:                      # more bits of slot_t.state
    ENTRY_STATE_MASK = 7
    ENTRY_UNSTEALABLE = 8       # acquired and being sent (or its settlement is under way): the broker must not take it away
    ENTRY_REDELIVERED = 16      # was delivered before, or may have been before a crash
    ENTRY_NOT_RESIDENT = 32     # content is not in memory: delivery parks and asks the content port
    ENTRY_BUSY = 64             # someone reads or swaps the content; every other transition waits a few instructions
    ENTRY_LOGGED = 128          # the store port was told of it, so it will be told of its dequeue
    ENTRY_LOADING = 16777216    # (bit 24) its content was asked for, and no answer came yet
    ENTRY_HELD = 33554432       # (bit 25) of a transaction that is not committed: acquired by the broker, counted nowhere
    ENTRY_ASIDE = 67108864      # (bit 26) not resident and out of the window's account: the broker keeps it for long
    ENTRY_FAILED = 134217728    # (bit 27) its content can't be read
    ENTRY_PARKED = 268435456    # (bit 28) somebody wants its content: to be told when it is there
    ENTRY_STUB = 536870912      # (bit 29) no entry: stands for all those of a shell (segment_t.stub). Nobody acquires it
    ENTRY_COUNT_SHIFT = 8       # bits 8..23: delivery count, saturating
    ENTRY_OWNER_SHIFT = 32      # bits 32..63: consumer id

cdef enum:                      # reasons of a dequeue (also in the log, issue "store")
    REASON_ACK = 1
    REASON_REJECT = 2
    REASON_EXPIRE = 3
    REASON_DROP = 4
    REASON_PURGE = 5
    REASON_MOVE = 6
    REASONS = 7                 # list_t.ended has one count for each; REASON_NONE: with its queue
    REASON_NONE = 0

cdef enum:                      # restored_t.flags
    RESTORED_REDELIVERED = 1
    RESTORED_HELD = 2           # of a transaction in doubt: as queue_add_held leaves it
    RESTORED_UNSIZED = 4        # body_len is not known
    RESTORED_LISTED = 8         # in a run of a checkpoint: of the message list, which says whether it stands
    RESTORED_COUNT_SHIFT = 16   # bits 16..31: delivery count

cdef enum:
    MESSAGE_SPILLED_BIT = 63    # this bit of slot_t.message_id: an id of the page log (transient content past the hot window)
    MESSAGE_STUB_BIT = 62       # this bit of the id that log_port_t.load gets: a shell is to be made a segment again

cdef struct slot_t:             # 24 bytes, no Python object
    uint64_t state              # compare-and-swap word: state, flags, delivery count, owner
    uint64_t message_id         # persistence id given by the store, or the id of spilled content; 0 for a message in memory only
    content_t *content          # when not resident: not a pointer but the body's length, see slot_body_len

cdef struct restored_t:         # one entry that recovery found
    uint64_t position
    uint64_t message_id
    int64_t expires_at_ms       # 0 = never
    uint32_t body_len
    uint32_t flags              # RESTORED_*

cdef enum:
    SWEPT_MAX = 256             # entries that a sweep tells the log of at once: it holds the log's lock for some microseconds

cdef struct swept_t:            # one logged entry that a sweep ends
    uint64_t position
    uint64_t message_id         # 0: of a mirrored queue, and in no batch yet
    uint32_t body_len

cdef struct credit_t:           # messages; limit 0 = unlimited
    uint32_t limit
    uint32_t used               # atomic: delivered and not settled

cdef struct delivery_t:         # what one successful pull hands to the session
    slot_t *slot                # stable while the entry is acquired
    content_t *content          # borrowed from the slot; for a browser the receiver owns one reference
    uint64_t position
    uint64_t message_id         # of the store, 0 in memory only: where to read the content when `content` is NULL (broker's takes)
    uint32_t delivery_count     # earlier deliveries
    bint redelivered
    bint rotate                 # other ready consumers of this priority exist: end the turn after this message. Of a queue_pull that took
                                # nothing: it stopped at its limit, and the next pass of the loop asks again

cdef struct segment_t:          # a run of slots of one level; see entry_list.py
    uint64_t base               # index of slots[0]
    uint32_t count              # slots
    uint32_t live               # entries not deleted, under the list lock
    uint32_t level
    uint32_t mapped             # bytes of its slots when they are mmapped, 0 when they were calloced with it
    segment_t *next             # atomic; kept when the segment is unlinked, so a reader inside walks on
    segment_t *prev             # link under the list lock; of retired segments: the next retired one
    int64_t *expiry             # column of expiry times (ms, 0 never); NULL while no entry of the segment expires
    uint16_t *due               # behind that column: its slots, in a line or as a heap (expiries.pxd)
    uint16_t due_count
    uint16_t due_first          # where the line begins; DUE_HEAP: they are a heap, from 0 on
    uint32_t due_place          # in list_t.due, plus 1; 0: nothing in it expires
    int64_t expiry_min          # the time of the slot that expires first
    slot_t *slots               # atomic; NULL: it is a shell, its entries are in a run of the index log (paging.pxd)
    slot_t stub                 # of a shell: available and cold to whoever scans; its flags say whether somebody asked for the entries
    # --- of a shell, under the list lock
    uint64_t run                # LSN of the run that has its entries; 0: they are on their way out of memory
    uint64_t bytes              # of the bodies of its entries
    uint32_t redelivered        # its entries that were delivered before
    uint32_t spilled            # those that a restart forgets: their contents are in the page log
    uint64_t flagged_upto       # index up to which all of them may have been, before a crash; 0: none
    bint burying                # a purge ends them: they come back no more
    uint32_t rested             # of a segment: looks that the pager passes it over at

cdef struct place_t:            # a reader's segment between two calls; good while no segment was unlinked since
    segment_t *segment
    uint64_t generation

cdef struct span_t:             # indices of one level, both ends included
    uint64_t first
    uint64_t last

cdef struct level_t:            # one sub-list
    uint64_t tail               # atomic: last index in use; 0 = none yet
    uint64_t floor              # atomic: an available entry with a lower index is in one of `spans`; changed under the list lock
    span_t *spans               # where entries below the floor came back: disjoint, rising, from spans[span_start]; under the list lock
    uint32_t span_start
    uint32_t span_count         # atomic
    uint32_t span_room
    uint64_t live
    segment_t *first
    segment_t *last
    segment_t *hint             # where the last settlement was
    segment_t **directory       # all segments in order, from directory[start]
    uint32_t start
    uint32_t count
    uint32_t capacity
    uint32_t grown              # small segments so far, at most 2: then the next ones are large
    uint32_t paging_cursor      # place in the directory at which the pager's walk goes on; 0: none is under way. Its own
    # --- how far deliveries went (delivered.pxd), under queue_t.delivered_lock; all bits: this queue keeps no mark
    uint64_t granted            # atomic index: up to here an entry is delivered without asking
    uint64_t ahead              # atomic index: an enqueue above it looks whether the mark is to go first
    uint64_t covered            # up to here a crash finds every logged entry marked, or not at all
    uint64_t reserved           # what the last mark in the log says
    uint64_t reserved_at        # LSN behind the record that said so first
    uint32_t step               # indexes that a mark is ahead of the deliveries
    uint32_t reserved_ms        # when it was raised

cdef enum:
    BEHIND_RING = 4             # see list_t.behind_ring

cdef struct list_t
cdef struct queue_t

# What differs between kinds of lists: the extension point (docs/QUEUE_CORE.md, "Kinds of entry lists"; code outside this package: queue/kinds).
# Every function: any thread, no GIL, none of the queue's locks held.
cdef struct list_ops_t:
    uint32_t (*level_of)(list_t *entries, content_t *content) noexcept nogil     # where an arrival goes; content may be NULL
    int (*compare)(uint64_t left, uint64_t right) noexcept nogil                 # below zero: `left` is served first
    int (*priorities)(list_t *entries) noexcept nogil                            # the seed's getPriorities
    bint in_order               # an arrival is always after everything that is there, and nobody wants to know of it: the two below are NULL
    # An entry became available for the first time. Nobody was woken for it yet. NULL: nobody wants to know.
    void (*arrived)(queue_t *queue, uint64_t position, content_t *content) noexcept nogil
    # An entry was given back. NULL: nobody wants to know.
    void (*returned)(queue_t *queue, uint64_t position) noexcept nogil
    void (*destroy)(list_t *entries) noexcept nogil                              # with the list; NULL: nothing to do
    # Gives memory back that fewer `entries` need no more, in `most` steps. True: there is more to do. NULL: there is nothing to give.
    bint (*upkeep)(queue_t *queue, uint64_t entries, uint32_t most) noexcept nogil

cdef struct list_t:             # QueueEntryList: levels of segments, served in position order
    uint32_t lock               # adding, settling, segments; innermost lock of the queue core
    uint32_t level_count
    uint32_t wanted             # atomic: consumers to wake for an arrival (INTERESTED + NON_ACQUIRING); read under `lock`
    uint32_t closed             # no more entries
    level_t *levels
    level_t level0              # the only level of a standard list
    list_ops_t *ops
    void *kind                  # the kind's own; NULL in a standard or priority list
    uint64_t generation         # atomic: segments unlinked so far
    uint64_t enqueued           # atomic figures, written under `lock`
    uint64_t enqueued_bytes
    uint64_t behind             # events after which an entry may be available before a reader's pointer: it came back, or at a higher level
    uint64_t behind_ring[BEHIND_RING]  # atomic: lowest positions of the latest of them
    uint64_t passed             # slots that scans passed over without finding one: what holes cost (about, not exact between threads)
    uint64_t released           # entries that became available again
    uint64_t released_bytes
    uint64_t dequeued
    uint64_t dequeued_bytes
    uint64_t ended[REASONS]     # of `dequeued`, those that ended otherwise than by an ack: by REASON_*
    uint64_t taken              # acquired by expiry
    uint64_t taken_bytes
    uint64_t enqueued_before    # at the last housekeeping
    uint64_t resident_bytes     # atomic, written under `lock`: bytes of bodies in memory, of live entries (held and acquired ones too)
    uint64_t cold_count         # atomic, written under `lock`: live entries that are not resident and not ENTRY_ASIDE
    uint64_t failed             # atomic, written under `lock`: entries whose content can't be read
    segment_t *retired          # unlinked, not yet freed
    slot_t *retired_slots       # of segments that became shells, not yet freed; linked by slots[0].content
    uint64_t shells             # atomic, written under `lock`: segments without slots
    uint64_t shell_entries      # ... and their live entries
    uint32_t retired_count
    uint32_t reclaim_after      # retired segments to wait for before the next try, after one that found a reader inside
    int level_rule
    segment_t *spare            # one zeroed large segment
    int64_t expiry_min          # atomic: lower bound of the next expiry; 0 = nothing expires
    int64_t expiry_now          # the latest time that expired entries were taken for
    segment_t **due             # a heap of the segments in which something expires, the earliest first (expiries.pxd)
    uint32_t due_count
    uint32_t due_size
    segment_t *due_shell        # has expired entries, and was asked for; not in the heap meanwhile

# Where the dead letters of a queue go: the head of what channel/letters.pxd keeps.
cdef struct letters_t:
    uint32_t refs               # atomic
    void (*destroy)(letters_t *letters) noexcept nogil

cdef struct found_t:            # what a scan found
    slot_t *slot
    uint64_t position
    uint64_t end                # nothing found: the last position looked at; a stub: the last one of its shell
    uint32_t skipped            # entries passed on the way
    bint returned               # of an attempt to acquire (queue/pull.py)

cdef struct consumer_t
cdef struct target_t

cdef struct original_t:         # a logged entry that ends with its dead letter
    queue_t *queue
    uint64_t position
    uint64_t message_id
    uint32_t owner              # the holder: consumer id, 0 the broker
    uint32_t delivery_count
    int reason                  # REASON_*
    uint64_t delivered_us       # wall clock of the delivery, 0 = not known
    bint ended                  # the log has its end: queue_forget_logged is due

# Called when a queue has work for the target (steps 3-6 of seed 004): schedules target, session, connection. Any thread.
# It runs under the manager lock: it must be short, must not block and must not call the queue core.
ctypedef void (*notify_work_t)(target_t *target) noexcept nogil
# The interest predicate of a consumer (selectors later): true when it wants the message. Any thread; must not block.
ctypedef bint (*interest_t)(void *context, content_t *content) noexcept nogil
# The content port: asks for the content of a parked entry; the answer is queue_content_loaded() for it, and perhaps for some
# that follow it in the queue. `message_id` 0: nobody is parked yet, the next cold entry from `position` on will soon be wanted.
# Any thread; must not block.
ctypedef void (*load_content_t)(void *context, queue_t *queue, uint64_t position, uint64_t message_id) noexcept nogil
# The store port, told of every enqueue and dequeue of a logged message (durable queue, persistent message); returns an LSN.
# Enqueue writes the content when it is the message's first queue, and sets slot.message_id and content.message_id.
ctypedef uint64_t (*log_enqueue_t)(void *context, queue_t *queue, uint64_t position, slot_t *slot, int64_t expires_at_ms) noexcept nogil
# As log_enqueue_t, for a dead letter: the end of its original stands in the same commit block as the enqueue, so that one of the two is in the
# log after a crash, and not both. Sets original.ended when it is written.
ctypedef uint64_t (*log_letter_t)(void *context, queue_t *queue, uint64_t position, slot_t *slot, int64_t expires_at_ms, original_t *original) noexcept nogil
# owner: consumer id, 0 the broker; delivered_us: wall clock of the delivery, 0 = not known.
ctypedef uint64_t (*log_dequeue_t)(void *context, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) noexcept nogil
# A logged entry has come back `count` times: kept over a restart, but for the last moments before a crash. Not waited for. False: the log
# refuses, or there is no memory.
ctypedef bint (*log_counted_t)(void *context, queue_t *queue, uint64_t position, uint32_t count) noexcept nogil
# Appends how far deliveries of the queue may have gone (level_t.reserved of each level); the LSN behind the record. Under
# queue_t.delivered_lock.
ctypedef uint64_t (*log_delivered_t)(void *context, queue_t *queue) noexcept nogil
# These entries end together (positions rising, at most SWEPT_MAX), by a purge; or `ended`: with their queue, of whose end the log has a
# record. Returns the LSN that says so.
ctypedef uint64_t (*log_sweep_t)(void *context, queue_t *queue, swept_t *swept, uint32_t count, bint ended) noexcept nogil
# All queues of a CONTENT_SHARED message have been told: the store no longer keeps it for the publisher's sake.
ctypedef void (*log_placed_t)(void *context, content_t *content) noexcept nogil
# Writes transient content to the page log; returns its id (MESSAGE_SPILLED set), 0 when it was not taken.
ctypedef uint64_t (*spill_t)(void *context, content_t *content) noexcept nogil
ctypedef void (*unspill_t)(void *context, uint64_t message_id) noexcept nogil
# Everything below this LSN survives a crash. Any thread; never goes back.
ctypedef uint64_t (*durable_lsn_t)(void *context) noexcept nogil
# The logged records should go to disk: called by every loop at the end of a pass in which it logged something. `awaited`: somebody waits for
# that (a confirm, a transaction, a stream); else it may gather for some milliseconds first.
ctypedef void (*log_kick_t)(void *context, bint awaited) noexcept nogil
# PRESSURE_*: whether publishers may go on.
ctypedef int (*log_pressure_t)(void *context) noexcept nogil
# Writes a run: `count` entries of one segment of the queue, in rising positions. Returns its LSN in the index log; 0: the entries stay in memory, as one
# of them is listed in the message log; PAGE_NOT_NOW: the index log takes nothing now. Pager's thread.
ctypedef uint64_t (*page_out_t)(void *context, queue_t *queue, restored_t *entries, uint32_t count) noexcept nogil
# Reads a run again: the entries, at most `room`. 0: it can't be read. Blocks for the disk.
ctypedef uint32_t (*page_in_t)(void *context, uint64_t run, restored_t *entries, uint32_t room) noexcept nogil
# Nothing in memory names the run any more: its entries are back.
ctypedef void (*page_end_t)(void *context, uint64_t run) noexcept nogil
# The entries of a run, at positions first..last, end together: by a purge, or `ended`, with their queue, of whose end the log has a record.
# Their messages are counted out later. Returns the LSN that says so.
ctypedef uint64_t (*page_bury_t)(void *context, queue_t *queue, uint64_t run, uint64_t first, uint64_t last, bint ended) noexcept nogil
# Called by the log's writer (its thread, no GIL) after durability moved or pressure fell; must not block.
ctypedef void (*log_waker_t)(void *context) noexcept nogil

cdef enum:
    PRESSURE_NONE = 0
    PRESSURE_BUFFERS = 1        # too much is not written yet: publishers pause until the next wake
    PRESSURE_DISK = 2           # no room but the reserve: publishers are blocked and told so

cdef enum:
    LOG_WAKERS_MAX = 64

cdef struct log_waker_entry_t:
    log_waker_t wake
    void *context

cdef struct log_port_t:         # what the message path calls; filled in by queue/log_port.LogPort's subclass
    void *context
    uint64_t hot_bytes          # atomic: bytes of available bodies a queue keeps in memory before its arrivals go cold; all bits: no limit
    # What the contents in memory of all queues together may take before a queue keeps to its `hot_bytes`: below that it keeps what arrives
    # (queue/residency.pxd queue_window). 0: each keeps to its own at once
    uint64_t content_bytes
    # What of `hot_bytes` a queue keeps that rests, or that gets more while contents take more than `content_bytes`: less than all of it when
    # many queues have more than `rest_least` (queue/sweep.py)
    uint64_t rest_bytes         # atomic
    uint64_t rest_least         # atomic; 0: nobody looks at queues that rest, and each keeps `hot_bytes`
    uint32_t wide_lock
    queue_t *wide               # those that had more than `rest_least` in memory, each a counted reference; under wide_lock
    log_enqueue_t enqueue       # NULL: nothing is logged (then so are letter, dequeue, delivered, sweep and placed)
    log_letter_t letter
    log_dequeue_t dequeue
    log_counted_t counted       # NULL: counts of deliveries are not kept
    log_delivered_t delivered   # NULL: all entries count as delivered after a crash (delivered.pxd)
    log_sweep_t sweep
    log_placed_t placed
    spill_t spill               # NULL: transient content stays in memory (then so is unspill)
    unspill_t unspill
    load_content_t load         # NULL: content never leaves memory
    page_out_t page_out         # NULL: entries never leave memory (then so are the next three)
    page_in_t page_in
    page_end_t page_end
    page_bury_t page_bury
    uint32_t paging_lock
    uint32_t paging_signal      # futex word: the pager has work
    uint32_t paging_sleeps      # atomic: it waits for that
    queue_t *paging             # those that may have segments for the pager, each a counted reference; under paging_lock
    uint32_t marked_lock
    queue_t *marked             # those with an entry that waits until their mark is durable, oldest first, each a counted reference; under marked_lock
    queue_t *marked_last
    durable_lsn_t durable_lsn
    log_kick_t kick
    log_pressure_t pressure
    # Confirms of streams: an append takes the next ticket; everything up to durable_ticket is durable. A confirm waits for its LSN and
    # its ticket. 0: no stream was touched.
    uint64_t stream_ticket      # atomic: the last one given
    uint64_t durable_ticket     # atomic: written by the log's writer
    uint32_t waker_lock
    uint32_t waker_count
    log_waker_entry_t wakers[LOG_WAKERS_MAX]

cdef enum:                      # consumer manager lists; every attached consumer is on exactly one
    CONSUMER_REMOVED = 0
    CONSUMER_INTERESTED = 1
    CONSUMER_NOT_INTERESTED = 2
    CONSUMER_NOTIFIED = 3
    CONSUMER_NON_ACQUIRING = 4

cdef enum:                      # consumer flags
    CONSUMER_ACQUIRES = 1       # not a browser
    CONSUMER_NO_ACK = 2         # settled when sent
    CONSUMER_EXCLUSIVE = 4
    CONSUMER_SEES_REQUEUES = 8
    CONSUMER_SELECTS = 16       # acquires what its `selector` selects, by a selection
    CONSUMER_GROUPED = 32       # acquires what the queue's message groups have for it

cdef struct member_t
cdef struct message_group_t
cdef struct message_groups_t
cdef struct selection_t
cdef struct selection_key_t
cdef struct consumer_list_t:
    consumer_t *head
    consumer_t *tail
    uint32_t count              # atomic; changed under the manager lock

cdef struct group_t:            # PriorityConsumerListPair of seed 004: the consumers of one priority
    int32_t priority
    uint32_t members
    group_t *next               # next lower priority
    consumer_list_t interested
    consumer_list_t notified

cdef struct selection_key_t:    # one value of a selection's key
    uint64_t hash
    selection_t *selection
    selection_key_t *next       # of the same hash

# The consumers of one queue that have the same selector. See queue/selections.pxd.
cdef struct selection_t:
    program_t *program          # counted reference
    uint32_t lock               # of the next seven; inside the manager lock and send_lock, nothing but the heap's memory inside it
    uint32_t scanning           # a member looks from scan_from on
    uint64_t scan_from          # what is available from there on may be wanted; SELECTION_END: nothing beyond the heap
    uint64_t overflow_from      # as scan_from, of what found no room in the heap
    uint64_t *heap              # positions that may be wanted, the lowest first; those of entries that are gone stay until they are looked at
    uint32_t heap_count
    uint32_t heap_room
    uint32_t waits              # atomic: its next entry is on its way from the disk, or left to a consumer of a higher priority
    uint32_t member_count       # under the manager lock, as everything below
    int32_t priority            # highest one that a member had
    bint mixed                  # members had different ones
    consumer_list_t interested
    consumer_list_t notified
    selection_t *next           # all of the queue
    selection_t *previous
    selection_t *due            # chain of those that an arrival is for
    selection_key_t *keys       # one for each key of the program; NULL: it is asked about each message
    uint32_t key_table          # which table they are in
    selection_t *unkeyed_next
    selection_t *unkeyed_previous

cdef enum:
    KEY_TABLES_MAX = 8

cdef struct key_table_t:        # selections that want a certain value of one name
    program_t *name             # NULL: not in use
    uint32_t count              # keys
    map64_t values              # hash -> selection_key_t

cdef struct selections_t:
    selection_t *all
    selection_t *unkeyed
    uint32_t count
    uint32_t waiting            # atomic: selections that wait
    key_table_t tables[KEY_TABLES_MAX]
    uint64_t compared           # figures: programs run for arrivals
    uint64_t looked             # ... and for scans and pulls

cdef enum:                      # message_groups_t.mode
    GROUPS_SHARED = 0           # a group is a consumer's as long as one of its messages is unacked
    GROUPS_STICKY = 1           # ... until the consumer leaves
    GROUPS_SORTED = 2           # no groups: messages in the order of a header's value, those of one value in that of their arrival

cdef enum:
    GROUP_LINES = 8             # of a group_heap_t
    NO_LINE = 255               # message_group_t.line: it is in the heap

cdef struct group_place_t:
    uint64_t order              # of its group: no comparison needs the group itself, but of sorted values that begin alike
    message_group_t *group

# Groups in the order in which they are served. See queue/group_heaps.pxd.
cdef struct group_heap_t:
    uint32_t count              # atomic, written under message_groups_t.lock: groups in the lines and in the heap
    uint32_t lines              # ... lines that were not empty, and those before them
    uint32_t heaped             # ... groups in the heap
    uint32_t room               # ... for which the heap has room
    group_place_t *heap
    uint64_t firsts[GROUP_LINES]  # order of each line's first group; GROUP_NEVER: it is empty
    uint64_t lasts[GROUP_LINES]
    message_group_t *heads[GROUP_LINES]
    message_group_t *tails[GROUP_LINES]

# The messages of one queue that have the same value. See queue/message_groups.pxd. Everything is under message_groups_t.lock.
cdef struct message_group_t:
    uint64_t hash               # its key in `by_hash`; even: one of those that share a group beyond the limit
    uint64_t *heap              # positions of entries that nobody took by this group; those that are gone stay until they are met
    uint32_t count
    uint32_t room
    uint64_t few[2]             # the heap of most
    uint32_t held               # entries of it that a consumer has
    uint32_t blocked            # ... that the broker has, and that nothing of the group may overtake
    uint32_t aside              # ... that the broker has, and that the others don't wait for
    uint32_t place              # in the heap of `listed`
    group_heap_t *listed        # NULL: nobody can take anything of it
    uint64_t order              # where it stands in `listed`
    message_group_t *line_next
    message_group_t *line_previous
    uint8_t line                # of `listed`; NO_LINE: it is in its heap
    member_t *owner             # whose it is; NULL: nobody's
    message_group_t *owned_next
    message_group_t *owned_previous
    message_group_t *idle_next  # of those that are a consumer's and have no entry, the oldest first
    message_group_t *idle_previous
    bint loose                  # never anybody's: messages without a value, sorted ones
    bint idle
    uint32_t key_size
    uint8_t *key                # of a sorted queue: orders groups

cdef struct member_t:           # a consumer of such a queue
    consumer_t *consumer
    group_heap_t ready          # its groups from which it can take something
    message_group_t *owned
    uint32_t owned_count
    uint32_t told               # on `told` of the queue
    member_t *told_next
    bint leaving                # it is removed, and has groups to give back (groups_leave)

cdef struct message_groups_t:
    uint32_t lock               # of all of this; inside the manager lock and send_lock, the list lock inside it
    uint32_t mode
    program_t *name             # the header
    uint32_t most               # groups
    uint32_t idle_most
    group_heap_t free           # groups that are nobody's
    map64_t by_hash             # hash of a value -> message_group_t
    map64_t held                # position -> message_group_t with HELD_* in the lowest bits
    uint32_t shared_count       # groups of several values: there is no room for one each
    uint32_t idle_count
    message_group_t *idle_head
    message_group_t *idle_tail
    member_t *told              # members to be woken
    uint64_t positions          # in all heaps
    uint64_t cursor             # where the sweep goes on: the cell of `by_hash`, the place in its heap
    uint32_t cursor_place
    uint32_t unread             # atomic: entries are there whose groups are not known yet: from `walk` on, and in `todo`
    uint64_t walk               # 0: none
    uint64_t *walk_tails        # last index of each level that the walk looks at
    uint64_t *todo              # a heap of positions
    uint32_t todo_count
    uint32_t todo_room

cdef struct manager_t:
    uint32_t lock
    uint32_t consumer_count     # atomic
    uint32_t predicates         # atomic: consumers with an interest predicate
    uint32_t offers             # numbers the rounds of `immediate`
    group_t *groups             # atomic head: highest priority first
    consumer_list_t not_interested
    consumer_list_t non_acquiring
    consumer_t *all             # every attached consumer
    consumer_t *exclusive       # atomic: the exclusive consumer, or NULL
    uint64_t changes            # atomic: events other than arrival and release that can give someone work
    consumer_t *hot             # those on NOTIFIED: what they acquired is not in `acquired` yet
    uint64_t acquired           # figures of all others, those that left included
    uint64_t acquired_bytes
    uint64_t delivered          # of consumers that left
    uint64_t redelivered        # of those
    uint64_t auto_acked         # of those: to consumers that need no ack
    uint64_t visited            # consumers looked at in loops under the lock: what many consumers cost
    selections_t *selections    # atomic: NULL until a consumer with a selector came

cdef struct consumer_t:
    uint32_t id                 # unique in the process, never reused, never 0
    uint32_t refs               # atomic: queue, session, unacked records
    queue_t *queue              # counted reference
    target_t *target
    int32_t priority            # consumer priority (x-priority), higher first
    uint32_t flags              # CONSUMER_*
    uint32_t send_lock          # held while an entry is pulled by or offered to it; removal waits for it
    uint32_t list               # CONSUMER_* list it is on; changed under the manager lock
    consumer_t *prev            # links of that list
    consumer_t *next
    uint64_t last_seen          # atomic position: everything up to it was looked at
    uint64_t released           # earliest position before last_seen that may be available; 0 = none. Under send_lock
    uint64_t behind             # list_t.behind as far as it is in `released`; under send_lock
    uint64_t browsed[1]         # browser: see browse_levels
    uint64_t *browse_levels     # browser of a priority queue: one pointer per level, which release never lowers
    credit_t credit             # the consumer's own prefetch
    credit_t *shared_credit     # the channel's (global) prefetch, or NULL
    interest_t interest         # NULL: wants everything
    void *interest_context
    slot_t *offered             # entry acquired on its behalf by an offer, not yet sent (owner is this consumer); atomic
    uint64_t offered_position
    uint64_t delivered          # statistics
    uint64_t redelivered        # of those: with the flag
    void *context               # the session's own record of this consumer
    void *reader                # of a queue with ops: its cursor (streams/stream_queue.pxd), freed with the consumer; else NULL
    # --- the queue core's own ---
    group_t *group              # of its priority; NULL while not attached
    consumer_t *all_prev        # links of manager_t.all
    consumer_t *all_next
    place_t place               # under send_lock
    uint64_t idle_version       # atomic: queue_version() at which it found nothing; it isn't woken again for the same
    uint64_t acquired           # entries and bytes of bodies acquired for it; written under send_lock
    uint64_t acquired_bytes
    uint64_t counted            # how much of them is in the manager's figures; written under the manager lock
    uint64_t counted_bytes
    consumer_t *hot_prev        # links of manager_t.hot
    consumer_t *hot_next
    uint32_t offer_round        # the last round of `immediate` that asked it
    uint64_t timeout_us         # its own x-consumer-timeout, 0 = its queue's
    program_t *selector         # of one that CONSUMER_SELECTS: counted reference
    selection_t *selection      # NULL while not attached
    member_t *member            # of one that is CONSUMER_GROUPED, with the consumer

cdef struct target_t:           # broker-side representation of a consuming client (seed 004): one or more consumers
    consumer_t **consumers      # one per queue
    uint32_t consumer_count
    uint32_t next_consumer      # round robin over them
    uint32_t pending            # atomic: already in its session's set of targets that want to work
    uint32_t suspended          # atomic: transport blocked or channel.flow(off); its consumers take nothing
    uint32_t credit_back        # atomic: credit that its consumers share with others came back from another thread: the session resumes them
    target_t *next_pending      # the session's list link
    notify_work_t notify_work
    void *context               # the session's own record

cdef struct puller_t:           # the pointer of basic.get and of the broker's own takes
    uint32_t lock
    uint32_t nobody             # it is the one that all queues have to which nobody came yet: all zero, for readers of figures
    uint64_t last_seen
    uint64_t released           # as in consumer_t, under `lock`
    uint64_t behind
    place_t place
    uint64_t acquired           # figures, written under `lock`
    uint64_t acquired_bytes
    uint64_t delivered
    uint64_t redelivered        # of those: with the flag
    uint64_t auto_acked         # and those that needed no ack; atomic

cdef struct waiter_t

# The head's content is there, or the head changed. Any thread, under the manager lock: as short as notify_work_t.
ctypedef void (*waiter_wake_t)(waiter_t *waiter) noexcept nogil

cdef struct waiter_t:           # a basic.get that waits for the content of the head
    waiter_t *next              # link of queue_t.waiters
    waiter_wake_t wake
    void *context

cdef enum:                      # which figure of queue_ops_t.figure
    FIGURE_READY = 0
    FIGURE_READY_BYTES = 1
    FIGURE_UNACKED = 2
    FIGURE_ENQUEUED = 3

# What a queue that is not an entry list does itself: a stream. Every function: any thread, no GIL, the caller keeps the queue. Such
# a queue's entry list stays empty and closed, so whatever has no function here (held entries, takes by the broker, purge, expiry)
# finds nothing and is refused by itself. `slot` of its deliveries is never NULL and never an entry's: its content isn't to be read.
cdef struct queue_ops_t:
    # As queue_enqueue, without messages of the broker's own ids; `*lsn` stays as it is: a stream's confirm waits for a ticket.
    uint64_t (*enqueue)(queue_t *queue, content_t *content, int64_t expires_at_ms, uint64_t *lsn) noexcept nogil
    # As queue_deliver_single. out.content is good until the consumer's next call: take a reference to keep it.
    bint (*deliver)(queue_t *queue, consumer_t *consumer, delivery_t *out) noexcept nogil
    bint (*settle)(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int reason) noexcept nogil
    bint (*release)(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, bint delivered) noexcept nogil
    # The consumer is on the manager's lists from now on / no more (its send_lock is free).
    void (*attached)(queue_t *queue, consumer_t *consumer) noexcept nogil
    void (*detached)(queue_t *queue, consumer_t *consumer) noexcept nogil
    # It wants work again, or leaves it to others: someone who can is told of the entries.
    void (*changed)(queue_t *queue, consumer_t *consumer) noexcept nogil
    void (*housekeeping)(queue_t *queue) noexcept nogil
    uint64_t (*figure)(queue_t *queue, int which) noexcept nogil
    void (*free_reader)(void *reader) noexcept nogil          # with the last reference of its consumer
    void (*destroy)(queue_t *queue) noexcept nogil            # with the last reference of the queue

# Something is to be done at this time (wall clock, milliseconds). Any thread, under the index's lock: short, must not block.
ctypedef void (*due_soon_t)(void *context, int64_t at_ms) noexcept nogil

cdef struct due_index_t:        # queues that have something to do: one for all queues of a broker (queue/due.pxd)
    uint32_t lock
    queue_t *due                # an entry of theirs expires earlier than was known; each a counted reference
    queue_t *worked             # they worked since their last housekeeping; each a counted reference
    queue_t *over               # above their length limit, for consumers have their turn first (queue/limits.pxd); each a counted reference
    due_soon_t soon             # NULL: nobody waits
    void *context
    uint64_t over_messages      # what a queue may exceed its limit by meanwhile; see config.Limits
    uint64_t over_bytes
    int64_t over_ms             # ... and for how long, when nobody takes anything
    void *retries               # retries_t of waits.pxd; NULL: nothing waits before it is delivered again

cdef enum:                      # queue_t.returns: what the control plane wants to know of delivered entries that come back
    RETURNS_COUNTED = 1         # how often (queue/returns.pxd); consumers are told, too (x-delivery-count)
    RETURNS_LIMITED = 2         # that some did: the queue has a length limit (drop-head)
    RETURNS_DELAY_FAILED = 4    # with RETURNS_COUNTED: one that failed waits before it is available again (x-delayed-retry-type)
    RETURNS_DELAY_CALM = 8      # ... and one that was given back
    RETURNS_NOTED = 16          # with RETURNS_COUNTED: the count of each (the service of a shared queue keeps it)

cdef enum:                      # queue_release: what an entry comes back from
    RETURN_UNSENT = 0           # it reached nobody
    RETURN_FAILED = 1           # basic.reject, the end of a channel, a lease that ended
    RETURN_CALM = 2             # basic.nack, basic.recover, a consumer's timeout
    RETURN_WAITED = 3           # its wait before the next delivery: it was noted when that began

cdef struct returned_t:         # an entry that came back to a queue with RETURNS_COUNTED, and that the control plane has work with
    returned_t *next
    uint64_t position
    uint32_t count              # with this return
    bint over                   # above the limit: the broker holds it
    bint delayed                # it waits before its next delivery: the broker holds it

cdef struct values_t:           # values of one header, and an entry for each (value_maps.pxd)
    program_t *name             # the header
    map64_t positions           # first hash of a value -> position
    map64_t checks              # first hash -> second hash
    uint64_t cursor             # next place of `positions` to pass over

cdef struct once_t:             # which values of a header are in the queue (deduplication.py)
    uint32_t gate               # from the look to the arrival: of two messages with one value the second sees the first
    values_t values
    uint64_t most               # values
    uint64_t lsn                # that of the latest logged arrival
    uint64_t duplicates         # messages that were dropped

cdef enum:                      # queue_t.durable
    QUEUE_LOGGED = 1            # persistent messages are told to its log port
    QUEUE_MIRRORED = 2          # all messages are: a shared queue on the node that owns it (mirror/mirror.pxd). Transactions log nothing of it

cdef struct flows_t:            # what a queue's messages did since it is in memory: figures, each exact when nothing runs
    uint64_t delivered          # to consumers
    uint64_t delivered_auto     # of those: to consumers that need no ack
    uint64_t got                # by basic.get
    uint64_t got_auto
    uint64_t redelivered        # of both, with the flag
    uint64_t dequeued           # entries that ended; by REASON_* the acked ones are the rest
    uint64_t ended[REASONS]

cdef struct queue_t:
    list_t entries              # first: what every message touches
    manager_t manager
    puller_t *puller            # atomic; never NULL (puller.pxd)
    uint32_t refs               # atomic
    uint32_t pins               # atomic: readers that are neither a consumer's pull nor the puller
    uint64_t id
    uint32_t deleted            # atomic
    uint32_t durable            # QUEUE_*, 0: in memory only
    int list_kind
    uint32_t log_lock           # with a log port: one producer at a time, so log order is position order
    log_port_t *port            # NULL: in memory only. port_owner's
    queue_ops_t *ops            # NULL: an ordinary queue. Set before anyone uses the queue
    void *ops_context
    uint64_t logged_at          # atomic: LSN of its last enqueue (or mark) in the message log; the store's own
    uint64_t marked_at          # atomic: LSN behind its last mark of deliveries in the message log; 0: it has none
    uint32_t delivered_lock     # of that and of the mark in each level; the log's lock inside it
    uint32_t shown              # atomic: the broker showed an entry otherwise than by a delivery
    uint32_t marked_waits       # it is on log_port_t.marked, until `marked_wanted` is durable; under the lock there
    uint64_t marked_wanted
    queue_t *marked_next
    waiter_t *waiters           # atomic head; changed under the manager lock
    due_index_t *due            # NULL: nobody looks after it but who calls its housekeeping. due_owner's
    queue_t *due_next           # links of the index's lists
    queue_t *worked_next
    queue_t *over_next
    int64_t due_at              # atomic: when its next entry expires, as the index knows it; 0: it knows of none
    uint32_t due_listed         # atomic: it is on the list
    uint32_t worked             # atomic: it is on the list of those that worked since their last housekeeping
    uint64_t worked_before      # what it had done at its last housekeeping
    uint32_t returns            # RETURNS_*; set before anyone uses the queue
    uint32_t delivery_limit     # with RETURNS_COUNTED: returns that an entry may have; all bits: any number
    uint32_t returned_count     # atomic; the notes below are changed under the list lock
    returned_t *returned        # oldest first
    returned_t *returned_last
    void *waits                 # waits_t of waits.pxd, under the lock there; NULL: nothing of it waits
    uint64_t retry_min_ms       # atomic: x-delayed-retry-min, and -max, all bits: any time
    uint64_t retry_max_ms
    uint64_t consumer_timeout_us  # atomic: x-consumer-timeout, 0 = none (broker/timeouts.py)
    uint32_t wide               # atomic: it is on log_port_t.wide
    uint32_t wide_rests         # looks at it, one after the other, in which it did not move (the last three: sweep.pxd's thread only)
    uint64_t wide_moved         # entries that had come and gone by the last look
    queue_t *wide_next
    uint32_t paging             # atomic: it is on log_port_t.paging
    uint32_t sweeps             # atomic: purges that are under way: nothing leaves memory meanwhile
    queue_t *paging_next
    uint64_t kept               # atomic: dead letters that wait for their targets here: they count for its limit, too
    uint64_t kept_bytes
    uint32_t letters_lock       # of `letters`
    uint32_t drops_lowest       # what is over its limit is dropped from its last level first (x-overflow ring); else from its head
    uint64_t max_length         # x-max-length and x-max-length-bytes; all bits: none. Set before anyone uses the queue
    uint64_t max_bytes
    uint32_t over               # atomic: it is on the index's list of those above their limit
    int64_t over_at             # when to look again, milliseconds on the wall clock; under the index's lock
    uint64_t over_taken         # entries that had been taken from it then
    message_groups_t *message_groups  # NULL: it has none. Set before anyone uses the queue
    once_t *once                # x-message-deduplication (deduplication.pxd); NULL: not asked for. Set before anyone uses the queue
    uint64_t name_hash          # of its name, for cycles of dead letters (protocol/v0_9_1/death.pxd); 0: not known. Set before anyone uses the queue
    letters_t *letters          # counted: where its dead letters go; NULL: they go the slow way, which finds out
    uint8_t *name               # atomic: its name as a shortstr, once somebody on the message path asked; NULL: not known
    void *port_owner            # the LogPort and the DueIndex: references that end with the queue, whoever has it last; NULL: none
    void *due_owner
