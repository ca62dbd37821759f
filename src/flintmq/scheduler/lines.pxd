# The run queue: which actor runs next, and which worker sleeps. All functions take its lock themselves.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.scheduler.types cimport actor_system_t, actor_t, list_t, request_t, worker_t

cdef enum:
    VRUN_NEW = -1               # actor_t.vrun of one that never ran: is next, and charged a slice in advance

# Time of a slice when that many actors are runnable: a quantum up to 8 of them, then they share as much time.
cdef int64_t run_queue_slice(actor_system_t *system, uint32_t runnable) noexcept nogil
# Room for that many actors. False: no memory.
cdef bint run_queue_reserve(actor_system_t *system, uint32_t actors) noexcept nogil
# A scheduled actor (it holds a reference); wakes a sleeping worker if none is on its way. O(log n).
cdef void run_queue_put(actor_system_t *system, actor_t *actor) noexcept nogil
# The next actor for `worker`, or NULL. `runnable`: how many there are, this one counted. O(log n).
cdef actor_t *run_queue_take(actor_system_t *system, worker_t *worker, uint32_t *runnable) noexcept nogil
# The slice is over and cost that much; back: there is more to do, the actor (still SCHEDULED) queues again.
cdef void run_queue_charge(actor_system_t *system, worker_t *worker, actor_t *actor, int64_t cost_ns, bint back) noexcept nogil
# Sleeps until there is something. False: the system stops.
cdef bint run_queue_sleep(actor_system_t *system, worker_t *worker) noexcept nogil
cdef void run_queue_stop(actor_system_t *system) noexcept nogil


# The requests of one actor: mailbox, parked ones, and the heap of their deadlines. Every function wants the actor's lock held.
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
