# The consumer manager of seed 004: four lists (Interested, NotInterested, Notified, NonAcquiring), the first and third per
# consumer priority, and the decision whom to wake. Every function takes manager_t.lock itself; none may be called with
# list_t.lock held. Callers keep the consumer alive: its own loop, or its send_lock.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, flows_t, queue_t, selection_t, slot_t, waiter_t

cdef enum:
    NOTIFY_NOT = 0              # it can take nothing
    NOTIFY_DONE = 1
    NOTIFY_BEFORE = 2           # it was told already, or is pulling: it will look once more

# --- consumers and credit
cdef bint credit_take(consumer_t *consumer) noexcept nogil
cdef void credit_give_back(consumer_t *consumer) noexcept nogil
cdef bint credit_left(consumer_t *consumer) noexcept nogil
# Credit that was taken for an entry it did not get was given back, perhaps by another thread: the session looks after those that share
# the credit, and (`own`) a consumer that was found without credit meanwhile waits on INTERESTED again; then true: it may have been passed
# over, so what is available is to be told again.
cdef bint manager_credit_back(queue_t *queue, consumer_t *consumer, bint own) noexcept nogil

# --- lists
# 0: refused (exclusive, removed queue, no memory).
cdef bint manager_add(queue_t *queue, consumer_t *consumer) noexcept nogil
# To REMOVED: from now on nobody picks it. Returns the list it was on. Its place in manager_t.all stays until manager_forget.
cdef uint32_t manager_remove(queue_t *queue, consumer_t *consumer) noexcept nogil
cdef void manager_forget(queue_t *queue, consumer_t *consumer) noexcept nogil
# Moves the consumer to the back of list `to` (CONSUMER_*) if it is attached and the table of docs/QUEUE_CORE.md has the edge.
# INTERESTED to INTERESTED goes to the back. Returns the list it was on, 0 when it did not move.
cdef uint32_t manager_move(queue_t *queue, consumer_t *consumer, uint32_t to) noexcept nogil

# --- decisions
# Counts everything that can make entries available or takeable; a consumer that found nothing at version v need not look
# again while the version stays v.
cdef uint64_t queue_version(queue_t *queue) noexcept nogil
cdef void manager_changed(queue_t *queue) noexcept nogil
# An entry became available: notifies every browser if `browsers`, wakes one acquiring consumer, and one of each selection that wants it.
# `content`: judges predicates, NULL: not. `position` 0: of something else than an entry that became available.
cdef void manager_available(queue_t *queue, uint64_t position, content_t *content, bint browsers) noexcept nogil
# Entries from `position` on became available: selections look for themselves.
cdef void manager_behind(queue_t *queue, uint64_t position) noexcept nogil
# More of what the selection wants is there than the consumer that just took some can take at once: another one is woken.
cdef void manager_spread(queue_t *queue, selection_t *selection) noexcept nogil
# The consumer was stopped in the middle of its look: it is told again.
cdef void manager_again(queue_t *queue, consumer_t *consumer) noexcept nogil
# Wakes one consumer that may have something to do; `force`: also one that found nothing at this version.
cdef bint manager_wake_one(queue_t *queue, content_t *content, bint force) noexcept nogil
# For queues that know themselves who should work (queue_ops_t); called with manager_t.lock held. The consumer is told if it waits on
# INTERESTED and can take something.
cdef int manager_notify_locked(queue_t *queue, consumer_t *consumer) noexcept nogil    # NOTIFY_*
# For counts of ready consumers; called with manager_t.lock held. Whether the consumer is not suspended and has credit; the consumer, which
# is on INTERESTED, goes to its back.
cdef bint manager_ready(consumer_t *consumer) noexcept nogil
cdef void manager_rotate_locked(queue_t *queue, consumer_t *consumer) noexcept nogil
# Those who wait for the head's content (basic.get): each is told of every change until it is taken off. A waiter is added before
# the look that decides whether to wait.
cdef void manager_add_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil
cdef void manager_remove_waiter(queue_t *queue, waiter_t *waiter) noexcept nogil    # returns when no wake is under way
cdef void manager_wake_waiters(queue_t *queue) noexcept nogil
# True when a consumer of higher priority with interest and credit, not suspended, should have this entry first.
cdef bint manager_outranked(queue_t *queue, consumer_t *consumer, slot_t *slot) noexcept nogil
# The next consumer to offer an entry to, its send_lock taken by this call; NULL when all were asked in this round.
cdef consumer_t *manager_next_offer(queue_t *queue, uint32_t round_no) noexcept nogil
cdef uint32_t manager_new_round(queue_t *queue) noexcept nogil
# The consumer got an offer: it is Notified and its target scheduled.
cdef void manager_offered(queue_t *queue, consumer_t *consumer) noexcept nogil
# True when no pull, offer, puller or pin is inside the entry list: what was unlinked before can be freed.
cdef bint manager_quiet(queue_t *queue) noexcept nogil
# What attached and former consumers acquired. O(consumers on NOTIFIED); what one acquires is counted when it leaves that list.
cdef void manager_figures(queue_t *queue, uint64_t *acquired, uint64_t *acquired_bytes) noexcept nogil
# The consumer acquired something and is on none of the lists that are counted by themselves. Under its send_lock.
cdef void manager_count(queue_t *queue, consumer_t *consumer) noexcept nogil
# Deliveries of attached and former consumers. O(consumers).
cdef uint64_t manager_delivered(queue_t *queue) noexcept nogil
# The part of a queue's flows that its consumers know. O(consumers).
cdef void manager_flows(queue_t *queue, flows_t *flows) noexcept nogil
