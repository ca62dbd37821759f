# The queue: enqueue, notify, pull, offer, settle, release. Seeds 000 and 004; rules in docs/QUEUE_CORE.md.
#
# Every function may be called from any thread, without the GIL. `queue_t` is reference counted; whoever keeps a pointer
# keeps a reference.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.selectors.program cimport program_t
from flintmq.queue.types cimport (
    consumer_t, credit_t, delivery_t, interest_t, letters_t, log_port_t, original_t, queue_ops_t, queue_t, slot_t, target_t,
)

# The rest of the queue's face, defined where it belongs.
from flintmq.queue.pull cimport entry_sent, queue_deliver_single, queue_pull, queue_release, queue_take_head
from flintmq.queue.housekeeping cimport (
    queue_acquired_failed, queue_consumer_count, queue_content_failed, queue_delivered_total, queue_enqueued_total, queue_failed_count,
    queue_housekeeping, queue_next_expiry, queue_peek, queue_priorities, queue_ready_bytes, queue_ready_count, queue_unacked_bytes, queue_unacked_count, queue_flows,
)
from flintmq.queue.residency cimport (
    queue_add_waiter, queue_cold_count, queue_cold_run, queue_content_loaded, queue_contents_loaded, queue_load_room, queue_next_cold,
    queue_remove_waiter, queue_resident_bytes,
)
from flintmq.queue.restoring cimport (
    queue_add_held, queue_borrow, queue_facts, queue_forget_logged, queue_hold_at,
    queue_next_available, queue_next_redelivered, queue_publish_held, queue_restore_many,
    queue_set_tail, queue_tail, queue_take_at,
)

# --- life ---------------------------------------------------------------------------------------------------------------
# levels: 1 for LIST_STANDARD; 1..256 for LIST_PRIORITY. NULL when out of memory. One reference to the caller.
cdef queue_t *queue_new(uint64_t queue_id, int list_kind, int levels, int level_rule) noexcept nogil
cdef void queue_incref(queue_t *queue) noexcept nogil
cdef void queue_decref(queue_t *queue) noexcept nogil
# After this every enqueue is refused and no consumer is notified; entries stay until they are taken or the last reference goes.
cdef void queue_mark_deleted(queue_t *queue) noexcept nogil
# While held, new messages are refused (position 0) although the queue is not deleted. No effect on a stream, or once it is deleted.
cdef void queue_hold_arrivals(queue_t *queue, bint held) noexcept nogil
cdef bint queue_is_deleted(queue_t *queue) noexcept nogil
cdef uint64_t queue_get_id(queue_t *queue) noexcept nogil
cdef void queue_set_durable(queue_t *queue, bint durable) noexcept nogil
cdef bint queue_is_durable(queue_t *queue) noexcept nogil
# NULL: in memory only. The port must outlive the queue (port_owner); set it before anyone uses the queue.
cdef void queue_set_ports(queue_t *queue, log_port_t *port) noexcept nogil
# Where its dead letters go from now on; takes the reference. NULL: it is not known, until somebody finds out; always so once it is deleted.
cdef void queue_set_letters(queue_t *queue, letters_t *letters) noexcept nogil
# A counted reference, NULL when it is not known.
cdef letters_t *queue_letters(queue_t *queue) noexcept nogil
cdef void letters_decref(letters_t *letters) noexcept nogil
# Its name (at most 255 bytes), which never changes: the message path knows it from now on. False: no memory.
cdef bint queue_set_name(queue_t *queue, const uint8_t *name, uint8_t size) noexcept nogil
# `place`, port_owner or due_owner of a queue, refers to `owner` from now on and no more to what it referred to; None: to nothing. With the GIL.
cdef void queue_keep(void **place, object owner)
# Makes it another kind of queue (queue_ops_t), its entry list closed. Before anyone uses it; `ops` lives as long as the process.
cdef void queue_set_ops(queue_t *queue, queue_ops_t *ops, void *context) noexcept nogil

# --- producers ----------------------------------------------------------------------------------------------------------
# Puts the message at the tail of its level and wakes one consumer. Takes its own reference on `content`. `expires_at_ms` is on
# the wall clock, 0 = never. Returns the position, or 0 when the queue is deleted or memory is exhausted (nothing happened then).
# Past the queue's window (log_port_t.hot_bytes) the content does not stay in memory: the entry arrives not resident.
# `*lsn` (may be NULL) is raised to the LSN a confirm must wait for, untouched when the entry was not logged.
cdef uint64_t queue_enqueue(queue_t *queue, content_t *content, uint64_t message_id, int64_t expires_at_ms, uint64_t *lsn) noexcept nogil
# queue_enqueue of a dead letter. original: its entry, which the caller ends afterwards; NULL: nothing of it is logged.
cdef uint64_t queue_enqueue_letter(queue_t *queue, content_t *content, int64_t expires_at_ms, uint64_t *lsn, original_t *original) noexcept nogil
# `immediate`: enqueue and offer to one ready consumer with credit; if none takes it, the entry is acquired by the broker and
# dequeued again. Returns the position when it was (or will be) delivered, 0 when it must be returned to the publisher (313).
cdef uint64_t queue_enqueue_immediate(queue_t *queue, content_t *content, uint64_t message_id, int64_t expires_at_ms, uint64_t *lsn) noexcept nogil

# queue_enqueue of a queue that has `once` (with `immediate`: queue_enqueue_immediate). A message whose value is there already is dropped:
# the position is that of the one that is there, and *lsn is raised to the LSN that makes that one durable.
cdef uint64_t queue_enqueue_once(queue_t *queue, content_t *content, int64_t expires_at_ms, bint immediate, uint64_t *lsn) noexcept nogil

# --- consumers (seed 004) -----------------------------------------------------------------------------------------------
cdef consumer_t *consumer_new(queue_t *queue, target_t *target, int32_t priority, uint32_t flags, uint32_t prefetch) noexcept nogil
# It wants what the program selects, and nothing else. Before it is attached; takes a reference.
cdef void consumer_select(consumer_t *consumer, program_t *program) noexcept nogil
cdef void consumer_incref(consumer_t *consumer) noexcept nogil
cdef void consumer_decref(consumer_t *consumer) noexcept nogil
# False when an exclusive consumer is attached, or this one is exclusive and another is attached, or the queue is deleted.
cdef bint queue_add_consumer(queue_t *queue, consumer_t *consumer) noexcept nogil
# Detaches; waits for an offer in flight (send lock). Entries it holds stay acquired: the session releases or settles them. An
# offered, unsent entry is released here. Wakes another consumer if this one was notified.
# True: it held an offer, which went back with its credit. A consumer may have more message groups than one call gives back: the caller
# goes on with queue_consumer_leaves, and keeps its own reference meanwhile.
cdef bint queue_remove_consumer(queue_t *queue, consumer_t *consumer) noexcept nogil
# A slice of the entries to give back of a consumer that was removed: about 30 us. True: it has more.
cdef bint queue_consumer_leaves(queue_t *queue, consumer_t *consumer) noexcept nogil
# AbstractQueue#setNotifyWorkDesired: flow control and credit move a consumer to NotInterested and back. Idempotent.
cdef void queue_set_notify_work_desired(queue_t *queue, consumer_t *consumer, bint desired) noexcept nogil
# Credit: has: one message may be sent now; give_back restores exactly one, in both counters.
cdef void consumer_give_back_credit(consumer_t *consumer) noexcept nogil
cdef bint consumer_has_credit(consumer_t *consumer) noexcept nogil

# --- settlement ---------------------------------------------------------------------------------------------------------
# Acquired by `owner` -> dequeued -> deleted; drops the content. False when `owner` does not hold it (stolen, settled before).
cdef bint queue_dequeue(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int reason) noexcept nogil
# The same with the time of the delivery for the log: microseconds on the wall clock, 0 = not known.
cdef bint queue_settle(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int reason, uint64_t delivered_us) noexcept nogil
# A held entry (queue_add_held) goes, and the log is not told. The same for an entry that queue_hold_at acquired.
cdef bint queue_drop_held(queue_t *queue, slot_t *slot, uint64_t position) noexcept nogil
# The broker takes one expired available entry (expires_at <= now_ms), earliest position first; false when there is none.
# An expired entry that a consumer holds is found by a later sweep, once it is available again.
cdef bint queue_take_expired(queue_t *queue, int64_t now_ms, delivery_t *out) noexcept nogil
# Takes and dequeues up to `most` expired entries; returns how many. For queues that dead-letter nothing.
cdef uint64_t queue_expire_many(queue_t *queue, int64_t now_ms, uint64_t most) noexcept nogil
# When the next entry expires, as the due index knows it from now on; 0: nothing does, or the queue stands on the index's list.
cdef int64_t queue_rearm(queue_t *queue) noexcept nogil

# --- arrivals in lists that are not in order: priorities, kinds from outside ---------------------------------------------------
# An entry is available, perhaps before what readers have seen (the list has counted that for them): its kind and consumers are told.
# `wanted`: consumers that the list knew of when it came.
cdef void arrived_between(queue_t *queue, uint64_t position, content_t *content, uint32_t wanted) noexcept nogil
