# Records of one log by LSN, from its container files, in a process that is not the broker.
#
# Bytes are read with pread into memory of our own, never mapped: what was checked can't change afterwards, and a file that is cut off
# or recycled meanwhile is no signal but a record that does not check. A bounded number of containers is held, in pieces as needed.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.store.log.reader cimport log_reader_t
from flintmq.store.log.record cimport record_t, shape_t

cdef struct known_block_t:           # a commit block
    uint64_t time_us
    uint32_t offset           # in its container
    uint32_t length
    uint32_t epoch
    uint32_t records

cdef struct view_t:           # a container
    uint64_t sequence         # 0: none
    uint64_t used_at
    uint8_t *bytes
    uint64_t *loaded          # a bit per piece
    known_block_t *blocks             # blocks from the start on, as far as `scanned`
    uint64_t scanned
    uint32_t block_count
    uint32_t block_room
    uint32_t block_last
    int fd                    # -1: none
    int pins                  # while > 0 it is not given up

cdef struct stored_content_t:        # one message's content, as it lies in its record or in `scratch`
    const uint8_t *route
    const uint8_t *header
    const uint8_t *body
    uint64_t published_us     # 0: not known
    uint64_t end              # LSN behind its last record
    uint32_t route_len
    uint32_t header_len
    uint32_t body_len
    uint8_t flags
    uint8_t priority

cdef enum:
    CONTENT_GOOD = 0
    CONTENT_SHORT = 1         # a chunk is missing
    CONTENT_BAD = 2           # fields that contradict each other

cdef class Containers:
    cdef readonly str directory
    cdef bytes _path
    cdef const char *path
    cdef view_t *views
    cdef uint32_t count
    cdef uint64_t tick
    cdef readonly uint64_t container_size     # 0: no container seen yet
    cdef uint8_t uuid[16]
    cdef bint has_uuid
    cdef readonly uint32_t log
    cdef readonly uint64_t memory
    cdef int error                            # errno of a read that failed
    cdef uint8_t *scratch
    cdef uint64_t scratch_size
    cdef object lock
    cdef log_reader_t reader                  # of the containers' bytes; its user sets `limit` before it uses its place
    cdef int learn(self) except -1
    cdef int raise_error(self) except -1
    cdef void forget(self) noexcept nogil     # what is held is read anew
    # The container, NULL when it is not there (or is another one by now).
    cdef view_t *open(self, uint64_t sequence) noexcept nogil
    cdef bint _room(self, view_t *view) noexcept nogil
    cdef bint header_good(self, const uint8_t *header, uint64_t sequence) noexcept nogil
    cdef void close_view(self, view_t *view) noexcept nogil
    cdef bint load(self, view_t *view, uint64_t offset, uint64_t size) noexcept nogil
    # The block that holds the LSN; NULL: none that checks.
    cdef known_block_t *block_of(self, uint64_t lsn) noexcept nogil
    # Content of the message that the record begins. `record` is overwritten by that of the last chunk.
    cdef int content(self, record_t *record, stored_content_t *out) noexcept nogil
    # The shape that a Message names, valid while its container is held. CONTENT_SHORT: it is not there.
    cdef int shape_of(self, record_t *record, shape_t *out) noexcept nogil
    cdef int _brief(self, record_t *record, stored_content_t *out) noexcept nogil
