# A stream behind the queue core's face (queue_ops_t). Everything here: any thread, no GIL, unless it says otherwise.
#
# How a consumer comes to a stream: StreamQueue.open_seat (streams/control.pyi) makes a Seat; seat_take() moves it into `consumer.reader`
# of a consumer that is not attached yet (see control.pxd); from queue_add_consumer on it delivers. The consumer frees it.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport queue_t, slot_t
from flintmq.streams.types cimport cursor_t, group_t, seat_t, stream_queue_t

# Wakes of a stream's consumers: one for each lone consumer, one for each group. Any thread, no GIL.
# Tells one member of the group, if none was told before; `others`: then, too. Manager lock held. True when one was told now.
cdef bint wake_group_locked(group_t *group, bint others) noexcept nogil
# The same, taking the lock.
cdef void stream_wake_group(group_t *group, bint others) noexcept nogil
cdef void stream_wake_seat(seat_t *seat) noexcept nogil
cdef void stream_wake_all(stream_queue_t *stream) noexcept nogil


# NULL when the queue is no stream.
cdef stream_queue_t *stream_of(queue_t *queue) noexcept nogil
# As queue_release of a delivered message, with the delay in milliseconds until it comes again; -1: the group's own.
cdef bint stream_release_after(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int64_t delay_ms) noexcept nogil

# --- for the rest of the stream core
# Makes the queue a stream: `stream` with its source and rules set; the queue frees it.
cdef void stream_install(queue_t *queue, stream_queue_t *stream) noexcept nogil
cdef group_t *stream_next_group(stream_queue_t *stream, group_t *group) noexcept nogil     # after `group`; NULL: the first, or the end
cdef void seat_free(seat_t *seat) noexcept nogil               # one that no consumer has
# Who processes requests (stream_queue_t.ask) calls cursor_read(cursor), then cursor_answered: the owner looks again,
# and what kept it alive is dropped. cursor_refused instead of both: it is tried again later.
cdef void cursor_answered(cursor_t *cursor) noexcept nogil
cdef void cursor_refused(cursor_t *cursor) noexcept nogil
