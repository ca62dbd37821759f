# Entry lists: levels of segments of slots (the seed's QueueEntryList: add, next, iterator, head, plus compare and priorities).
#
# Kinds differ in list_ops_t only; storage, scanning and settlement are shared. Unless a function says "locked" it takes
# list_t.lock itself. Readers of slots (list_scan, list_next) must be visible to the queue's reclaimer: inside a consumer's
# send_lock, the puller's lock, or a pin.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport found_t, level_t, list_ops_t, list_t, place_t, segment_t, slot_t

cdef struct list_ops_t:
    uint32_t (*level_of)(list_t *entries, content_t *content) noexcept nogil     # where an arrival goes
    int (*compare)(uint64_t left, uint64_t right) noexcept nogil                 # below zero: `left` is served first
    int (*priorities)(list_t *entries) noexcept nogil                            # the seed's getPriorities
    bint in_order               # an arrival is always after everything that is there

# False when out of memory or when `kind` is reserved.
cdef bint list_init(list_t *entries, int kind, int levels, int level_rule) noexcept nogil
# Frees everything, contents included; nobody may be inside.
cdef void list_destroy(list_t *entries) noexcept nogil

# Puts an available entry with state flags `flags` at index `index` of the level (0: the next one). Returns its position, 0 when
# closed, out of memory or not above the level's tail. `*wanted` = list_t.wanted as read inside the same critical section.
cdef uint64_t list_add(list_t *entries, uint32_t level, uint64_t index, content_t *content, uint64_t message_id, uint64_t flags, int64_t expires_at_ms, uint32_t *wanted) noexcept nogil
# The same in two steps, for producers that log in between; they exclude each other by a lock of their own. The reserved entry is
# invisible until list_publish.
cdef slot_t *list_reserve(list_t *entries, uint32_t level, content_t *content, uint64_t message_id, uint64_t *position) noexcept nogil
cdef void list_publish(list_t *entries, slot_t *slot, uint64_t position, uint64_t flags, int64_t expires_at_ms, uint32_t *wanted) noexcept nogil

# The first available entry at or after position `start`. O(entries passed).
cdef bint list_scan(list_t *entries, place_t *place, uint64_t start, found_t *found) noexcept nogil
# `next` and `head` of the seed: the first entry at or after `start` that is available or acquired.
cdef bint list_next(list_t *entries, place_t *place, uint64_t start, found_t *found) noexcept nogil
# Moves the level's floor up to its first available entry, past runs of acquired and deleted ones. O(entries passed).
cdef void list_advance_floor(list_t *entries, place_t *place, uint32_t level) noexcept nogil

cdef slot_t *list_slot_locked(list_t *entries, uint64_t position, segment_t **segment) noexcept nogil
# A dequeued entry becomes deleted; its segment is unlinked when it was the last one there.
cdef void list_delete_locked(list_t *entries, slot_t *slot, segment_t *segment) noexcept nogil
# ACQUIRED(owner) -> DEQUEUED. 0: not the owner's; 1: deleted, the caller drops `*content`; 2: dequeued and logged: the caller
# tells the log, then calls list_finish.
cdef int list_dequeue(list_t *entries, uint64_t position, uint32_t owner, slot_t **slot, content_t **content) noexcept nogil
cdef void list_finish(list_t *entries, uint64_t position) noexcept nogil
# ACQUIRED(owner) -> AVAILABLE in its old place.
cdef bint list_release(list_t *entries, uint64_t position, uint32_t owner, bint delivered, uint32_t *wanted) noexcept nogil

# Acquires (owner 0) one expired available entry, lowest position first within a sweep of the same `now_ms`.
cdef bint list_take_expired(list_t *entries, int64_t now_ms, uint64_t *position, slot_t **slot) noexcept nogil
# Frees an unused tail segment and the spare when nothing was added since the last call.
cdef void list_shrink(list_t *entries) noexcept nogil
# Detaches the retired segments; list_free_retired frees them once nobody can be inside
# (`keep_spare`: one stays for the next growth), list_put_back_retired keeps them.
cdef segment_t *list_take_retired(list_t *entries) noexcept nogil
cdef void list_free_retired(list_t *entries, segment_t *retired, bint keep_spare) noexcept nogil
cdef void list_put_back_retired(list_t *entries, segment_t *retired) noexcept nogil
# Bytes of memory of slots, columns and directories (tests, management). O(segments).
cdef uint64_t list_memory(list_t *entries) noexcept nogil
