# Which queues of a broker have something to do; see due_index.pyi.
from flintmq.queue.types cimport due_index_t

cdef class DueIndex:
    cdef due_index_t index
    cdef object clock
