# The log as the message path sees it: three functions over an opaque context. The store subclasses LogPort and fills it in.
from libc.stdint cimport uint64_t
from flintmq.queue.types cimport log_dequeue_t, log_enqueue_t

# Highest LSN that a crash can't take away any more. Any thread; never goes back.
ctypedef uint64_t (*durable_lsn_t)(void *context) noexcept nogil

cdef class LogPort:
    cdef void *context
    cdef log_enqueue_t log_enqueue
    cdef log_dequeue_t log_dequeue
    cdef durable_lsn_t durable_lsn
    cdef public object on_durable     # called (any thread) after the durable LSN moved: loops send the confirms that waited
