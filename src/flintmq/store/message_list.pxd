# The message list of seed 003: for each message that stands on several queues, that a transaction touched, or that is long, where it
# is. A message with one plain place is not in it: the queue's slot says all there is to say. Under the message log's lock.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_t

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
