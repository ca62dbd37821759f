# A stream: an endless run of messages in a log of its own, numbered by offset 0, 1, 2, ... Appended once, read by anybody.
#
# An offset is *visible* once its message is durable; readers never see one that is not, so an offset once seen is that message for ever.
# The last visible messages also stand in memory (the hot window), as contents ready to be sent: their header carries x-stream-offset
# already, so a fan-out only copies bytes. Everything older is read from the containers (stream_reader.pxd).
#
# Threads: append, visible, first, hot reads: any thread, no GIL, never block. Nothing here takes the queue core's locks.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport log_port_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.writer cimport dirty_log_t, writer_t
# Who cimports from here gets these, too.
from flintmq.store.stream.stream_batch cimport (
    stream_batch_clear, stream_batch_free, stream_batch_put, stream_batch_t, stream_filter_free, stream_filter_matches, stream_filter_new,
    stream_filter_t, stream_item_t,
)

cdef uint64_t STREAM_FAILED     # all bits: the message was not taken (log failed, stream deleted or damaged, no memory)

cdef enum:                      # what a read came to
    STREAM_MESSAGES = 0         # batch.count > 0; go on at batch.next_offset
    STREAM_EMPTY = 1            # nothing at or behind the offset is visible yet
    STREAM_FILTERED = 2         # nothing matched up to batch.next_offset (as far as the bounds let it look); go on there
    STREAM_TRUNCATED = 3        # retention took the offset: batch.next_offset is the first one kept; the caller counts what was lost
    STREAM_DAMAGED = 4          # offsets up to batch.next_offset can't be read any more; it is the next readable one
    STREAM_COLD = 5             # hot reads only: visible, but not in the hot window: stream_read it
    STREAM_IO = 6               # the disk refused a read (batch.error: errno); nothing moved, try again later
    STREAM_GONE = 7             # the stream was deleted

cdef extern from *:
    """
    #ifndef FLINTMQ_STREAM_ARENA_H
    #define FLINTMQ_STREAM_ARENA_H
    /* The calling thread's arena for hot messages: any loop appends, and an arena has one owner. */
    static __thread void *stream_arena_of_thread = 0;
    static inline void **stream_arena_slot(void) { return &stream_arena_of_thread; }
    #endif
    """
    void **stream_arena_slot() noexcept nogil

# More offsets are visible. Called by the log's writer thread, without the GIL, once per pass: must not block.
ctypedef void (*stream_visible_t)(void *context) noexcept nogil

cdef struct stream_space_t:     # shared by all streams of a store
    uint64_t unwritten          # atomic: bytes appended and not durable; the log port's pressure counts them
    uint64_t hot_bytes          # atomic: memory of all hot windows
    uint64_t hot_most           # above this a window keeps no more than hot_least
    uint64_t hot_each           # bytes of one hot window
    uint64_t hot_least

cdef struct hot_t:              # one message of the hot window
    content_t *content          # NULL: not kept in memory (it only waits to become durable)
    uint64_t end                # LSN behind it
    uint64_t start              # LSN of its Stream-Message
    uint32_t filter_at          # where its filter value stands in the content's header; 0: it has none
    uint32_t filter_size

cdef struct container_first_t:            # what is known of one container
    uint64_t first_offset       # of the first message that starts in it or behind it; OFFSET_UNKNOWN: not looked at yet
    uint64_t first_us           # wall clock of its first record

cdef struct stream_t:
    dirty_log_t dirty           # first: the writer's link to it
    uint32_t refs               # atomic
    uint32_t closed             # atomic: deleted or closing; nothing is appended any more
    uint64_t id                 # queue id
    uint64_t visible            # atomic: the first offset that is not visible yet
    uint64_t first              # atomic: the lowest offset kept; == visible while the stream is empty
    writer_t *writer
    log_port_t *port            # NULL: no tickets (tests)
    stream_space_t *space
    void *owner                 # the Stream object; kept alive while refs > 0
    # --- appending, under append_lock
    uint32_t append_lock
    uint32_t split_above
    uint64_t next               # offset of the next message
    bint in_mark                # the tail is where the last run's mark stands: the first record of this run must take its place
    uint64_t container_end      # LSN at which the last appended message's container ends
    uint64_t appended           # atomic figures
    uint64_t appended_bytes
    # --- the hot window, under hot_lock: a ring of the offsets [hot_first, hot_end)
    uint32_t hot_lock
    uint32_t hot_room           # power of two, 0 = no ring yet
    hot_t *hot
    uint64_t hot_first
    uint64_t hot_kept           # the first offset whose content is in memory
    uint64_t hot_end
    uint64_t hot_bytes
    uint64_t visible_start      # LSN of the last visible message's first record: recovery must begin at or before it
    # --- containers, under firsts_lock
    uint32_t firsts_lock
    uint32_t firsts_count
    uint32_t firsts_room
    container_first_t *firsts             # firsts[0] is that of container firsts_base
    uint64_t firsts_base
    # --- who wants to know
    uint32_t notify_lock
    stream_visible_t on_visible
    void *on_visible_context

# Appends a message: O(bytes), never blocks. Returns its offset, `*ticket` what its confirm waits for (log_port_t.durable_ticket).
# The caller kicks the port at the end of its pass, as for every logged message. STREAM_FAILED: nothing was taken.
# origin: position under which a transaction brought it here (store/stream_inbox.py), 0: none did.
cdef uint64_t stream_append(stream_t *stream, content_t *content, uint64_t origin, uint64_t *ticket) noexcept nogil
# The first offset that is not visible yet; the lowest offset kept.
cdef uint64_t stream_visible(stream_t *stream) noexcept nogil
cdef uint64_t stream_first(stream_t *stream) noexcept nogil
# As many as there are from `offset` on, up to `count` messages and about `bytes` (one at least), which match the filter (NULL: all).
# Adds to the batch. MESSAGES, EMPTY, FILTERED, TRUNCATED, COLD or GONE. One lock for all: O(messages looked at).
cdef int stream_hot_read(stream_t *stream, uint64_t offset, uint32_t count, uint64_t bytes, stream_filter_t *filter, stream_batch_t *batch) noexcept nogil
# The listener to new visible messages; one per stream. NULL: nobody; after the return the old one is not called any more.
cdef void stream_listen(stream_t *stream, stream_visible_t on_visible, void *context) noexcept nogil
cdef void stream_incref(stream_t *stream) noexcept nogil
cdef void stream_decref(stream_t *stream) noexcept nogil      # takes the GIL for the last one
# Bytes of the stream on disk, from the first container kept to the tail.
cdef uint64_t stream_bytes(stream_t *stream) noexcept nogil

# --- for the reader and the store
# First offset of a container and the time of its first record, as far as they were learnt; OFFSET_UNKNOWN.
cdef uint64_t stream_known(stream_t *stream, uint64_t sequence, uint64_t *first_us) noexcept nogil
cdef void stream_learn(stream_t *stream, uint64_t sequence, uint64_t first_offset, uint64_t first_us) noexcept nogil
# Forgets the containers below `sequence`.
cdef void stream_forget_firsts(stream_t *stream, uint64_t sequence) noexcept nogil
# Lets all contents of the hot window go, and its memory when every message is visible.
cdef void stream_cool(stream_t *stream) noexcept nogil
# A Stream-Mark: everything before it is durable. True when one was appended: nothing waited for the writer.
cdef bint stream_mark(stream_t *stream) noexcept nogil
# A stream without a log yet: memory for it; NULL: none. Freed when its owner goes.
cdef stream_t *stream_new(uint64_t stream_id, log_t *log, writer_t *writer, log_port_t *port, stream_space_t *space, void *owner) noexcept nogil
cdef void stream_free(stream_t *stream) noexcept nogil
# Messages appended and not written will never be: it is counted nowhere any more. The writer has let go of it.
cdef void stream_abandon(stream_t *stream) noexcept nogil
# Nothing is appended or told any more.
cdef void stream_close(stream_t *stream) noexcept nogil

cdef class StreamSpace:
    cdef stream_space_t space
    cdef bint parent_made       # the directory of all streams is there, durably
