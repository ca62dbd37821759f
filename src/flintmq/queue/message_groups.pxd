# Message groups, and sorted queues: which entry of a queue a consumer may have next when that is not just the first one.
#
# Entries stand in the entry list as in any queue. Beside it each value of one header has a group with a heap of positions; a group is in
# the heap of its consumer, in that of groups that are free, or in none, so the next entry of a consumer is the lower top of two heaps.
# A sorted queue is one whose groups are always free and ordered by their value.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.group_keys cimport group_key_t
from flintmq.queue.types cimport consumer_t, found_t, member_t, message_groups_t, place_t, queue_t
from flintmq.selectors.program cimport program_t

cdef enum:                      # of groups_take
    GROUPS_NOTHING = 0
    GROUPS_TAKEN = 1
    GROUPS_COLD = 2             # the entry is not in memory
    GROUPS_ASK = 3              # it is in a free group: may another consumer have it first?
    GROUPS_UNREAD = 4           # what comes first is not known before groups_read
    GROUPS_AGAIN = 5            # something was passed over: call again
    GROUPS_READ = 6             # of groups_read: an entry's group is known now, or it needs none

cdef enum:                      # whether groups_take may take of a free group
    FREE_NOT = 0
    FREE_ASK = 1
    FREE_YES = 2

# Args: mode: GROUPS_*; name: a counted reference, which it takes; most: groups; idle_most: groups without a message that stay a
# consumer's. NULL: no memory, the reference is still the caller's.
cdef message_groups_t *groups_new(int mode, program_t *name, uint32_t most, uint32_t idle_most) noexcept nogil
cdef void groups_free(message_groups_t *groups) noexcept nogil

# An entry is available for the first time; key NULL: its group is to be read. True: a member is to be told (groups_told).
cdef bint groups_add(queue_t *queue, uint64_t position, group_key_t *key) noexcept nogil
# Acquires the next entry for `owner`, one of the member's groups or a free one (as `free` says); member NULL: a free one, which is nobody's
# as long as the entry is held. Called with the send_lock of its consumer, or the puller's lock. found: the slot and the position (TAKEN,
# COLD, ASK).
cdef int groups_take(queue_t *queue, member_t *member, uint32_t owner, int free, found_t *entry) noexcept nogil
# Looks at one entry whose group is not known: GROUPS_READ (then there may be members to tell), GROUPS_COLD, GROUPS_AGAIN (no memory),
# GROUPS_NOTHING (all are known). Called as groups_take; place: the caller's.
cdef int groups_read(queue_t *queue, member_t *member, place_t *place, found_t *entry) noexcept nogil
# The content of the cold entry at `position` was read: True: it was the next one to be read, and its group is known now (then there may be
# members to tell). place: the caller's, under a pin of the queue.
cdef bint groups_note(queue_t *queue, place_t *place, uint64_t position, content_t *content) noexcept nogil
# Whether the member could find something. False is exact; True may be late.
cdef bint groups_pending(message_groups_t *groups, member_t *member) noexcept nogil

# An entry came back / ended / is the broker's until it does either, and `waits`: its group waits, too. True: there is work for consumers
# that there was not before, for members (groups_told) or whoever is next.
cdef bint groups_returned(queue_t *queue, uint64_t position) noexcept nogil
cdef bint groups_ended(queue_t *queue, uint64_t position) noexcept nogil
cdef bint groups_passed_on(queue_t *queue, uint64_t position, bint waits) noexcept nogil
# Those entries that are there now have groups that are to be read (a restart).
cdef bint groups_read_all(queue_t *queue) noexcept nogil

# One of the members to be woken; NULL: no more. Under the manager lock, which keeps it alive.
cdef member_t *groups_told(message_groups_t *groups) noexcept nogil
# Gives up to `most` of the groups of a consumer that was removed back, under the manager lock; True: call again.
cdef bint groups_leave(message_groups_t *groups, member_t *member, uint32_t most) noexcept nogil
# Passes over `most` places and forgets what is gone; True: something was.
cdef bint groups_sweep(queue_t *queue, uint32_t most) noexcept nogil

cdef member_t *member_new(consumer_t *consumer) noexcept nogil
cdef void member_free(member_t *member) noexcept nogil
