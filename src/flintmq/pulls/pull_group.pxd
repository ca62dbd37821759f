# One (queue, group) as pulls see it: ask, be answered, settle. No GIL, any thread, unless said otherwise.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.pulls.types cimport answers_t, pull_group_t, lease_t, lease_table_t, pull_t
from flintmq.queue.types cimport queue_t, slot_t
from flintmq.scheduler.actor cimport actor_system_t

# NULL: no memory. `serial` makes its actor's key unique: two groups never share an actor, whatever their names. Takes references.
cdef pull_group_t *pull_group_new(actor_system_t *system, queue_t *queue, uint64_t serial, uint32_t leases_max) noexcept nogil
# Its consumer joins the queue. False: an exclusive consumer is there, or the queue is deleted.
cdef bint pull_group_attach(pull_group_t *pull_group) noexcept nogil
# Its pulls find nothing while `paused`; then those that wait look again.
cdef void pull_group_pause(pull_group_t *pull_group, bint paused) noexcept nogil
# No more pulls; those that wait are answered CLOSED.
cdef void pull_group_close(pull_group_t *pull_group) noexcept nogil
# True: nobody pulls and no thread of the actor system is inside. With `closed` set it stays so.
cdef bint pull_group_is_idle(pull_group_t *pull_group) noexcept nogil
# Only when it is closed and idle. Leased messages go back to the queue.
cdef void pull_group_free(pull_group_t *pull_group) noexcept nogil

# Asks: most, bytes_max, visibility_ns, answers and owner are set. hold_ns: how long to wait for messages, 0: not at all. DISPATCH_* of
# scheduler/actor.pxd; from DISPATCH_OK on the pull is answered exactly once, by answers_push.
cdef int pull_group_pull(pull_group_t *pull_group, pull_t *pull, int64_t hold_ns) noexcept nogil

# --- leases
# The end of a leased message (REASON_* of queue/types.pxd). False: the lease is not known (any more).
cdef bint pull_group_settle(pull_group_t *pull_group, uint64_t lease, int reason) noexcept nogil
# Takes a lease out without settling its message: the position, for pull_group_finish or pull_group_return; 0: not known.
cdef uint64_t pull_group_take(pull_group_t *pull_group, uint64_t lease) noexcept nogil
cdef bint pull_group_finish(pull_group_t *pull_group, uint64_t position, int reason) noexcept nogil
cdef bint pull_group_return(pull_group_t *pull_group, uint64_t position, bint delivered) noexcept nogil
# The message goes back: at once, or after delay_ns; -1: as its queue says. False: not known. `delivered`: it may have reached the client.
cdef bint pull_group_release(pull_group_t *pull_group, uint64_t lease, int64_t delay_ns, bint delivered) noexcept nogil
# From now on it has visibility_ns until it goes back. False: not known.
cdef bint pull_group_extend(pull_group_t *pull_group, uint64_t lease, int64_t visibility_ns) noexcept nogil
# Gives back what is due, `most` at most; returns how many.
cdef uint32_t pull_group_due(pull_group_t *pull_group, int64_t now_ns, uint32_t most) noexcept nogil
cdef uint32_t pull_group_leases(pull_group_t *pull_group) noexcept nogil
# When the first lease ends, or delay: monotonic nanoseconds, 0: there is none.
cdef int64_t pull_group_next_due(pull_group_t *pull_group) noexcept nogil

# --- answers
cdef void answers_push(answers_t *answers, pull_t *pull) noexcept nogil
# Everything that was pushed, oldest first, linked by `next`; clears the descriptor. One thread.
cdef pull_t *answers_take(answers_t *answers) noexcept nogil

# --- the table of leases, by number and by time. Not thread-safe: under the pull group's lease_lock
cdef void leases_init(lease_table_t *table) noexcept nogil
cdef void leases_free(lease_table_t *table) noexcept nogil
# A new lease, LEASE_HELD; its number, 0 when memory is exhausted. O(log n). Pointers from leases_find are not good after it.
cdef uint64_t leases_add(lease_table_t *table, slot_t *slot, uint64_t position, uint64_t until_ns, uint64_t delivered_us) noexcept nogil
# NULL: settled, gone back, or never given. O(1).
cdef lease_t *leases_find(lease_table_t *table, uint64_t number) noexcept nogil
# O(log n).
cdef void leases_move(lease_table_t *table, lease_t *lease, uint64_t until_ns) noexcept nogil
cdef void leases_remove(lease_table_t *table, lease_t *lease) noexcept nogil
# The lease that goes back first; NULL: there is none.
cdef lease_t *leases_first(lease_table_t *table) noexcept nogil
