# Cold reads of a stream: messages from its containers, in offset order. A reader keeps its place, so sequential reads cost
# O(records read). One thread at a time uses a reader (an actor's slice); the disk is read with pread, without the GIL, in windows.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t
from flintmq.store.log.file_port cimport port_read_t
from flintmq.store.log.reader cimport log_reader_t
from flintmq.store.stream.stream_log cimport stream_batch_t, stream_filter_t, stream_t

cdef struct stream_reader_t:
    log_reader_t walk           # limit: everything below was durable when this read began
    stream_t *stream            # a counted reference
    arena_t *arena              # of the contents it makes
    uint8_t *window             # bytes of the log, NULL while it rests
    port_read_t read_at         # of the stream's file port, and its context
    void *files
    int fd                      # of the container that is being read; -1: none
    uint64_t sequence           # of that container
    uint64_t bad_at             # where the last damage was found
    uint64_t offset             # of the next message at the place or behind it
    uint64_t io_ns
    uint64_t bytes_read         # figure: read from the disk

cdef stream_reader_t *stream_reader_new(stream_t *stream) noexcept nogil     # NULL: no memory
cdef void stream_reader_free(stream_reader_t *reader) noexcept nogil         # takes the GIL when a file is open
# Gives its window and file back and keeps its place: for a reader that has nothing to do for a while.
cdef void stream_reader_rest(stream_reader_t *reader) noexcept nogil

# Goes to the beginning of the last container whose first offset (or first time in microseconds, when `us` is given) is not above the
# wanted one; containers that can't be read are passed over. False: there is none, or the disk refused.
cdef bint stream_search(stream_reader_t *reader, uint64_t offset, uint64_t us) noexcept nogil
# First offset that starts in this container or behind it, from its first good record; OFFSET_UNKNOWN when it can't be read. Learns it.
cdef uint64_t stream_first_of(stream_reader_t *reader, uint64_t sequence, uint64_t *first_us) noexcept nogil

# Reads from `offset` on: up to max_count messages and about max_bytes (one at least) that match the filter (NULL: all), and looks at no
# more than some MiB of the log. Adds to the batch, sets next_offset, adds to io_ns. MESSAGES, EMPTY, FILTERED, TRUNCATED, DAMAGED, IO or
# GONE; never COLD: hot messages are read from the disk as well. Blocks for preads only (an opening takes the GIL for a moment).
cdef int stream_read(stream_t *stream, stream_reader_t *reader, uint64_t offset, uint32_t max_count, uint64_t max_bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
# The first kept offset whose message was appended at or after `ms` (wall clock, milliseconds since 1970); the first not visible yet when
# there is none. Reads O(log containers) + one container. When the clock was set back in between: some offset near it.
cdef uint64_t stream_find_time(stream_t *stream, stream_reader_t *reader, uint64_t ms) noexcept nogil
