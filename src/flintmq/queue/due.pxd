# A queue has something to do: an entry expires, or it worked and needs upkeep. So nobody has to look at those that have not.
from libc.stdint cimport int64_t
from flintmq.core.atomics cimport at_load32
from flintmq.queue.types cimport queue_t

# An entry that expires came, or came back: the index is told when that is earlier than what it knows. After it is in the list.
cdef void due_expiry(queue_t *queue) noexcept nogil
# For due_worked below.
cdef void due_list_worked(queue_t *queue) noexcept nogil

# The queue did something that its next housekeeping has to follow. Any thread; one load when it is known.
cdef inline void due_worked(queue_t *queue) noexcept nogil:
    if not at_load32(&queue.worked) and queue.due != NULL:
        due_list_worked(queue)
