# Message-Shape and Message: what many messages share stands in a container once, and each of them names it (docs/FORMAT.md).
#
# A log remembers the shapes of the container that is being filled, in a table of fixed size. A zeroed shapes_t is an empty one. Under the log's lock.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.record cimport record_t, shape_t

cdef enum:
    SHAPES = 4096               # shapes that are remembered at most
    SHAPE_WAYS = 4              # places in the table that a shape may have
    SHAPE_MAX = 4096            # bytes of route and content header above which none is made
    COPY_OF_ONE = 96            # bytes that a Message-Copy with one place has beyond its content
    SHAPES_BYTES_MAX = 1048576  # bytes of routes and content headers that are remembered at most

cdef struct known_shape_t:
    uint64_t lsn                # of its Message-Shape; below log_t.shape_floor: it has none in this container
    uint64_t seen               # LSN at which a message of it was written in full; below log_t.shape_floor: none in this container
    uint64_t queue_id
    uint64_t position           # of the Message-Shape
    uint8_t *bytes              # route and content header; NULL until its second message
    uint32_t room               # of `bytes`
    uint32_t header_len
    uint16_t route_len
    uint8_t flags
    uint8_t priority

cdef struct shapes_t:
    known_shape_t *table        # NULL: nothing was written yet
    uint32_t *marks             # a hash of each shape, 0: the place is free
    known_shape_t *last         # that of the last Message: most come one after the other on one queue. NULL: none
    uint64_t bytes              # of all `bytes`

cdef void shapes_free(shapes_t *shapes) noexcept nogil
# Writes an undivided message with one plain place as a Message, its Message-Shape before it when the container lacks that, and marks it
# live, with the bytes of its copy: what it would take elsewhere says when copying a container pays. follows: bytes of records that must fit behind it in the same window. Returns its LSN, `*end` the LSN behind it; 0: it is to be written in full;
# LSN_NEVER. O(bytes). Log lock held.
cdef uint64_t shapes_write(shapes_t *shapes, log_t *log, content_t *content, uint64_t queue_id, uint64_t position, int64_t expires_at_ms, uint32_t follows, uint64_t *end) noexcept nogil

# The content of a Message from its record and its shape. NULL: no memory.
cdef content_t *content_from_brief(arena_t *arena, record_t *record, shape_t *shape) noexcept nogil
