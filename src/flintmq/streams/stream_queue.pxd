# A stream behind the queue core's face (queue_ops_t). Everything here: any thread, no GIL, unless it says otherwise.
#
# How a consumer comes to a stream: StreamQueue.open_reader (streams/handle.pyi) makes a StreamReader; take_reader() moves it into
# `consumer.reader` of a consumer that is not attached yet; from queue_add_consumer on it delivers. The consumer frees it.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport consumer_t, queue_t, slot_t
from flintmq.streams.types cimport stream_group_t, stream_queue_t, stream_reader_t

# NULL when the queue is no stream.
cdef stream_queue_t *stream_of(queue_t *queue) noexcept nogil
# As queue_release of a delivered message, with the delay in milliseconds until it comes again; -1: the group's own.
cdef bint stream_release_after(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int64_t delay_ms) noexcept nogil
# A holder that keeps its own time: the message becomes visible again that many milliseconds from now; 0: never. False: not held.
cdef bint stream_extend(queue_t *queue, slot_t *slot, uint64_t position, uint32_t owner, int64_t visibility_ms) noexcept nogil
# Everything `owner` holds of its group is available at once, flagged redelivered. Returns how many.
cdef uint32_t stream_release_owner(queue_t *queue, uint32_t owner) noexcept nogil
# Offset that `position` of a delivery stands for: position - 1.
