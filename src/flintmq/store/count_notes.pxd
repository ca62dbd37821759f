# Counts of deliveries in the log: a note for each logged entry that came back. See count_notes.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.types cimport queue_t
from flintmq.store.log.log cimport log_t
from flintmq.store.logs cimport Logs

cdef enum:
    NOTES_AT_ONCE = 256          # notes that end together
    LOOKS = 2                   # notes that a new one looks at
    LOOKS_MOST = 32             # of one call, under the lock: some microseconds

cdef struct count_note_t:
    uint64_t lsn
    uint64_t position
    queue_t *queue              # counted
    uint32_t count              # how often the entry came back
    count_note_t *previous      # in the order of their LSNs
    count_note_t *next
    count_note_t *same          # the next one with the same key in `by_place`

cdef struct count_notes_t:
    uint32_t lock               # then, inside of it, the list lock of a queue, or the log's lock
    log_t *log
    count_note_t *first
    count_note_t *last
    count_note_t *cursor        # whom the next look is for; NULL: the first one
    uint64_t count
    map64_t by_place
    uint64_t ended[NOTES_AT_ONCE]  # LSNs of notes whose entries have ended
    uint32_t ended_count

cdef class CountNotes:
    cdef Logs logs
    cdef count_notes_t notes

# log_port_t.counted of a LogStore.
cdef bint counts_note(void *context, queue_t *queue, uint64_t position, uint32_t count) noexcept nogil
