# The records of the stream core. Plain C.
#
# Words: an *offset* numbers the messages of a stream 0, 1, 2, ...; its *position* on the queue's face is offset + 1, because position 0
# means none there. A *reader* is one consumer's end: alone it has a cursor of its own, in a group it shares the group's.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.queue.types cimport consumer_t, queue_t, slot_t
from flintmq.streams.source cimport batch_t, filter_t, source_t

cdef enum:
    GROUP_NAME_MAX = 255        # bytes
    NO_OFFSET_BITS = 64         # "no offset" is all bits

cdef enum:                      # open_t.state: what became of an offset that was delivered and is not done
    OPEN_DONE = 0               # acked, filtered out, dropped: a gap that waits for its neighbours
    OPEN_HELD = 1               # in the hands of `owner`
    OPEN_READY = 2              # came back: to be delivered again, lowest offset first
    OPEN_DELAYED = 3            # came back, READY at due_ms
    OPEN_DEAD = 4               # over the delivery limit or refused: Python takes it to the dead-letter exchange

cdef struct open_t:
    uint64_t offset
    int64_t due_ms              # HELD: visible again; DELAYED: ready; 0 never
    uint32_t owner              # consumer id
    uint16_t count              # deliveries so far, saturating
    uint8_t state
    uint8_t reason              # DEAD: REASON_* of queue/types.pxd

cdef enum:                      # cursor_t.reading
    READ_IDLE = 0
    READ_ASKED = 1              # a request is on its way to, or in, a worker
    READ_FAILED = 2             # the last one failed: not again before retry_ms

cdef struct stream_queue_t
cdef struct stream_group_t
cdef struct stream_reader_t

cdef struct cursor_t:           # a place in the stream with what was read ahead of it. Under its owner's lock
    stream_queue_t *stream
    filter_t *filter            # NULL: everything; owned
    uint64_t next               # the next offset to look at; what the batches hold is at or above it
    batch_t *now                # being handed out; NULL while none
    batch_t *ahead              # read from the disk, comes after `now`
    void *place                 # of source_t.read; used by one request at a time
    uint32_t reading            # READ_*
    int64_t retry_ms
    uint64_t asked              # the offset of the request under way
    uint64_t lost               # offsets that retention took before they were read, not yet reported in a message
    uint64_t cold_reads         # figures
    uint64_t failed_reads

cdef struct stream_group_t:
    stream_queue_t *stream
    stream_group_t *next_group
    slot_t slot                 # what its deliveries show as slot
    uint32_t lock               # all below
    uint32_t refs               # atomic: stream and members
    uint8_t name[GROUP_NAME_MAX]
    uint32_t name_len
    # progress: everything below fresh.next is done but for what stands in `open`
    cursor_t fresh              # never delivered
    cursor_t again              # for redeliveries that are no longer in memory
    open_t *open                # by offset, ascending; open_start .. open_end; DONE ones are squeezed out
    uint32_t open_start
    uint32_t open_end
    uint32_t open_size
    uint32_t open_count         # not DONE
    uint32_t held_count
    uint32_t ready_count
    uint32_t dead_count
    uint64_t ready_low          # no READY offset is lower
    int64_t due_low             # no due_ms is lower; 0: none
    uint64_t flagged            # offsets below were perhaps delivered before a crash: flagged redelivered
    content_t *lent             # last content handed out of `again` or rewritten; kept until the next
    # rules
    int64_t visibility_ms       # 0: no limit
    int64_t delay_ms            # before a nacked message comes again
    int32_t delivery_limit      # -1: none
    # members
    stream_reader_t *members    # in the order in which they are woken; under the queue's manager lock
    uint32_t member_count       # atomic
    uint32_t idle               # atomic hint: some member may be on INTERESTED
    uint32_t changed            # atomic: since it was saved
    # figures
    uint64_t delivered
    uint64_t redelivered
    uint64_t acked
    uint64_t nacked
    uint64_t expired            # came back because their visibility time was over
    uint64_t filtered
    uint64_t dead
    uint64_t dropped            # refused, and no dead-letter exchange
    uint64_t lost               # to retention, all
    uint64_t lost_told          # of these Python was told of
    uint64_t full_waits         # times it waited for its oldest, stream_open_max offsets open
    uint32_t full

cdef struct stream_reader_t:
    stream_queue_t *stream
    consumer_t *consumer        # NULL until it is attached
    stream_group_t *group       # counted; NULL: alone
    cursor_t own                # alone
    content_t *lent             # the content of its last delivery
    int64_t visibility_ms       # -1: the group's; 0: its holder keeps its own time (leases)
    stream_reader_t *prev       # members of the group, or readers alone of the stream: under the queue's manager lock
    stream_reader_t *next
    uint64_t lost               # alone: to retention
