# The reader of a log: one record after the other, the record at an LSN, the next good record behind damage (docs/FORMAT.md, "Reading").
#
# It has no bytes of its own: `load`, which its user gives, brings bytes of the log into reach. So the same code reads a container in memory,
# a window of a file, write buffers that are not on disk yet, and containers that a cache holds in pieces. One thread at a time uses a reader.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.store.log.file_port cimport port_read_t
from flintmq.store.log.record cimport CONTAINER_HEADER, align8, block_t, record_t

cdef enum:                      # results of a step to the next record
    STEP_RECORD = 0
    STEP_END = 1                # nothing follows below the limit
    STEP_BAD = 2                # the bytes that stand there do not check, or their container is gone
    STEP_IO = 3                 # the disk refused (log_reader_t.error)

# Brings the bytes from `lsn` on into reach: sets window, window_lsn and window_end. At least `least` bytes, unless the container, or the part
# of it that may be read, ends before. Returns the number of bytes at `lsn`; 0: none, and `error` is the errno when the disk refused.
ctypedef uint64_t (*reader_load_t)(log_reader_t *reader, uint64_t lsn, uint64_t least) noexcept nogil

# A place that does not check was met: before the search behind it.
ctypedef void (*reader_bad_t)(log_reader_t *reader) noexcept nogil

cdef struct log_place_t:        # a place between two records that was kept
    uint64_t at
    uint64_t block
    uint64_t block_end
    uint64_t block_us

cdef struct log_reader_t:
    # --- given by the user
    reader_load_t load
    reader_bad_t on_bad         # NULL: nobody is told
    void *context
    uint64_t container_size
    uint64_t limit              # LSN: nothing that reaches beyond it is given by a step
    uint64_t record_max         # bytes; no longer record is believed
    uint32_t log_id
    uint32_t effort             # a search in a damaged block checks at most this many times the block's bytes
    bint growing                # the window may have been read before the bytes it lacks were written: a record that does not check is read anew
    # --- set by `load`
    const uint8_t *window       # the bytes of LSNs [window_lsn, window_end)
    uint64_t window_lsn
    uint64_t window_end         # 0: there is no window
    int error                   # errno of a read that the disk refused; whoever sees it sets it back
    bint shared                 # the bytes may have changed while they were read
    bint anew                   # set for `load`: what it had in reach did not check, so it reads from where the log is written
    # --- the place, between two records
    uint64_t at                 # LSN of the next record; 0: nowhere
    uint64_t block              # LSN of the block that it is in; 0: not known, any block may follow
    uint64_t block_end          # LSN behind that block
    uint64_t block_us           # time base of that block

# Bytes in reach at `lsn`: `least`, unless there are fewer.
cdef inline uint64_t reader_fill(log_reader_t *reader, uint64_t lsn, uint64_t least) noexcept nogil:
    if reader.window_lsn <= lsn and lsn + least <= reader.window_end:
        return reader.window_end - lsn
    return reader.load(reader, lsn, least)

# For a `load`: reads up to `size` bytes at `lsn` from the open file of its container into `bytes`, which become the window.
cdef uint64_t reader_read(log_reader_t *reader, port_read_t read_at, void *files, int fd, uint8_t *bytes, uint64_t lsn, uint64_t size) noexcept nogil

# Goes to the beginning of a container.
cdef inline void reader_begin(log_reader_t *reader, uint64_t sequence) noexcept nogil:
    reader.block = 0
    reader.at = sequence * reader.container_size + CONTAINER_HEADER
    reader.block_end = reader.at

# Goes behind a record that a step gave.
cdef inline void reader_pass(log_reader_t *reader, record_t *record) noexcept nogil:
    reader.at = record.lsn + align8(record.length)

# Keeps the place; goes back to it.
cdef inline void reader_keep(log_reader_t *reader, log_place_t *place) noexcept nogil:
    place.at, place.block, place.block_end, place.block_us = reader.at, reader.block, reader.block_end, reader.block_us

cdef inline void reader_return(log_reader_t *reader, log_place_t *place) noexcept nogil:
    reader.at, reader.block, reader.block_end, reader.block_us = place.at, place.block, place.block_end, place.block_us

# Goes into the block at `lsn`, if there is one below the limit; chained: only if it follows the present one.
cdef bint reader_enter(log_reader_t *reader, uint64_t lsn, bint chained) noexcept nogil
# STEP_RECORD: the place is at the first record of the next block; else the reason, and nothing moved.
cdef int reader_next_block(log_reader_t *reader) noexcept nogil
# The record at the place, which does not move, or the reason why there is none. The record is valid until the next call.
cdef int reader_step(log_reader_t *reader, record_t *out) noexcept nogil
# Behind a place that does not check: goes to the next record that does, in this block, a later one, a later container. Never STEP_BAD.
cdef int reader_salvage(log_reader_t *reader) noexcept nogil
# The record at an LSN inside the present block; false when it does not check.
cdef bint reader_inside(log_reader_t *reader, uint64_t lsn, record_t *out) noexcept nogil
# The record at any LSN, its time relative to its block; false when it does not check. The place is not used, nor is the limit.
cdef bint reader_record_at(log_reader_t *reader, uint64_t lsn, record_t *out) noexcept nogil
# The first record at or after `lsn`, which is the end of a record: in its block, the next block or the next container. open_every: a block
# that is still open, so that its header is not written, may begin at multiples of so many bytes in the container; 0: none is open.
cdef bint reader_following(log_reader_t *reader, uint64_t lsn, uint64_t open_every, record_t *out) noexcept nogil

# --- blocks that are whole in memory

# Offset of the first block header from `offset` on, at sector boundaries below `end`, that checks and whose epoch is not below `epoch`; `end`
# when there is none. p: the first byte of a container of `size` bytes, whose LSN is `start`.
cdef uint64_t block_search(const uint8_t *p, uint64_t start, uint64_t offset, uint64_t end, uint64_t size, uint32_t log_id, uint32_t epoch, block_t *out) noexcept nogil
# Checks every record of the block at `p`. Returns the offset in the block of the first that does not check, the block's length when all do;
# `*count`: of good records before that.
cdef uint32_t block_check(const uint8_t *p, block_t *block, uint32_t *count) noexcept nogil
# Offset in the block of the first record at or after `at` that checks; the block's length when there is none. `*effort`: bytes that may
# still be checked in this search.
cdef uint32_t block_salvage(const uint8_t *p, block_t *block, uint32_t offset, uint64_t *effort) noexcept nogil
