# The requests of one actor: mailbox, parked ones, and the heap of their deadlines. Every function wants the actor's lock held.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from flintmq.scheduler.types cimport actor_t, list_t, request_t

# Takes a new request in. False: the mailbox is full, or no memory for its deadline.
cdef bint mailbox_put(actor_t *actor, request_t *request) noexcept nogil
# The request that is to be looked at now (place RUNNING, out of the heap), or NULL: the unfinished one, woken ones, then the mailbox.
cdef request_t *mailbox_take(actor_t *actor) noexcept nogil
# Back from process(): unfinished, or parked. False: no memory for its deadline.
cdef bint mailbox_put_back(actor_t *actor, request_t *request) noexcept nogil
cdef bint mailbox_park(actor_t *actor, request_t *request) noexcept nogil
# Takes a request out of wherever it is. False: it is not here (running, or answered).
cdef bint mailbox_remove(actor_t *actor, request_t *request) noexcept nogil
# The first request whose time is over at `now`, taken out; NULL: none.
cdef request_t *mailbox_expired(actor_t *actor, int64_t now) noexcept nogil
# The earliest deadline or end of hold; 0: none.
cdef int64_t mailbox_due(actor_t *actor) noexcept nogil
# All requests, taken out, linked by `next`.
cdef request_t *mailbox_clear(actor_t *actor) noexcept nogil
cdef void mailbox_free(actor_t *actor) noexcept nogil
