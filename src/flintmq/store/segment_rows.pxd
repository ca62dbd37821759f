# Rows of segments in a part of a checkpoint, as bytes and back (docs/FORMAT.md, kind 4). Plain C, no GIL.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.paging cimport shell_t

cdef enum:
    SEGMENTS_HEAD = 16          # bytes in front of the segments of a level
    SEGMENT_LEAST = 2           # bytes that one takes at least, and at most
    SEGMENT_MOST = 71

cdef struct segment_rows_t:     # segments of one level, written or read one after the other
    uint64_t queue_id
    uint32_t level
    uint32_t count              # those that the head names
    shell_t before              # the last one
    uint64_t step               # from the run before that one's to that one's

# Begins a level: the next segment is compared with none.
cdef void segments_begin(segment_rows_t *rows, uint64_t queue_id, uint32_t level) noexcept nogil
# Writes the head, of SEGMENTS_HEAD bytes.
cdef void segments_put_head(const segment_rows_t *rows, uint8_t *out) noexcept nogil
# Begins with the level that a head names. False: malformed. The bytes may be anybody's.
cdef bint segments_get_head(segment_rows_t *rows, const uint8_t *data, uint32_t length) noexcept nogil
# Writes one segment, of SEGMENT_MOST bytes at most; its run is a multiple of 8. Returns the bytes written.
cdef uint32_t segment_put(segment_rows_t *rows, const shell_t *facts, uint8_t *out) noexcept nogil
# Reads one segment. Returns its bytes, 0: malformed. The bytes may be anybody's, and so may the facts.
cdef uint32_t segment_get(segment_rows_t *rows, const uint8_t *data, uint32_t length, shell_t *facts) noexcept nogil
