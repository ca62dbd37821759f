# Entries that come otherwise than by a publish: recovery, and transactions that are not committed. Re-exported by queue_core.pxd.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport list_t, original_t, queue_t, restored_t, slot_t

# --- recovery and a clean stop. Entries of one queue, before they are put back:
# Brings a queue's entries into position order; returns how many there are of positions that are taken twice (they come last).
cdef uint64_t restored_sort(restored_t *entries, uint64_t count) noexcept nogil
# Flags the entries with positions first..last as delivered before.
cdef void restored_mark_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t last) noexcept nogil
# How many entries have positions first..first+length-1; `*start`: the first of them.
cdef uint64_t restored_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t length, uint64_t *start) noexcept nogil
# The index of a level's first entry; of its last one that is flagged as delivered before, or held. 0: there is none. O(log entries);
# O(entries of the level).
cdef uint64_t restored_first(restored_t *entries, uint64_t count, uint32_t level) noexcept nogil
cdef uint64_t restored_flagged(restored_t *entries, uint64_t count, uint32_t level) noexcept nogil
# Those of a set in doubt: held, and in the same delivery as before.
cdef void restored_hold_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t length) noexcept nogil
# Puts entries at given positions, each above every earlier one of its level; not resident. Returns how many were put in: fewer when one
# was refused.
cdef uint64_t queue_restore_many(queue_t *queue, restored_t *restored, uint64_t count) noexcept nogil
# What queue_restore_many does when it is done, for who put shells in.
cdef void queue_restored(queue_t *queue) noexcept nogil
# The last index in use of a level, 0 when there was none yet (also for a level that does not exist).
cdef uint64_t queue_tail(queue_t *queue, uint32_t level) noexcept nogil
# New entries of the level come above `index`. False when the level does not exist or the queue is deleted.
cdef bint queue_set_tail(queue_t *queue, uint32_t level, uint64_t index) noexcept nogil
# The next run of logged entries that are flagged redelivered, from `position` on: every logged entry from `*first` to `*last`, both
# included and of one level, is flagged. False at the end. For a stop, when nobody uses the queue any more. O(entries passed).
cdef bint queue_next_redelivered(queue_t *queue, uint64_t position, uint64_t *first, uint64_t *last) noexcept nogil

# --- transactions
# An entry at its final position that nobody sees and no count knows (ENTRY_HELD). Not logged by itself. NULL when the queue is
# deleted or memory is exhausted.
cdef slot_t *queue_add_held(queue_t *queue, content_t *content, int64_t expires_at_ms, uint64_t *position) noexcept nogil
# It becomes available in its place; `logged`: its dequeue will be. Its content may go cold, as at an arrival. Of an entry that
# queue_hold_at acquired: a release. False when it is neither. `slot` may be NULL.
cdef bint queue_publish_held(queue_t *queue, slot_t *slot, uint64_t position, bint logged) noexcept nogil
# The dequeue of an acquired entry was logged by a transaction: the queue_dequeue that follows tells the log nothing.
cdef bint queue_forget_logged(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner) noexcept nogil
# Acquires the available entry at this position for the broker (owner 0), resident or not; NULL when it is not there. It counts as
# unacked, and as cold no more.
cdef slot_t *queue_hold_at(queue_t *queue, uint64_t position) noexcept nogil

# Bytes of the body of an entry that the broker holds; 0 when there is none.
cdef uint32_t queue_held_bytes(queue_t *queue, uint64_t position) noexcept nogil

# The same for a consumer id.
cdef slot_t *queue_take_at(queue_t *queue, uint64_t position, uint32_t owner) noexcept nogil
# State, log id and expiry of an entry; 0 when there is none that is available or acquired. Of one in a shell only that it is available and
# cold. O(log segments).
cdef uint64_t queue_facts(queue_t *queue, uint64_t position, uint64_t *message_id, int64_t *expires_at_ms) noexcept nogil
# Fills in the facts of a held entry that ends with its dead letter (queue_enqueue_letter). False: the log knows nothing of it.
cdef bint original_of(queue_t *queue, uint64_t position, uint32_t owner, int reason, uint64_t delivered_us, original_t *out) noexcept nogil
# Content of an entry that is available or acquired, a counted reference; NULL when it is gone (`*message_id` 0) or not resident.
cdef content_t *queue_borrow(queue_t *queue, uint64_t position, uint64_t *message_id) noexcept nogil
# The first available entry at or after `position`; 0 at the end. O(entries passed).
cdef uint64_t queue_next_available(queue_t *queue, uint64_t position) noexcept nogil


# Entries at given positions: recovery, spilled content, open transactions. Every function takes list_t.lock itself; producers of a
# queue with a log exclude each other by log_lock, so whoever adds holds it.
# The general form of list_add: at index `index` (0: the next one), with state flags; not resident when `content` is NULL; ENTRY_HELD: acquired
# by the broker and counted nowhere. `*slot` (may be NULL): where it is. 0 also when the index is not above the level's tail.
cdef uint64_t list_insert(list_t *entries, uint32_t level, uint64_t index, content_t *content, uint64_t message_id, uint32_t body_len, uint64_t flags, int64_t expires_at_ms, uint32_t *wanted, slot_t **slot) noexcept nogil
# Recovery: the same for many entries, not resident, in rising positions per level; stops at the first that is refused. Returns how
# many were put in.
cdef uint64_t list_insert_many(list_t *entries, restored_t *restored, uint64_t count) noexcept nogil
# The level goes on above `index`; false when closed. Lower than the tail: no change.
cdef bint list_set_tail(list_t *entries, uint32_t level, uint64_t index) noexcept nogil
# A held entry becomes available in its place, as if it arrived now. False when there is none.
cdef bint list_publish_held(list_t *entries, uint64_t position, uint64_t flags, uint64_t hot_bytes, uint32_t *wanted, content_t **dropped) noexcept nogil
# list_insert at the next index of level 0 of a list that is closed to everybody else: the window of a shared queue.
cdef uint64_t list_insert_closed(list_t *entries, content_t *content, uint64_t message_id, uint64_t flags, int64_t expires_at_ms, uint32_t *wanted) noexcept nogil
