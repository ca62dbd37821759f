# The log as the message path sees it. The store subclasses LogPort and fills in `port` before the first queue or connection is
# attached; a function that is NULL there is a thing this log does not do.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport log_port_t, log_waker_t, queue_t, slot_t

# Calls every waker. Any thread, no GIL.
cdef void log_port_wake(log_port_t *port) noexcept nogil

# One transaction in the log: what is enrolled becomes true at once, or not at all. One thread at a time, GIL held, none of these waits for the disk.
cdef class Enrolment:
    # A held entry (queue_add_held) that becomes visible when the transaction commits. Writes the content if need be and sets
    # slot.message_id. Its position is final.
    cdef int enqueue(self, queue_t *queue, uint64_t position, slot_t *slot, long long expires_at_ms) except -1
    # A logged entry that goes when the transaction commits.
    cdef int dequeue(self, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) except -1
    # Writes the commit record: the transaction has happened once that is `durable`.
    cdef int decide(self) except -1
    cdef bint durable(self)
    # Its effects are in the queues: entries released, dequeued ones removed (without telling the log again).
    cdef int applied(self) except -1

cdef class LogPort:
    cdef log_port_t port
    # Registers (context is the key) what to wake; raises MemoryError above LOG_WAKERS_MAX.
    cdef int add_waker(self, log_waker_t wake, void *context) except -1
    cdef void remove_waker(self, void *context)
    # The content of a not resident message, read now: blocks for a disk read, the GIL is released. The caller owns one reference.
    # NULL with KeyError: the message is gone; with StoreError: it can't be read.
    cdef content_t *load_now(self, uint64_t message_id) except NULL

    # Begins a local transaction: the door of every front that has its messages in memory.
    cdef Enrolment enrol(self)
    # Who an owner id of log_dequeue is: consumer tag and group, for the pipeline.
    cdef int note_consumer(self, uint32_t consumer_id, bytes tag, bytes group) except -1
