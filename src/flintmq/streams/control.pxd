# A stream for the control plane: the Python object over one stream_queue_t, which sessions, pulls and tests hold.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport consumer_t, queue_t
from flintmq.store.stream.stream_batch cimport stream_filter_t
from flintmq.store.stream.stream_files cimport StreamSource
from flintmq.streams.types cimport cursor_t, group_t, seat_t, stream_queue_t

# Gives the consumer its seat, before queue_add_consumer; the Seat is empty afterwards. Raises ValueError when it was empty already, or is
# of another queue. The consumer is made by consumer_new with CONSUMER_ACQUIRES.
cdef int seat_give(Seat seat, consumer_t *consumer) except -1

cdef struct kept_t:               # requests of cold reads that wait for StreamQueue.step_reads (manual reads)
    uint32_t lock
    cursor_t *first

cdef class Seat:
    cdef seat_t *seat                 # NULL: a consumer has it
    cdef queue_t *queue               # counted: the collector may clear `owner` before the seat goes
    cdef StreamQueue owner            # keeps the stream

cdef class StreamQueue:
    cdef queue_t *queue               # counted, as in Seat
    cdef stream_queue_t *stream       # as long as the queue
    cdef readonly QueueHandle handle
    cdef StreamSource source
    cdef object actors                # keeps the actor system
    cdef dict filters                 # group name -> (values, match_unfiltered) of its members
    cdef int64_t clock
    cdef int64_t visibility_ms
    cdef kept_t kept
    cdef group_t *find(self, bytes name) except? NULL
    cdef group_t *named(self, bytes name) except NULL
    cdef int set_filter(self, group_t *group, stream_filter_t *filter) except -1
    cdef bytes name_of(self, group_t *group)
    cdef content_t *read(self, uint64_t offset) except NULL
    cdef dict group_figures(self, group_t *group)
