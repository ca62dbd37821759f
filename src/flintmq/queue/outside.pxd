# Entry lists of kinds that come from outside this package; see outside.pyi.
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport queue_t

cdef class Entries:
    cdef queue_t *queue               # borrowed: it ends with the queue, and is NULL from then on
    cdef LogPort log
    cdef object kind                  # the list's own part (kinds.EntryList)
