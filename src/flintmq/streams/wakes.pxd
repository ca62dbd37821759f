# Wakes of a stream's consumers: one for each lone consumer, one for each group. Any thread, no GIL.
from flintmq.streams.types cimport group_t, seat_t, stream_queue_t

# Tells one member of the group, if none was told before; `others`: then, too. Manager lock held. True when one was told now.
cdef bint wake_group_locked(group_t *group, bint others) noexcept nogil
# The same, taking the lock.
cdef void stream_wake_group(group_t *group, bint others) noexcept nogil
cdef void stream_wake_seat(seat_t *seat) noexcept nogil
cdef void stream_wake_all(stream_queue_t *stream) noexcept nogil
