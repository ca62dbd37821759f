# The log port's in-memory twin: gives LSNs, holds durability and loads back on demand, keeps contents that went cold.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport queue_t, slot_t

cdef struct kept_t:           # contents by id
    content_t **contents      # [id - 1]; NULL: gone
    uint64_t count
    uint64_t capacity

cdef struct asked_t:          # a load that was asked for
    queue_t *queue            # counted reference
    uint64_t position
    uint64_t message_id

cdef struct memory_log_t:
    uint64_t last_lsn         # atomic
    uint64_t durable          # atomic
    uint32_t held             # atomic
    uint32_t pressure         # atomic: PRESSURE_*
    uint32_t brief            # atomic: PRESSURE_* that the next enqueue brings and one look takes away
    uint32_t seen_once        # atomic: PRESSURE_* that the next look takes away
    uint32_t lock             # of all below
    uint32_t keeps            # contents are kept, so that they can be loaded
    uint64_t enqueues         # atomic, as the next ones
    uint64_t dequeues
    uint64_t placed
    uint64_t kicks
    uint64_t spills
    uint64_t unspills
    uint64_t misses           # unspills of ids that are not there
    uint64_t message_ids      # given out so far
    uint32_t last_owner       # what the last dequeue said
    uint32_t last_reason
    uint64_t last_delivered_us
    kept_t logged
    kept_t spilled
    asked_t *asked
    uint64_t asked_count
    uint64_t asked_capacity

# Answers the oldest load that waits, and up to `run` cold entries behind it while less than `hot_bytes` are in the queue's memory.
# False when none waits.
cdef bint memory_log_answer(memory_log_t *log, uint32_t run, uint64_t hot_bytes) noexcept nogil
# Content by its id, a counted reference; NULL when it is gone.
cdef content_t *memory_log_find(memory_log_t *log, uint64_t message_id) noexcept nogil
# Gives a held entry its persistence id, as enrolment_port_t.enqueue does.
cdef void memory_log_write(memory_log_t *log, slot_t *slot) noexcept nogil

cdef class MemoryLog(LogPort):
    cdef public object on_durable     # called after durability moved, besides the wakers; None: nobody
    cdef memory_log_t log
    cdef readonly dict transactions   # tx -> list of what it was asked, in order (see module)
    cdef readonly dict states         # tx -> "open", "committed", "applied"
    cdef readonly dict consumers      # consumer id -> (tag, group)
    cdef public object refuse         # tests: an exception that the next enqueue, dequeue or decide raises
    cdef public object fail           # tests: an exception that the next look at `durable` raises
    cdef list awaited                 # (LSN, callback) of when_durable
    cdef uint64_t next_tx
    cdef content_t *load_now(self, uint64_t message_id) except NULL
    cdef Enrolment enrol(self)
    cdef int note_consumer(self, uint32_t consumer_id, bytes tag, bytes group) except -1
    cdef int _refusal(self) except -1

cdef class MemoryEnrolment(Enrolment):
    cdef MemoryLog log
    cdef uint64_t tx
    cdef uint64_t lsn
