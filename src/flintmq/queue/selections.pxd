# Which consumers with a selector an entry is for, without asking each of them, and which entries a selection has still to look at.
#
# A selection is fed: whoever makes an entry available has it compared here, and its position goes into the heaps of the selections that
# want it. So a pull takes the lowest position of a heap; the queue is walked once, from a selection's first consumer on, and again only
# from where a heap had no room. Selections that want certain values of one name (`name = 'x'`, IN) are found by the value's hash.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, queue_t, selection_t, selections_t

cdef extern from *:
    """
    #ifndef FLINTMQ_SELECTION_H
    #define FLINTMQ_SELECTION_H
    #define FLINTMQ_SELECTION_END UINT64_MAX
    #endif
    """
    const uint64_t SELECTION_END "FLINTMQ_SELECTION_END"

cdef enum:
    SELECTION_HEAP_MAX = 1024   # positions; what finds no room is looked for again

# Whether a consumer can be given something now.
ctypedef bint (*ready_t)(consumer_t *consumer) noexcept nogil

# --- under the manager lock
# Puts the consumer among those of the same selector; `fresh` and `all`: zeroed memory that it takes (then NULL) if it needs it. False: no
# memory. A new selection has the whole queue to look at.
cdef bint selection_join(queue_t *queue, consumer_t *consumer, selections_t **all, selection_t **fresh) noexcept nogil
# The consumer leaves; with the last one the selection goes.
cdef void selection_leave(queue_t *queue, consumer_t *consumer) noexcept nogil
# An entry is available: its position goes to all who want it. Returns them, chained by `due`. content NULL: it is looked up.
cdef selection_t *selections_came(queue_t *queue, uint64_t position, content_t *content) noexcept nogil
# Entries from `position` on became available: everybody has to look.
cdef selection_t *selections_behind(queue_t *queue, uint64_t position) noexcept nogil
# The content of the cold entry at `position` was read, that of `before` (0: none) just before it, and between the two nothing is
# available: selections whose look has come that far know it now. True: there was one. Takes the manager lock itself.
cdef bint selections_note(queue_t *queue, uint64_t before, uint64_t position, content_t *content) noexcept nogil
# Whether one that has a ready consumer above this priority wants the message (NULL: perhaps).
cdef bint selections_outrank(queue_t *queue, int priority, content_t *content, ready_t ready) noexcept nogil
# Whether there is anything to look at.
cdef bint selection_pending(selection_t *selection) noexcept nogil
cdef void selection_wait(queue_t *queue, selection_t *selection, bint waits) noexcept nogil

# --- under the send_lock of one of its consumers
cdef enum:                      # of selection_next
    NEXT_NONE = 0               # nothing to look at, or another one looks
    NEXT_POSITION = 1           # *position: taken out of the heap, whoever can't use it puts it back
    NEXT_SCAN = 2               # look from *position on, then call selection_scanned
cdef int selection_next(selection_t *selection, uint64_t *position) noexcept nogil
cdef void selection_put(selection_t *selection, uint64_t position) noexcept nogil
# The look has ended before `upto` (SELECTION_END: at the end of the queue); found: the position of an entry that is wanted, 0: none.
cdef void selection_scanned(selection_t *selection, uint64_t upto, uint64_t wanted) noexcept nogil

# With the queue.
cdef void selections_free(selections_t *all) noexcept nogil
