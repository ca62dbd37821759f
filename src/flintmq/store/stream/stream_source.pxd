# What the stream core needs of a stream's log, as a table of functions: stream_files.Stream fills it in; tests fill it in with a log in
# memory of their own (tests/twins/memory_stream). What each function promises stands in stream_log.pxd and stream_reader.pxd. Any thread,
# no GIL; only `read` and `find_time` block.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.store.stream.stream_batch cimport stream_batch_t, stream_filter_t
from flintmq.store.stream.stream_log cimport stream_t, stream_visible_t
from flintmq.store.stream.stream_reader cimport stream_reader_t

cdef struct source_t:
    stream_t *log               # first argument of every function, and nobody else's to look into
    uint64_t (*append)(stream_t *log, content_t *content, uint64_t origin, uint64_t *ticket) noexcept nogil
    uint64_t (*visible)(stream_t *log) noexcept nogil
    uint64_t (*first)(stream_t *log) noexcept nogil
    uint64_t (*bytes)(stream_t *log) noexcept nogil
    int (*hot_read)(stream_t *log, uint64_t offset, uint32_t count, uint64_t bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
    # `reader`: what new_reader gave; one call at a time.
    int (*read)(stream_t *log, stream_reader_t *reader, uint64_t offset, uint32_t count, uint64_t bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
    stream_reader_t *(*new_reader)(stream_t *log) noexcept nogil
    void (*rest)(stream_reader_t *reader) noexcept nogil        # nothing will be read there for a while
    void (*free_reader)(stream_reader_t *reader) noexcept nogil
    uint64_t (*find_time)(stream_t *log, stream_reader_t *reader, uint64_t ms) noexcept nogil
    void (*listen)(stream_t *log, stream_visible_t tell, void *context) noexcept nogil
    void (*incref)(stream_t *log) noexcept nogil       # the stream core has one reference, from its making to its end
    void (*decref)(stream_t *log) noexcept nogil
