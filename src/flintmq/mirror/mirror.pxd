# What the owner of a shared queue tells the engine: arrivals as batches of segments, ends as rows of ends; and how a new owner gets the
# messages back.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport arena_t
from flintmq.mirror.rows cimport row_head_t, row_message_t
from flintmq.mirror.segments cimport allowance_t, hub_t, lane_t, mirror_t, row_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport queue_t

# The mirror of a queue that is served here; NULL: it has none.
cdef inline mirror_t *mirror_of(queue_t *queue) noexcept nogil:
    return <mirror_t *>queue.ops_context

cdef class MirrorPort(LogPort):
    cdef hub_t hub
    cdef uint64_t queue_bytes_max
    cdef uint64_t vhost_bytes_max
    cdef uint32_t rests                # see allowance_t
    cdef dict allowances               # virtual host -> address of its allowance_t
    cdef LogPort log                   # whose loops are woken when confirms may leave; None: nobody
    cdef arena_t *arena                # of contents that come back
    cdef row_message_t *messages       # ROW_PLACES of them: the segment that is being made
    cdef allowance_t *_allowance(self, str vhost) except NULL

# What the queue keeps: it is there as long as anybody has the queue, and does not lead back to it.
cdef class MirrorRecord:
    cdef mirror_t mirror
    cdef MirrorPort port

cdef class Mirror:
    cdef QueueHandle handle
    cdef MirrorRecord record
    cdef mirror_t *mirror              # the record's
    cdef MirrorPort port
    cdef void _cover_early(self, row_t *row, uint32_t count) noexcept nogil
    cdef void _scan(self, row_t *row, uint64_t last, row_head_t *head, uint64_t size_max) noexcept nogil
    cdef bytes _segment(self, lane_t *lane, uint32_t level, row_head_t *head, uint64_t size_max)
    cdef bytes _ends_of(self, row_t *row)
    cdef bint _insert(self, row_message_t *message, uint64_t index, uint32_t level, uint64_t count, bint flagged) except? True
    cdef dict _read_ends(self, bytes ends)
    cdef lane_t *_lane(self, uint64_t position) except NULL
    cdef row_t *_row(self, uint64_t position) except NULL
