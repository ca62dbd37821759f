# Which queues of a broker have something to do; see due_index.pyi.
from flintmq.queue.types cimport due_index_t, queue_t

cdef class DueIndex:
    cdef due_index_t index
    cdef object clock
    cdef object retries               # Retries, which the index leads to
    cdef queue_t *worked              # what the pass under way has still to take
    cdef bint ends                    # its last one was taken: the next call says so
