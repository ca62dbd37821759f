# What the stream core needs of a stream's log, as a table of functions, so that the log on disk (store_source.py over store/stream) and
# its twin in memory (tests/twins/memory_stream) look alike. Outcomes, batches and filters are those of store/stream/stream_log.pxd. Any
# thread, no GIL; only `read` and `find_time` block.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.store.stream.stream_batch cimport stream_batch_t, stream_filter_t

ctypedef void (*on_visible_t)(void *context) noexcept nogil

cdef struct source_t:
    void *log                   # first argument of every function
    # The message's offset, all bits when it was not taken. Never blocks.
    uint64_t (*append)(void *log, content_t *content) noexcept nogil
    uint64_t (*visible)(void *log) noexcept nogil      # the first offset that readers must not see yet
    uint64_t (*first)(void *log) noexcept nogil        # the lowest offset that is kept; == visible when none is
    uint64_t (*bytes)(void *log) noexcept nogil        # of what is kept
    int (*hot_read)(void *log, uint64_t offset, uint32_t count, uint64_t bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
    # `place`: what new_place gave; one call at a time.
    int (*read)(void *log, void *place, uint64_t offset, uint32_t count, uint64_t bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
    void *(*new_place)(void *log) noexcept nogil
    void (*rest)(void *log, void *place) noexcept nogil        # nothing will be read there for a while
    void (*free_place)(void *log, void *place) noexcept nogil
    uint64_t (*find_time)(void *log, void *place, int64_t wall_ms) noexcept nogil
    # Whom to tell, from the writer's thread, that more became visible. NULL: nobody; returns when no call is under way.
    void (*listen)(void *log, on_visible_t tell, void *context) noexcept nogil
    void (*release)(void *log) noexcept nogil          # the stream core is done with it

cdef class StreamSource:
    cdef source_t source
    cpdef taken(self)
