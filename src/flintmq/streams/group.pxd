# A group: consumers that share one place. Everything takes group.lock itself; nothing here wakes anybody, the caller does.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport consumer_t, delivery_t
from flintmq.streams.types cimport cursor_t, group_t, open_list_t, open_t, seat_t, stream_queue_t

cdef enum:                      # outcomes of a take
    TAKE_DONE = 0
    TAKE_NOTHING = 1
    TAKE_NO_CREDIT = 2

cdef struct asks_t:             # reads that the caller has asked (stream_queue.stream_ask) once it holds no lock
    uint32_t count
    cursor_t *cursors[2]
    bint more                   # there may be more to take

cdef group_t *group_new(stream_queue_t *stream, const uint8_t *name, uint32_t name_len) noexcept nogil     # NULL: no memory
cdef void group_free(group_t *group) noexcept nogil            # nobody uses it any more, its reads ended. May take the GIL
# The next message for this consumer: returned offsets first, the lowest of them first, else the next offset that was never delivered. Takes
# the consumer's credit.
# The consumer's send_lock is held.
cdef int group_take(group_t *group, seat_t *seat, consumer_t *consumer, delivery_t *out, asks_t *asks) noexcept nogil
# Settles an offset on behalf of its holder. `*freed`: the group was full and can deliver again; the caller wakes it.
cdef bint group_settle(group_t *group, uint64_t offset, uint32_t owner, int reason, bint *freed) noexcept nogil
# The holder returns an offset: it is available in `delay_ms` (0: at once), or dead. `delivered`: it reached a client, or may have.
cdef bint group_return(group_t *group, uint64_t offset, uint32_t owner, bint delivered, int64_t delay_ms) noexcept nogil
# Offsets that are due come back. True: members should be woken (also after a failed read's pause). `*due_ms`: when the next is due; 0: none.
cdef bint group_tick(group_t *group, int64_t *due_ms) noexcept nogil
cdef bint group_has_work(group_t *group) noexcept nogil        # something may be there for a member
cdef uint64_t group_base(group_t *group) noexcept nogil        # everything below is done
# Dead ones in order: the first above or at `*offset`, which is set to it. False: none.
cdef bint group_next_dead(group_t *group, uint64_t *offset, int *reason, uint32_t *count) noexcept nogil
cdef bint group_dead_done(group_t *group, uint64_t offset) noexcept nogil


# --- open offsets: those of a group that were delivered and are not done. All under the group's lock. Progress as ranges: whatever is below the
# group's `next` and not in this list is done, so the gaps between its entries are the acked ranges and cost nothing.
# Appends; `offset` is above all that are there. NULL: no memory. Good until the next push.
cdef open_t *open_push(open_list_t *opens, uint64_t offset) noexcept nogil
cdef open_t *open_find(open_list_t *opens, uint64_t offset) noexcept nogil        # NULL: done. O(log n)
# Changes the state; counts and hints follow. OPEN_DONE takes it off.
cdef void open_become(open_list_t *opens, open_t *item, uint8_t state, int64_t due_ms) noexcept nogil
cdef open_t *open_first_ready(open_list_t *opens) noexcept nogil                  # NULL: none. Amortised O(1)
# Takes off what is at or above `offset`: the stream lost its end. O(what goes).
cdef void open_cut(open_list_t *opens, uint64_t offset) noexcept nogil
# The lowest open offset, or `next`: everything below is done.
cdef uint64_t open_base(open_list_t *opens, uint64_t next) noexcept nogil
cdef void open_free(open_list_t *opens) noexcept nogil
