# The message log: what the message path writes, as records of docs/FORMAT.md. Functions without the GIL; those named ml_* are what
# log_port_t points at. All take the log's lock for a few hundred nanoseconds (long content: once per chunk).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t, slot_t, swept_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.writer cimport writer_t
from flintmq.store.message_list cimport location_t, message_list_t, message_t

cdef enum:
    ENQUEUE_MOST = 56           # bytes of a Message-Enqueue with expiry and transaction

cdef struct released_t:
    uint64_t tx
    uint64_t messages           # dead ones that named it

cdef struct message_log_t:
    log_t *log
    log_t *pages                # NULL: nothing is spilled
    writer_t *writer
    void *loader                # loader_t of content_loader.pxd
    message_list_t messages     # the message list
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
cdef uint64_t ml_dequeue(void *context, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) noexcept nogil
cdef uint64_t ml_sweep(void *context, queue_t *queue, swept_t *swept, uint32_t count, bint ended) noexcept nogil
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

# --- with the log's lock held, for loops over many messages
cdef uint64_t ml_dequeue_locked(message_log_t *ml, uint64_t queue_id, uint64_t position, uint64_t message_id, uint32_t owner, int reason, uint64_t delivered_us, uint32_t delivery_count) noexcept nogil
cdef uint64_t ml_write_enqueue(log_t *log, uint64_t message_id, uint64_t queue_id, uint64_t position, int64_t expires_at_ms, uint64_t tx) noexcept nogil
cdef uint64_t ml_write_delete(log_t *log, uint64_t message_id) noexcept nogil
# The message's life is over, by the record before LSN `by`. `message`: its list entry or NULL.
cdef void ml_ended(message_log_t *ml, uint64_t message_id, message_t *message, uint64_t by) noexcept nogil

# A message that named the transaction does not any more (log lock held): told later to who holds the GIL.
cdef void ml_release_name(message_log_t *ml, uint64_t tx) noexcept nogil
# A queue was deleted, and Queue-End written: the listed message loses its places on it.
cdef void ml_drop_places(message_log_t *ml, uint64_t queue_id, uint64_t message_id) noexcept nogil
# The same for all listed messages, for a queue whose entries nobody has. O(listed messages).
cdef void ml_drop_queue(message_log_t *ml, uint64_t queue_id) noexcept nogil
