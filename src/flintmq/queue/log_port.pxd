# The log as the message path sees it. The store subclasses LogPort and fills in `port` before the first queue or connection is
# attached; a function that is NULL there is a thing this log does not do.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.atomics cimport spin_lock, spin_unlock
from flintmq.core.content cimport content_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.types cimport log_port_t, log_waker_t

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
    # The same for one that is mostly small, which the log then writes at its decision, at once. All its contents are new.
    cdef Enrolment enrol_small(self)
    # Who an owner id of log_dequeue is: consumer tag and group, for the pipeline.
    cdef int note_consumer(self, uint32_t consumer_id, bytes tag, bytes group) except -1

# The durable LSN has moved: wakes consumers of the queues whose mark is durable now (delivered.pxd).
cdef void log_port_marked(log_port_t *port) noexcept nogil
# The log is closed: no queue waits for its mark any more.
cdef void log_port_forget(log_port_t *port) noexcept nogil

# The durable LSN has moved, or the log takes more again: calls every waker of the port. Any thread.
cdef inline void log_port_wake(log_port_t *port) noexcept nogil:
    cdef uint32_t i
    spin_lock(&port.waker_lock)
    for i in range(port.waker_count):
        port.wakers[i].wake(port.wakers[i].context)
    spin_unlock(&port.waker_lock)
    log_port_marked(port)
