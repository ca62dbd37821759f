# Entries at given positions: recovery, spilled content, open transactions. Every function takes list_t.lock itself; producers of a
# queue with a log exclude each other by log_lock, so whoever adds holds it.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport list_t, restored_t, slot_t

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
