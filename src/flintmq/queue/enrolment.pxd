# One transaction: what it puts on queues and takes from them becomes true at once, or not at all. See enrolment.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t, slot_t

cdef struct held_t:             # a message on a queue that nobody sees before `apply`
    queue_t *queue              # counted
    slot_t *slot
    uint64_t position
    long long expires_at_ms
    bint logged

# The log's half of a transaction, of a persistent message and of a logged entry. `context` stands for the transaction in the log. The first
# writes the content if need be and sets slot.message_id. False: nothing is logged.
ctypedef bint (*enrol_enqueue_t)(void *context, queue_t *queue, uint64_t position, slot_t *slot, long long expires_at_ms) except? True
ctypedef bint (*enrol_dequeue_t)(void *context, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) except? True

cdef struct enrolment_port_t:   # NULL everywhere: nothing of the transaction is logged
    void *context
    enrol_enqueue_t enqueue
    enrol_dequeue_t dequeue

cdef class Enrolment:
    cdef enrolment_port_t port
    cdef held_t *held
    cdef uint32_t held_count
    cdef uint32_t held_size
    # Puts a message on a queue, held: its position is final. False: the queue is deleted.
    cdef bint enqueue(self, queue_t *queue, content_t *content, long long expires_at_ms) except? True
    # A delivered entry goes when the transaction commits. True: its dequeue is part of the log's transaction.
    cdef bint dequeue(self, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) except? True
    # Writes the commit record: the transaction has happened once that is `durable`.
    cdef int decide(self) except -1
    cdef bint durable(self)
    # The commit is durable: it happens in the queues. Of a local one: `applied` follows when what stands on it is done, too (without
    # telling the log again of what it dequeued).
    cpdef object apply(self)
    cdef int applied(self) except -1
    # Held entries go, or go back.
    cpdef object undo(self)
    cdef void _free(self) noexcept
