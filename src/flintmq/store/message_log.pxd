# The message log: what the message path writes, as records of docs/FORMAT.md. Functions without the GIL; those named ml_* are what
# log_port_t points at. All take the log's lock for a few hundred nanoseconds (long content: once per chunk).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport original_t, queue_t, restored_t, slot_t, swept_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.shapes cimport shapes_t
from flintmq.store.log.writer cimport writer_t

# The message list of seed 003: for each message that stands on several queues, that a transaction touched, or that is long, where it
# is. A message with one plain place is not in it: the queue's slot says all there is to say. Under the message log's lock.
cdef struct location_t:         # one place; position: see position_waits (record.pxd) while the transaction that enqueues it has not committed
    uint64_t queue_id
    uint64_t position
    int64_t expires_at_ms
    uint64_t enqueued_by        # open transaction that puts it there; 0 = it is there
    uint64_t dequeued_by        # open transaction that takes it; 0 = none. With PLACE_FREED: see there

cdef uint64_t PLACE_FREED       # bit of dequeued_by: a prepared transaction was rolled back, and that may not be on disk; it may be ended

cdef enum:
    LIST_MAPS = 64              # a map that grows moves all it has, under the log's lock: several small ones stop nobody for long

cdef struct message_list_t:     # zeroed: empty
    map64_t maps[64]

cdef struct message_t:
    uint64_t id
    uint32_t count              # places
    uint32_t room
    uint32_t holds              # 1 while its publisher still adds queues
    uint32_t named_count
    uint32_t named_room
    location_t *locations
    uint64_t *named             # transactions that records of this message name: they stay valid as long as it lives
    location_t first_location   # room for the first of each: most have no more
    uint64_t first_named

cdef message_t *list_find(message_list_t *messages, uint64_t message_id) noexcept nogil
# NULL: no memory.
cdef message_t *list_new(message_list_t *messages, uint64_t message_id) noexcept nogil
cdef void list_forget(message_list_t *messages, message_t *message) noexcept nogil
cdef void list_free_all(message_list_t *messages) noexcept nogil
cdef location_t *message_add(message_t *message, uint64_t queue_id, uint64_t position, int64_t expires_at_ms) noexcept nogil
# The place on this queue at this position; NULL: there is none.
cdef location_t *message_find(message_t *message, uint64_t queue_id, uint64_t position) noexcept nogil
cdef void message_drop(message_t *message, location_t *location) noexcept nogil
# Notes that records of the message name the transaction. True when it is new.
cdef bint message_name(message_t *message, uint64_t tx) noexcept nogil
# Iteration in no particular order: start with *cursor = 0; NULL: no more. The list must not change meanwhile.
cdef message_t *list_next_message(message_list_t *messages, uint64_t *cursor) noexcept nogil


cdef enum:
    ENQUEUE_MOST = 56           # bytes of a Message-Enqueue with expiry and transaction
    DEQUEUE_PLAIN = 56          # bytes of a Message-Dequeue without a transaction

cdef struct released_t:
    uint64_t tx
    uint64_t messages           # dead ones that named it

cdef struct message_log_t:
    log_t *log
    log_t *pages                # NULL: nothing is spilled
    writer_t *writer
    void *loader                # loader_t of content_loader.pxd
    void *counts                # count_notes_t of count_notes.pxd
    void *pages_out             # entry_pager_t of entry_pager.pxd; NULL: entries stay in memory
    message_list_t messages     # the message list
    shapes_t shapes             # under log.lock
    released_t *released        # transactions that dead messages no longer name
    uint32_t released_count     # atomic; changed under log.lock
    uint32_t released_room
    uint64_t unwritten_max      # bytes appended and not written above which publishers wait
    uint64_t soon_bytes         # bytes that may gather while nobody waits for them
    uint64_t *stream_unwritten  # atomic: bytes of streams appended and not written; NULL: there are no streams
    uint32_t disk_low           # atomic: nothing but the reserve is left
    uint64_t hold_at            # atomic: publishers wait while the tail is at or behind this LSN
    uint32_t split_above        # bytes of content
    uint64_t spill_window       # window of the page log that the last spilled content went to
    uint64_t deaths             # atomic figure: messages that ended
    uint64_t hot_arrivals       # atomic: enqueues on queues of which nothing is on disk only; for the loader's pace

# --- ports of the message path
cdef uint64_t ml_enqueue(void *context, queue_t *queue, uint64_t position, slot_t *slot, int64_t expires_at_ms) noexcept nogil
cdef uint64_t ml_letter(void *context, queue_t *queue, uint64_t position, slot_t *slot, int64_t expires_at_ms, original_t *original) noexcept nogil
cdef uint64_t ml_dequeue(void *context, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) noexcept nogil
cdef uint64_t ml_sweep(void *context, queue_t *queue, swept_t *swept, uint32_t count, bint ended) noexcept nogil
cdef uint64_t ml_delivered(void *context, queue_t *queue) noexcept nogil
cdef void ml_placed(void *context, content_t *content) noexcept nogil
cdef uint64_t ml_spill(void *context, content_t *content) noexcept nogil
cdef void ml_unspill(void *context, uint64_t message_id) noexcept nogil
cdef uint64_t ml_durable_lsn(void *context) noexcept nogil
cdef void ml_kick(void *context, bint awaited) noexcept nogil
cdef int ml_pressure(void *context) noexcept nogil

# --- transactions (log lock taken inside). All return the LSN to wait for, LSN_NEVER when the log has failed.
cdef uint64_t ml_enqueue_tx(message_log_t *ml, uint64_t tx, uint64_t queue_id, uint64_t position, slot_t *slot, content_t *content, uint64_t *message_id, int64_t expires_at_ms) noexcept nogil
# The tx's dequeue of a plain or listed place. 0: no such place, or another transaction has it (only for listed messages).
cdef uint64_t ml_dequeue_tx(message_log_t *ml, uint64_t tx, uint64_t queue_id, uint64_t position, uint64_t message_id, uint32_t owner, int reason, uint64_t delivered_us, uint32_t delivery_count) noexcept nogil
# The transaction's outcome for one message: its enqueues become plain or go, its dequeues go or are undone. True when the message died of it (a
# Message-Delete was written).
cdef bint ml_settle_tx(message_log_t *ml, uint64_t tx, uint64_t message_id, bint committed) noexcept nogil
# The transaction is being rolled back: what it wanted to take on this message is free to be taken; its enqueues wait for ml_settle_tx.
# prepared: until the Rollback is durable, which ml_settle_tx tells, a copy of the message still names the transaction: it may be in doubt again.
cdef void ml_undo_dequeues(message_log_t *ml, uint64_t tx, uint64_t message_id, bint prepared) noexcept nogil
cdef uint64_t ml_dequeue_plain(message_log_t *ml, uint64_t queue_id, uint64_t position, uint64_t message_id, uint32_t owner, int reason, uint64_t delivered_us, uint32_t delivery_count) noexcept nogil

# --- entries that left memory (queue/paging.pxd)
# Whether one of these messages is in the message list: it may have other places. O(entries).
cdef bint ml_listed(message_log_t *ml, restored_t *entries, uint32_t count) noexcept nogil
# These entries ended by a record before LSN `by`: each loses its place. In sections of SWEPT_MAX. O(entries).
cdef void ml_count_out(message_log_t *ml, uint64_t queue_id, restored_t *entries, uint32_t count, uint64_t by) noexcept nogil
# Queue-Purge of one range of positions; the LSN behind it. With the log's lock held.
cdef uint64_t ml_purge_range(message_log_t *ml, uint64_t queue_id, uint64_t first, uint64_t last) noexcept nogil

# --- with the log's lock held, for loops over many messages
cdef uint64_t ml_dequeue_locked(message_log_t *ml, uint64_t queue_id, uint64_t position, uint64_t message_id, uint32_t owner, int reason, uint64_t delivered_us, uint32_t delivery_count) noexcept nogil
cdef uint64_t ml_write_enqueue(log_t *log, uint64_t message_id, uint64_t queue_id, uint64_t position, int64_t expires_at_ms, uint64_t tx) noexcept nogil
cdef uint64_t ml_write_delete(log_t *log, uint64_t message_id) noexcept nogil
# The message's life is over, by the record before LSN `by`. `message`: its list entry or NULL.
cdef void ml_ended(message_log_t *ml, uint64_t message_id, message_t *message, uint64_t by) noexcept nogil

# A message that named the transaction does not any more (log lock held): told later to a holder of the GIL.
cdef void ml_release_name(message_log_t *ml, uint64_t tx) noexcept nogil
# A queue was deleted, and Queue-End written: the listed message loses its places on it.
cdef void ml_drop_places(message_log_t *ml, uint64_t queue_id, uint64_t message_id) noexcept nogil
# The same for all listed messages, for a queue whose entries nobody has. O(listed messages).
cdef void ml_drop_queue(message_log_t *ml, uint64_t queue_id) noexcept nogil
