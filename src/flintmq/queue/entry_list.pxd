# Entry lists: levels of segments of slots (the seed's QueueEntryList: add, next, iterator, head, plus compare and priorities).
#
# Kinds differ in list_ops_t (list_kinds.pxd) only; storage, scanning and settlement are shared. Unless a function says "locked" it takes
# list_t.lock itself. Readers of slots (list_scan, list_next) must be visible to the queue's reclaimer: inside a consumer's
# send_lock, the puller's lock, or a pin.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport found_t, level_t, list_t, place_t, segment_t, slot_t

cdef enum:
    LARGE_SLOTS = 1365          # slots of a large segment at most: eight pages

# Slots of the first segment of a level, of the second and of the others; one less than a power of two that the latter are at least. Set before the first
# queue, by list_set_segments only.
cdef uint32_t first_slots
cdef uint32_t small_slots
cdef uint32_t large_slots
cdef uint64_t large_mask
# Smaller segments, for tests: 1 to 16 and 1 to LARGE_SLOTS slots.
cdef void list_set_segments(uint32_t small, uint32_t large) noexcept nogil

cdef extern from "<stdint.h>" nogil:
    uint64_t ALL_HOT "UINT64_MAX"    # list_past_window: no window at all

# Puts an available, resident entry behind the last one of the level. Returns its position, 0 when closed or out of memory.
# `*wanted` = list_t.wanted as read inside the same critical section.
cdef uint64_t list_add(list_t *entries, uint32_t level, content_t *content, uint64_t message_id, int64_t expires_at_ms, uint32_t *wanted) noexcept nogil
# The slot for a new entry at `index`, counted as live, its expiry noted; NULL when closed, refused or out of memory. Locked.
cdef slot_t *list_claim_locked(list_t *entries, uint32_t level, uint64_t index, int64_t expires_at_ms) noexcept nogil
# list_add in two steps, for producers that log in between; they exclude each other by a lock of their own. The reserved entry is
# invisible until list_publish, which makes it not resident when its message has an id and the queue's window of `hot_bytes` is
# passed: then `*dropped` is the content whose reference the caller drops, else NULL.
cdef slot_t *list_reserve(list_t *entries, uint32_t level, content_t *content, uint64_t message_id, uint64_t *position) noexcept nogil
cdef void list_publish(list_t *entries, slot_t *slot, uint64_t position, uint64_t flags, int64_t expires_at_ms, uint64_t hot_bytes, uint32_t *wanted, content_t **dropped) noexcept nogil
# Whether content of `body_len` bytes that arrives now should not stay in memory; with all bits of `hot_bytes` set: it stays. Exact under the lock, a good guess without it.
cdef bint list_past_window(list_t *entries, uint32_t body_len, uint64_t hot_bytes) noexcept nogil

# The first available entry at or after position `start`. O(entries passed). A shell has one there, which is not known: then `slot` is its
# stub (ENTRY_STUB, available and cold), and `position` the first at which its entries are to be looked at.
cdef bint list_scan(list_t *entries, place_t *place, uint64_t start, found_t *entry) noexcept nogil
# `next` and `head` of the seed: the first entry at or after `start` that is available or acquired (but not held).
cdef bint list_next(list_t *entries, place_t *place, uint64_t start, found_t *entry) noexcept nogil
# Moves the level's floor up to its first available entry that is not in a span, past runs of acquired and deleted ones. O(entries passed).
cdef void list_advance_floor(list_t *entries, place_t *place, uint32_t level) noexcept nogil
# Its two steps. First where the floor may be, and `*released` = list_t.released from before the scan; then the move, which is not made when
# an entry came back in between: the scan may have passed it.
cdef uint64_t list_find_floor(list_t *entries, place_t *place, uint32_t level, uint64_t *released) noexcept nogil
cdef void list_raise_floor(list_t *entries, uint32_t level, uint64_t index, uint64_t released) noexcept nogil

# The slot of a position; NULL: nothing stands there, or it is in a shell.
cdef slot_t *list_slot_locked(list_t *entries, uint64_t position, segment_t **segment) noexcept nogil
# A dequeued entry becomes deleted, and is counted by `reason` (REASON_*); its segment is unlinked when it was the last one there.
cdef void list_delete_locked(list_t *entries, slot_t *slot, segment_t *segment, int reason) noexcept nogil
# ACQUIRED(owner) -> DEQUEUED. 0: not the owner's; 1: deleted, the caller drops `*content`; 2: dequeued and logged: the caller
# tells the log, then calls list_finish. `*content` is NULL when it was not resident; `*spilled`: its id in the page log, or 0.
cdef int list_dequeue(list_t *entries, uint64_t position, uint32_t owner, int reason, slot_t **slot, content_t **content, uint64_t *spilled) noexcept nogil
cdef void list_finish(list_t *entries, uint64_t position, int reason) noexcept nogil
# ACQUIRED(owner) -> AVAILABLE in its old place.
cdef bint list_release(list_t *entries, uint64_t position, uint32_t owner, bint delivered, uint32_t *wanted) noexcept nogil

# An acquired or held entry became available in its old place: its figures (`released`), its span, its expiry. The caller calls count_behind,
# and before this, for a held entry, count_arrival and count_taken: what was counted nowhere comes back from the broker. Locked.
cdef void list_came_back_locked(list_t *entries, segment_t *segment, uint64_t index, uint64_t body_len) noexcept nogil
# The lowest of `released` (0: none) and the positions of the events since `*seen`, which becomes what list_t.behind is now. A reader calls
# it before it scans: an event that it does not know of yet it finds the next time.
cdef uint64_t list_lowest_behind(list_t *entries, uint64_t *seen, uint64_t released) noexcept nogil

# --- for upkeep (locked)
# A segment without slots, of a level whose last one ends before `base`. NULL: no memory.
cdef segment_t *list_append_shell(list_t *entries, uint32_t level, uint64_t base, uint32_t count) noexcept nogil
# A new last segment with at most `count` slots (fewer than a full one), of a level whose last one ends before `base`. False: no memory.
cdef bint list_append_bounded(list_t *entries, uint32_t level, uint64_t base, uint32_t count) noexcept nogil
# Zeroed slots of a large segment. NULL: no memory.
cdef slot_t *slots_new() noexcept nogil
cdef void slots_free(slot_t *slots) noexcept nogil
cdef void segment_free(segment_t *segment) noexcept nogil
cdef void directory_free(level_t *level) noexcept nogil
# Place in the directory of the first segment that ends after `index`; level.count when there is none.
cdef uint32_t list_directory_find(level_t *level, uint64_t index) noexcept nogil
# Takes a segment out of the level and puts it on the retired list; its `next` stays for readers inside.
cdef void list_unlink_locked(list_t *entries, level_t *level, segment_t *segment) noexcept nogil
