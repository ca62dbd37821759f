# Between the message path and the service of shared queues: what clients publish to them and settle of them, in one line for the service's
# thread; receipts that tell publishers' channels what became of a message.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport queue_t

cdef enum:
    RECEIPT_SHIFT = 63        # this bit of a confirm's ticket: the rest is the address of its receipt

cpdef enum:
    WAITING_BYTES = 512       # of a message that waits, beside its content: what Python keeps of it
    RETURNED = 255            # item_t.reason, beside REASON_*

cdef struct receipt_t
cdef struct receipt_t:        # one message on its way to shared queues
    uint32_t refs             # atomic
    uint32_t waiting          # atomic: queues that have not answered
    uint32_t refused          # atomic: queues that did not take it
    uint64_t ticket           # of the streams that it went to as well, 0: none
    queue_t *queue            # counted: a queue that this node owns, whose mirror knows what became of it; NULL: none
    uint64_t position         # there
    receipt_t *more           # of further queues; with this one's reference

cdef struct share_t:          # what the queues of one virtual host have waiting
    uint64_t bytes            # under handoff_t.lock
    uint64_t bytes_max

cdef struct lane_t:           # what one queue has waiting, from the publish to its answer; queue_t.ops_context of a window
    share_t *share
    uint64_t bytes            # under handoff_t.lock
    uint64_t bytes_max
    uint32_t closed           # its queue is deleted: it is free with its last answer
    lane_t *next              # of those that no queue uses

cdef struct item_t:           # of the line
    queue_t *queue            # counted
    content_t *content        # counted; NULL: an entry of the window ended, or came back
    receipt_t *receipt        # counted; NULL: nobody waits
    lane_t *lane              # of a message: where it is counted
    uint64_t bytes            # ... and with how many
    uint64_t position
    int64_t expires_at_ms
    int reason                # REASON_* of an end; RETURNED: a consumer gave the entry back, which the window holds

cdef enum:
    BLOCK_ITEMS = 128

cdef struct item_block_t:     # a piece of the line
    item_block_t *next
    item_t items[BLOCK_ITEMS]

cdef struct handoff_t:
    uint32_t lock             # of the line and of what lanes count. Nothing is allocated, freed or copied under it but one item
    uint32_t asleep           # the service waits for the descriptor
    uint32_t lost             # an end found no memory: the service asks the engine what it has
    uint32_t closed           # no service: everything is refused
    uint32_t rests            # atomic: the engine is nearly full: publishers are to wait
    item_block_t *first       # the line: NULL until the first item
    item_block_t *last
    uint32_t first_index      # of the first item in its block
    uint32_t free_places      # behind the last item in its block
    uint64_t count            # items
    uint64_t block_count
    lane_t *free_lanes
    int descriptor            # eventfd; 0 until the service waits for the first time

# A receipt with one reference, for the caller; NULL: no memory.
cdef receipt_t *receipt_new() noexcept nogil
cdef void receipt_decref(receipt_t *receipt) noexcept nogil
# The ticket of a confirm that waits for a receipt, and back. NULL: the ticket is one of the streams.
cdef uint64_t receipt_ticket(receipt_t *receipt) noexcept nogil
cdef receipt_t *ticket_receipt(uint64_t ticket) noexcept nogil
# Gives the message to the service. `receipt` may be NULL. False: too much waits, no memory, or there is no service; nothing happened then.
cdef bint handoff_publish(queue_t *queue, content_t *content, int64_t expires_at_ms, receipt_t *receipt) noexcept nogil

# Whether publishers of a window's queue are to wait.
cdef bint handoff_rests(queue_t *queue) noexcept nogil

cdef class SharedPort(LogPort):
    cdef handoff_t handoff
    cdef dict shares          # virtual host -> address of its share_t; they stay, as a lane may be told of an answer at any time
    cdef uint64_t queue_bytes_max
    cdef uint64_t vhost_bytes_max
    cdef LogPort log          # whose loops are woken when receipts have their answers; None: nobody
    cdef lane_t *_new_lane(self, str vhost) except NULL
