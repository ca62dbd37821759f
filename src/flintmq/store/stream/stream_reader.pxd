# Cold reads of a stream: messages from its containers, in offset order. A reader keeps its place, so sequential reads cost
# O(records read). One thread at a time uses a reader (an actor's slice); the disk is read with pread, without the GIL, in windows.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.store.stream.stream_log cimport stream_batch_t, stream_filter_t, stream_t
# Who cimports from here gets these, too.
from flintmq.store.stream.stream_walk cimport stream_reader_free, stream_reader_new, stream_reader_rest, stream_reader_t

# Reads from `offset` on: up to max_count messages and about max_bytes (one at least) that match the filter (NULL: all), and looks at no
# more than some MiB of the log. Adds to the batch, sets next_offset, adds to io_ns. MESSAGES, EMPTY, FILTERED, TRUNCATED, DAMAGED, IO or
# GONE; never COLD: hot messages are read from the disk as well. Blocks for preads only (an opening takes the GIL for a moment).
cdef int stream_read(stream_t *stream, stream_reader_t *reader, uint64_t offset, uint32_t max_count, uint64_t max_bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
# The first kept offset whose message was appended at or after `ms` (wall clock, milliseconds since 1970); the first not visible yet when
# there is none. Reads O(log containers) + one container. When the clock was set back in between: some offset near it.
cdef uint64_t stream_find_time(stream_t *stream, stream_reader_t *reader, uint64_t ms) noexcept nogil
