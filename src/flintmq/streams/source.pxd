# What the stream core needs of a stream's log: a table of functions, so that the log on disk (store/stream) and its twin in memory
# (testing/memory_stream) look alike. Any thread, no GIL; only `read` may block.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t

cdef enum:
    BATCH_MAX = 256             # messages of one batch

cdef enum:                      # outcomes of `read`
    SOURCE_READ = 0             # batch.next says how far it looked
    SOURCE_TRUNCATED = 1        # the offset is no longer kept: go on at first()
    SOURCE_FAILED = 2           # it can't be read there: damage, I/O, no memory. Tried again later

cdef struct filter_t:           # x-stream-filter of a consumer: any of the values; allocated in one piece
    uint32_t count
    uint32_t size               # bytes of `values`
    bint match_unfiltered       # messages without a filter value, too
    uint8_t *values             # each: length as 4 bytes big endian, then the bytes

cdef struct batch_t:            # messages in order, each with a counted reference
    uint32_t count
    uint32_t at                 # the first not yet handed out
    uint64_t start              # the offset it was asked for
    uint64_t next               # everything below was looked at (delivered here, or not wanted by the filter)
    uint64_t io_ns              # time its reads waited for the disk
    uint64_t bytes
    uint64_t offsets[BATCH_MAX]
    content_t *contents[BATCH_MAX]

ctypedef void (*on_visible_t)(void *context) noexcept nogil

cdef struct source_t:
    void *log                   # first argument of every function
    # The message's offset, ~0 when it was not taken. Takes its own reference. Never blocks.
    uint64_t (*append)(void *log, content_t *content) noexcept nogil
    uint64_t (*visible)(void *log) noexcept nogil      # the first offset that readers must not see yet
    uint64_t (*first)(void *log) noexcept nogil        # the lowest offset that is kept; `visible` when none is
    uint64_t (*appended)(void *log) noexcept nogil     # the next offset
    uint64_t (*bytes)(void *log) noexcept nogil        # of what is kept
    # Messages in memory from `offset` on, up to `most`, contiguous, all visible, counted references; returns how many, 0: not in memory.
    uint32_t (*hot)(void *log, uint64_t offset, uint32_t most, content_t **out) noexcept nogil
    # Reads a batch from the disk. `place`: what new_place gave, one call at a time.
    int (*read)(void *log, void *place, uint64_t offset, uint32_t most, uint64_t bytes, filter_t *filter, batch_t *out) noexcept nogil
    void *(*new_place)(void *log) noexcept nogil
    void (*free_place)(void *log, void *place) noexcept nogil
    uint64_t (*find_time)(void *log, int64_t wall_ms) noexcept nogil   # the first offset written at that time or later; may block
    # Whom to tell, from the writer's thread, that more became visible. NULL: nobody; returns when no call is under way.
    void (*listen)(void *log, on_visible_t tell, void *context) noexcept nogil
    void (*release)(void *log) noexcept nogil          # the stream core is done with it
