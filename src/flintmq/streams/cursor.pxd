# One place in a stream: what comes next, from memory or from the disk. All under the owner's lock, but cursor_read.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.store.stream.stream_batch cimport stream_filter_t, stream_item_t
from flintmq.streams.types cimport cursor_t, group_t, seat_t, stream_queue_t

cdef enum:                      # outcomes of a look
    CURSOR_ITEM = 0             # `item` is next; cursor_taken() moves on
    CURSOR_EMPTY = 1            # nothing more is visible
    CURSOR_COLD = 2             # it is on the disk and nobody reads yet: cursor.reading is ASKED now, the caller has it asked without locks
    CURSOR_WAITS = 3            # its read is under way, or failed a moment ago
    CURSOR_GONE = 4             # cursor_seek only: the offset is kept no more, or can't be read

cdef uint64_t NO_OFFSET         # all bits

cdef void cursor_init(cursor_t *cursor, stream_queue_t *stream, group_t *group, seat_t *seat, uint32_t *lock, uint64_t next) noexcept nogil
cdef void cursor_free(cursor_t *cursor) noexcept nogil         # without locks; nothing reads for it any more
# The next message that `filter` lets through. Skips what retention or damage took (counted in `lost`).
cdef int cursor_look(cursor_t *cursor, stream_filter_t *filter, stream_item_t **item) noexcept nogil
# The message at exactly this offset; used with rising offsets it reads batches.
cdef int cursor_seek(cursor_t *cursor, stream_filter_t *filter, uint64_t offset, stream_item_t **item) noexcept nogil
# The item of the last look is handed out: its reference is the caller's.
cdef void cursor_taken(cursor_t *cursor) noexcept nogil
# The cursor is half through what was read from the disk, and more is there: true when the caller is to ask (reading is ASKED).
cdef bint cursor_read_ahead(cursor_t *cursor, stream_filter_t *filter) noexcept nogil
# Everything below this was handed out, filtered out or lost.
cdef uint64_t cursor_position(cursor_t *cursor) noexcept nogil
cdef bint cursor_more(cursor_t *cursor) noexcept nogil         # something may be there behind the last look
cdef void cursor_move(cursor_t *cursor, uint64_t next) noexcept nogil      # drops what was read
# The read batch has the wrong filter: the cursor stays where it is and reads anew. True: a request under way frees the old filter.
cdef bint cursor_forget(cursor_t *cursor) noexcept nogil
# The request: reads, then puts the result where the next look finds it. Once for each CURSOR_COLD or cursor_read_ahead, any thread,
# without locks; blocks for the disk. Returns the nanoseconds it waited for the disk. The caller then calls cursor_answered.
cdef uint64_t cursor_read(cursor_t *cursor) noexcept nogil
cdef void cursor_read_failed(cursor_t *cursor) noexcept nogil  # instead, when nobody can read: tried again later
cdef int64_t stream_now(stream_queue_t *stream) noexcept nogil             # monotonic milliseconds; a few coarse
cdef int64_t stream_now_exactly(stream_queue_t *stream) noexcept nogil     # never behind the first
