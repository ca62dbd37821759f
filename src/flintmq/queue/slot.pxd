# The transitions of one entry. Each is one compare-and-swap of slot_t.state; nothing else writes that word after the entry
# was published, except list_delete (DEQUEUED -> DELETED, by the one who dequeued it). There is no AVAILABLE -> DEQUEUED edge:
# whoever removes an entry acquires it first, which is what closes the race of seed 000's `immediate`.
#
#   AVAILABLE -> ACQUIRED(owner), unstealable     slot_acquire
#   unstealable -> stealable                      slot_sent
#   ACQUIRED(owner) -> AVAILABLE                  slot_release
#   ACQUIRED(owner) -> DEQUEUED                   slot_dequeue
#
# Pairing: the winner's acquire CAS reads what the publisher's (or the releaser's) release store or CAS wrote, so the content
# pointer is visible. While ENTRY_BUSY is set every other transition waits, so whoever set it may read or swap the content.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.atomics cimport at_cas64, at_load64, at_store64
from flintmq.core.content cimport content_incref, content_t
from flintmq.queue.types cimport (
    ENTRY_ACQUIRED, ENTRY_ASIDE, ENTRY_AVAILABLE, ENTRY_BUSY, ENTRY_COUNT_SHIFT, ENTRY_DEQUEUED, ENTRY_FAILED, ENTRY_LOADING, ENTRY_LOGGED, ENTRY_NOT_RESIDENT,
    ENTRY_OWNER_SHIFT, ENTRY_PARKED, ENTRY_REDELIVERED, ENTRY_STATE_MASK, ENTRY_STUB, ENTRY_UNSTEALABLE, delivery_t, slot_t,
)

# Bytes of the body, resident or not. The caller holds the entry, or the list lock and ENTRY_BUSY, or sees that it can't change.
cdef inline uint32_t slot_body_len(slot_t *slot) noexcept nogil:
    cdef uint64_t word = <uint64_t>slot.content
    if word & 1:
        return <uint32_t>(word >> 1)
    return slot.content.body_len if word else 0

# The content field of a not resident entry: the body's length, tagged by bit 0 (contents are aligned).
cdef inline void slot_set_cold(slot_t *slot, uint32_t body_len) noexcept nogil:
    slot.content = <content_t *>((<uint64_t>body_len << 1) | 1)

# The content, NULL when it is not resident.
cdef inline content_t *slot_content(slot_t *slot) noexcept nogil:
    return NULL if <uint64_t>slot.content & 1 else slot.content

# False when it is not available, or a shell's stub, or not resident and `cold` isn't set.
cdef inline bint slot_acquire(slot_t *slot, uint32_t owner, bint cold) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & (ENTRY_STATE_MASK | ENTRY_STUB)) != ENTRY_AVAILABLE or (state & ENTRY_NOT_RESIDENT and not cold):
            return False
        if state & ENTRY_BUSY:
            continue
        if at_cas64(&slot.state, state, (state & 0xFFFFFFF8u) | ENTRY_ACQUIRED | ENTRY_UNSTEALABLE | (<uint64_t>owner << ENTRY_OWNER_SHIFT)):
            return True

cdef inline void slot_sent(slot_t *slot) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED or not state & ENTRY_UNSTEALABLE:
            return
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, state & ~<uint64_t>ENTRY_UNSTEALABLE):
            return

# False when `owner` does not hold it.
cdef inline bint slot_dequeue(slot_t *slot, uint32_t owner) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED or (state >> ENTRY_OWNER_SHIFT) != owner:
            return False
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, (state & 0xFFFFFFF0u) | ENTRY_DEQUEUED):
            return True

# ACQUIRED(owner) -> ACQUIRED(0), unstealable: the broker keeps it for a transaction. False when `owner` does not hold it.
cdef inline bint slot_pass_on(slot_t *slot, uint32_t owner) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED or (state >> ENTRY_OWNER_SHIFT) != owner:
            return False
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, (state & 0xFFFFFFFFu) | ENTRY_UNSTEALABLE):
            return True

# False when `owner` does not hold it. `delivered`: flag it redelivered and count the delivery (saturating).
cdef inline bint slot_release(slot_t *slot, uint32_t owner, bint delivered) noexcept nogil:
    cdef uint64_t state, wanted
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED or (state >> ENTRY_OWNER_SHIFT) != owner:
            return False
        # An answer to an earlier request for its content was lost while it was held: who wants it asks again.
        wanted = ((state & 0xFFFFFFF0u) & ~<uint64_t>(ENTRY_LOADING | ENTRY_PARKED | ENTRY_ASIDE | ENTRY_FAILED)) | ENTRY_AVAILABLE
        if delivered:
            wanted |= ENTRY_REDELIVERED
            if ((state >> ENTRY_COUNT_SHIFT) & 0xFFFF) != 0xFFFF:
                wanted += <uint64_t>1 << ENTRY_COUNT_SHIFT
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, wanted):
            return True

# Sets ENTRY_BUSY on an entry that is AVAILABLE (or also ACQUIRED with `held`); returns the state before, 0 when it is neither.
cdef inline uint64_t slot_hold(slot_t *slot, bint held) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_AVAILABLE and not (held and (state & ENTRY_STATE_MASK) == ENTRY_ACQUIRED):
            return 0
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, state | ENTRY_BUSY):
            return state

# Ends slot_hold with a new state (the one it returned, perhaps with other flags).
cdef inline void slot_unhold(slot_t *slot, uint64_t state) noexcept nogil:
    at_store64(&slot.state, state)

# A counted reference on the content; NULL when the entry is gone or not resident. `*state` (may be NULL) is what it was then.
cdef inline content_t *slot_borrow(slot_t *slot, bint held, uint64_t *state) noexcept nogil:
    cdef content_t *content = NULL
    cdef uint64_t before = slot_hold(slot, held)
    if state != NULL:
        state[0] = before
    if before == 0:
        return NULL
    content = slot_content(slot)
    if content != NULL:
        content_incref(content)
    slot_unhold(slot, before)
    return content

# Clears `flags` of an entry that `owner` holds; false when it does not.
cdef inline bint slot_clear(slot_t *slot, uint32_t owner, uint64_t flags) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED or (state >> ENTRY_OWNER_SHIFT) != owner:
            return False
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, state & ~flags):
            return True

# Sets `flags` of an acquired entry.
cdef inline bint slot_set(slot_t *slot, uint64_t flags) noexcept nogil:
    cdef uint64_t state
    while True:
        state = at_load64(&slot.state)
        if (state & ENTRY_STATE_MASK) != ENTRY_ACQUIRED:
            return False
        if not state & ENTRY_BUSY and at_cas64(&slot.state, state, state | flags):
            return True

cdef enum:                      # slot_begin_loading
    LOADING_NOT = 0             # it is resident, or not available any more: look again
    LOADING_FIRST = 1           # the caller is the first who asks
    LOADING_ASKED = 2           # somebody asked already

# A reader that needs the content of an available entry on disk marks its state (ENTRY_PARKED): the loaded content wakes the marked ones.
cdef inline int slot_begin_loading(slot_t *slot) noexcept nogil:
    cdef uint64_t state = slot_hold(slot, False)
    if state == 0:
        return LOADING_NOT
    slot_unhold(slot, state | ENTRY_LOADING | ENTRY_PARKED if state & ENTRY_NOT_RESIDENT else state)
    if not state & ENTRY_NOT_RESIDENT:
        return LOADING_NOT
    return LOADING_ASKED if state & ENTRY_LOADING else LOADING_FIRST

# What a pull hands out: an entry that is acquired, or (slot NULL) the content that a browser sees.
cdef inline void delivery_fill(delivery_t *out, slot_t *slot, content_t *content, uint64_t position, uint64_t state) noexcept nogil:
    out.slot = slot
    out.content = content
    out.position = position
    out.message_id = slot.message_id if slot != NULL else 0
    out.delivery_count = <uint32_t>((state >> ENTRY_COUNT_SHIFT) & 0xFFFF)
    out.redelivered = (state & ENTRY_REDELIVERED) != 0
    out.rotate = False
